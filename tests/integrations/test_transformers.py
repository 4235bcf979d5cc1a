"""The callback of Hugging Face's Trainer, in real short trainings."""

import json
import shutil

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

import lamplighter as ll
from lamplighter.integrations.transformers import FILE, Pruning

SCHEDULE = ll.schedules.cubic(0.9, steps=8)


class Sentences(torch.utils.data.Dataset):
    """Random tokens; the label is whether the first of them is large."""

    def __init__(self, count=64):
        self.tokens = torch.randint(50, (count, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        return {"input_ids": tokens, "attention_mask": torch.ones(8, dtype=torch.long), "labels": int(tokens[0] > 25)}


def bert(seed=0):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(
        vocab_size=50, max_position_embeddings=8, **sizes
    )  # with dropout: random numbers must go on, too
    return BertForSequenceClassification(config)


class Plain(nn.Module):
    """No model of transformers, and quick to make."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 8), nn.Linear(64, 2)

    def forward(self, input_ids, labels, attention_mask=None):
        logits = self.out(self.embed(input_ids).flatten(1))
        return nn.functional.cross_entropy(logits, labels), logits


def trainer_for(folder, model, callbacks, **options):
    settings = {
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_steps": 4,
        "disable_tqdm": True,
        "use_cpu": True,
        "report_to": "none",
    }
    arguments = TrainingArguments(str(folder), **{**settings, **options})
    return Trainer(model, arguments, train_dataset=Sentences(), eval_dataset=Sentences(8), callbacks=callbacks)


class Watch(TrainerCallback):
    """After each step, how many pruned weights are not zero; and what arrives in the logs."""

    def __init__(self, pruning):
        self.pruning, self.alive, self.logs = pruning, [], []

    def on_step_end(self, args, state, control, model, **others):
        masks = self.pruning.masks or {}
        self.alive.append(sum(int(model.get_parameter(n).detach()[~m].count_nonzero()) for n, m in masks.items()))

    def on_log(self, args, state, control, logs, **others):
        self.logs.append(dict(logs))


def zeros(model, masks):
    return all(not model.get_parameter(name).detach()[~mask].any() for name, mask in masks.items())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bf16": True, "gradient_accumulation_steps": 2, "max_grad_norm": 0.1},
        {"optim": "adafactor", "weight_decay": 0.1},
        {"optim": "sgd", "optim_args": "momentum=0.9"},
    ],
    ids=["adamw", "bf16, accumulated, clipped", "adafactor", "momentum"],
)
def test_pruned_weights_are_zero_after_every_step_and_the_schedule_is_met(tmp_path, options):
    model = bert()
    pruning = Pruning(SCHEDULE, every=2)
    watch = Watch(pruning)
    trainer_for(tmp_path, model, [watch, pruning], save_strategy="no", **options).train()
    total = pruning.masks.total
    assert pruning.masks.total_kept == total - round(0.9 * total)
    assert zeros(model, pruning.masks)
    assert watch.alive == [0] * 12
    # Before the first pruning the model is dense; from then on the log says what was asked for.
    steps = {2: 2, 3: 2, 4: 4, 9: 8, 12: 8}
    for step, last in steps.items():
        assert watch.logs[step - 1]["sparsity"] == pytest.approx(SCHEDULE(last), abs=1 / total)


def test_what_is_logged_reaches_the_trainers_own_reports_and_its_history(tmp_path):
    """A reporter stands before the callback in the trainer's list, and yet sees what it adds."""
    pruning = Pruning(ll.schedules.one_shot(0.5), every=3)
    watch = Watch(pruning)
    trainer = trainer_for(tmp_path, bert(), [watch, pruning], max_steps=6, save_strategy="no", report_to="none")
    trainer.train()
    assert [logs["sparsity"] > 0 for logs in watch.logs[:6]] == [False, False, True, True, True, True]
    layers = {f"density/{name}": density for name, density in pruning.masks.densities().items()}
    assert {name: value for name, value in watch.logs[2].items() if name.startswith("density/")} == layers
    assert not any(name.startswith("density/") for name in watch.logs[3])
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert history[2]["sparsity"] == pruning.masks.sparsity
    assert layers.items() <= history[2].items()


@pytest.mark.parametrize("unit", ["step", "epoch"])
@pytest.mark.parametrize("stop", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_a_resumed_training_ends_with_the_same_masks_and_weights(tmp_path, unit, stop):
    # 64 sentences in batches of 4: an epoch has 16 batches, with accumulation over four 4 steps.
    options = {"gradient_accumulation_steps": 4, "bf16": True}
    schedule = SCHEDULE if unit == "step" else ll.schedules.linear(0.8, steps=2)
    make = {"every": 3 if unit == "step" else 1, "unit": unit, "min_density": 0.01}
    whole, first = bert(), Pruning(schedule, **make)
    trainer_for(tmp_path / "whole", whole, [first], **options).train()

    trainer = trainer_for(tmp_path / "parts", bert(), [Pruning(schedule, **make), StopAt(stop)], **options)
    trainer.train()
    assert trainer.state.global_step == stop
    resumed, second = bert(seed=7), Pruning(schedule, **make)
    trainer_for(tmp_path / "parts", resumed, [second], **options).train(resume_from_checkpoint=True)

    assert second.masks == first.masks
    assert second.done == first.done
    for (name, one), (_, other) in zip(whole.state_dict().items(), resumed.state_dict().items(), strict=True):
        assert torch.equal(one, other), name


def test_what_a_checkpoint_remembers_is_taken_up():
    pruning = Pruning(SCHEDULE, every=3)
    record = {"unit": "step", "done": 6, "asked": 0.75, "masks": None}
    pruning.restore(record, None)
    assert pruning.record() == record
    with pytest.raises(ll.LamplighterError, match="pruned by the step, this one by the epoch"):
        Pruning(SCHEDULE, every=3, unit="epoch").restore(record, None)


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **others):
        control.should_training_stop = state.global_step >= self.step


def test_the_masks_of_a_checkpoint_lie_beside_its_weights(tmp_path):
    pruning = Pruning(SCHEDULE, every=4)
    trainer_for(tmp_path, bert(), [pruning], max_steps=9).train()
    assert ll.Masks.load(tmp_path / "checkpoint-8" / FILE) == pruning.masks
    early = ll.Masks.load(tmp_path / "checkpoint-4" / FILE)
    assert early.total_kept > pruning.masks.total_kept
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["lamplighter"]["done"] == 4


@pytest.mark.slow
def test_masks_of_another_folder_are_found_by_name_or_asked_for(tmp_path):
    trainer_for(tmp_path / "here", bert(), [Pruning(SCHEDULE, every=2), StopAt(4)]).train()
    checkpoint = shutil.copytree(tmp_path / "here" / "checkpoint-4", tmp_path / "elsewhere" / "checkpoint-4")

    def again(pruning, **options):
        trainer_for(tmp_path / "there", bert(), [pruning], **options).train(resume_from_checkpoint=str(checkpoint))
        return pruning.masks

    with pytest.raises(ll.LamplighterError, match=r"goes on from step 4, and its masks are not in .*there"):
        again(Pruning(SCHEDULE, every=2))
    given = again(Pruning(SCHEDULE, every=2, masks=ll.Masks.load(checkpoint / FILE)))
    assert given == again(Pruning(SCHEDULE, every=2), resume_from_checkpoint=str(checkpoint))
    # A checkpoint of the same step that another training left in the output folder is not mistaken for it.
    trainer_for(tmp_path / "there", bert(seed=3), [Pruning(SCHEDULE, every=2), StopAt(4)]).train()
    with pytest.raises(ll.LamplighterError, match="its masks are not in"):
        again(Pruning(SCHEDULE, every=2))


def test_the_best_models_masks_are_left_with_the_best_model(tmp_path):
    model, pruning = bert(), Pruning(SCHEDULE, every=2)
    options = {"eval_strategy": "steps", "eval_steps": 4, "load_best_model_at_end": True}
    trainer = trainer_for(tmp_path, model, [pruning, WorseAndWorse()], metric_for_best_model="score", **options)
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-4")
    assert pruning.masks == ll.Masks.load(tmp_path / "checkpoint-4" / FILE)
    weights = {name: model.get_parameter(name).detach() for name in pruning.masks}
    assert {name: int(weight.count_nonzero()) for name, weight in weights.items()} == pruning.masks.kept


class WorseAndWorse(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics, **others):
        metrics["eval_score"] = -state.global_step


@pytest.mark.slow
def test_a_training_without_pruning_may_be_resumed_with_it(tmp_path):
    trainer_for(tmp_path, bert(), [], max_steps=4).train()
    pruning = Pruning(ll.schedules.one_shot(0.5), every=2)
    trainer_for(tmp_path, bert(), [pruning]).train(resume_from_checkpoint=True)
    assert pruning.masks.sparsity == pytest.approx(0.5, abs=1e-3)


def test_averages_are_masked_with_the_model(tmp_path):
    model = bert()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))

    class Average(TrainerCallback):
        def on_step_end(self, args, state, control, model, **others):
            average.update_parameters(model)

    pruning = Pruning(SCHEDULE, every=2, averages=[average])
    trainer_for(tmp_path, model, [Average(), pruning], save_strategy="no").train()
    assert zeros(average.module, pruning.masks)
    assert zeros(model, pruning.masks)
    assert any(bool((average.module.get_parameter(n) != model.get_parameter(n)).any()) for n in pruning.masks)


def test_options_are_those_of_prune(tmp_path):
    pruning = Pruning(
        ll.schedules.one_shot(0.5), every=2, method="uniform", pattern="2:4", include="*.query.weight", score="random"
    )
    trainer_for(tmp_path, bert(), [pruning], max_steps=4, save_strategy="no").train()
    assert list(pruning.masks) == [f"bert.encoder.layer.{i}.attention.self.query.weight" for i in range(2)]
    for mask in pruning.masks.values():
        assert (mask.view(-1, 4).sum(1) == 2).all()


def test_mistakes_are_found_before_the_first_step(tmp_path):
    with pytest.raises(TypeError, match="cannot pass to prune"):
        Pruning(SCHEDULE, every=1, excludes="x")
    with pytest.raises(ll.LamplighterError, match="every is 0"):
        Pruning(SCHEDULE, every=0)
    with pytest.raises(ll.LamplighterError, match="unit is 'steps'"):
        Pruning(SCHEDULE, every=1, unit="steps")
    with pytest.raises(ll.LamplighterError, match=r"schedule is 0\.9"):
        Pruning(0.9, every=1)
    for pruning, message in (
        (Pruning(SCHEDULE, every=1, method="lmap"), "unknown method"),
        (Pruning(SCHEDULE, every=1, include="nowhere.*"), "matches no parameter"),
        (Pruning(lambda step: 90, every=1), "asks for sparsity 90 at step 0"),
        (Pruning(lambda step: 1.0, every=1, min_density=0.1), "densities"),
    ):
        with pytest.raises(ll.LamplighterError, match=message):
            trainer_for(tmp_path, Plain(), [pruning]).train()


def test_a_schedule_that_goes_down_is_an_error(tmp_path):
    pruning = Pruning(lambda step: 0.5 if step < 4 else 0.3, every=2)
    with pytest.raises(ll.LamplighterError, match=r"goes down, from sparsity 0.5 to 0.3 at step 4"):
        trainer_for(tmp_path, Plain(), [pruning], save_strategy="no").train()


def test_a_last_pruning_without_training_after_it_is_told(tmp_path):
    with pytest.warns(ll.LamplighterWarning, match=r"pruned to sparsity 0.5 after the last step, 4"):
        trainer_for(
            tmp_path, Plain(), [Pruning(lambda step: step / 8, every=2)], max_steps=4, save_strategy="no"
        ).train()


@pytest.mark.slow
def test_the_callback_serves_one_training_after_another(tmp_path):
    pruning = Pruning(SCHEDULE, every=2)
    for seed in (0, 1):
        model = bert(seed)
        trainer = trainer_for(tmp_path, model, [pruning], save_strategy="no")
        trainer.train()
        assert {n: int(model.get_parameter(n).count_nonzero()) for n in pruning.masks} == pruning.masks.kept
    before = pruning.masks
    trainer.train()  # the same model once more: what is pruned stays so
    assert pruning.masks == before
    assert zeros(model, before)


def test_sharded_trainings_are_refused():
    from lamplighter.integrations.pruner import refuse_sharded

    with pytest.raises(ll.LamplighterError, match="FSDP shards the weights"):
        refuse_sharded("FSDP")


def test_a_plain_module_will_do(tmp_path):
    model, pruning = Plain(), Pruning(ll.schedules.one_shot(0.75), every=2)
    trainer_for(tmp_path, model, [pruning], max_steps=4, save_strategy="no").train()
    assert pruning.masks.kept == {"out.weight": 32} == {"out.weight": int(model.out.weight.count_nonzero())}
