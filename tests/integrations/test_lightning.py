"""The callback of Lightning's Trainer, in real short trainings."""

import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

import lamplighter as ll
from lamplighter.integrations.lightning import Pruning

pytestmark = [  # Lightning's advice, of which these trainings are in no need
    pytest.mark.filterwarnings("ignore:.*no .val_dataloader.*"),
    pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty.*:UserWarning"),
]
SCHEDULE = ll.schedules.cubic(0.9, steps=8)


def module_of(base):
    """A small network with dropout, so that the random state must go on, too."""

    class Net(base):
        def __init__(self, momentum=0.0):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16), nn.Linear(16, 2))
            self.momentum = momentum

        def training_step(self, batch, index):
            inputs, labels = batch
            return nn.functional.cross_entropy(self.net(inputs), labels)

        def validation_step(self, batch, index):
            self.log("val_loss", self.training_step(batch, index))

        def test_step(self, batch, batch_idx):
            pass

        def configure_optimizers(self):
            if self.momentum:
                return torch.optim.SGD(self.parameters(), lr=0.05, momentum=self.momentum)
            return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.1)

    return Net


Net = module_of(pl.LightningModule)


def net(seed=0, kind=Net, **options):
    torch.manual_seed(seed)
    return kind(**options)


class Batches:
    """Sixteen batches, the same in every epoch: what is resumed may ask for the rest of them."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.batches = [
            (torch.randn(4, 8, generator=generator), torch.randint(2, (4,), generator=generator)) for _ in range(16)
        ]

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


class SeedBySteps(Callback):
    """Dropout by the step: Lightning's checkpoints do not hold the random state."""

    def on_train_batch_start(self, trainer, module, batch, index):
        torch.manual_seed(1000 * trainer.current_epoch + index)


def trainer_for(folder, callbacks, kind=pl, **options):
    settings = {
        "max_steps": 12,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(each, ModelCheckpoint) for each in callbacks),
        "limit_val_batches": 0,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
    }
    seed = [SeedBySteps()] if kind is pl else []
    return kind.Trainer(default_root_dir=folder, callbacks=[*seed, *callbacks], **{**settings, **options})


class Watch(Callback):
    """After each batch, how many pruned weights are not zero."""

    def __init__(self, pruning):
        self.pruning, self.alive = pruning, []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.alive.append(alive(module, self.pruning.masks or {}))


def alive(module, masks):
    return sum(int(module.get_parameter(name).detach()[~mask].count_nonzero()) for name, mask in masks.items())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
        {"precision": "bf16-true"},
        {"momentum": 0.9},
    ],
    ids=["adamw", "bf16, accumulated, clipped", "bf16 weights", "momentum"],
)
def test_pruned_weights_are_zero_after_every_step_and_the_schedule_is_met(tmp_path, options):
    options = dict(options)
    module, pruning = net(momentum=options.pop("momentum", 0.0)), Pruning(SCHEDULE, every=2)
    watch = Watch(pruning)
    trainer_for(tmp_path, [watch, pruning], **options).fit(module, Batches())
    total = pruning.masks.total
    assert pruning.masks.total_kept == total - round(0.9 * total)
    assert alive(module, pruning.masks) == 0
    assert watch.alive == [0] * (12 * options.get("accumulate_grad_batches", 1))


def test_loss_scaling_and_the_steps_it_skips_change_nothing(tmp_path):
    """As in float16 on a GPU: the first scale is so large that its gradients are infinite, and the step is skipped."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
    plugin = MixedPrecision("16-mixed", device="cpu", scaler=scaler)
    module, pruning = net(), Pruning(SCHEDULE, every=2)
    watch = Watch(pruning)
    trainer_for(tmp_path, [watch, pruning], plugins=[plugin], max_steps=24).fit(module, Batches())
    assert scaler.get_scale() != 2.0**127
    assert watch.alive == [0] * 24
    assert pruning.masks.sparsity == pytest.approx(0.9, abs=1e-3)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters())


class Record(Logger):
    """What arrives at a logger."""

    def __init__(self):
        super().__init__()
        self.metrics = []

    name, version = "record", 0

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, dict(metrics)))

    def log_hyperparams(self, params, *others):
        pass


def test_sparsity_and_densities_reach_every_logger(tmp_path):
    pruning, record = Pruning(ll.schedules.one_shot(0.5), every=3), Record()
    trainer = trainer_for(tmp_path, [pruning], logger=[record, CSVLogger(tmp_path)], max_steps=6)
    trainer.fit(net(), Batches())
    sparsities = [metrics["sparsity"] for _, metrics in record.metrics if "sparsity" in metrics and len(metrics) < 4]
    assert sparsities == pytest.approx([0, 0, *[pruning.masks.sparsity] * 4])
    densities = {f"density/{name}": density for name, density in pruning.masks.densities().items()}
    assert [(step, metrics) for step, metrics in record.metrics if densities.items() <= metrics.items()] == [
        (3, {"sparsity": pruning.masks.sparsity, **densities})
    ]
    assert trainer.callback_metrics["sparsity"] == pytest.approx(pruning.masks.sparsity)
    assert "density/net.0.weight" in next(tmp_path.rglob("metrics.csv")).read_text()


class StopAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        trainer.should_stop = trainer.should_stop or self.step <= trainer.global_step < 12


@pytest.mark.parametrize(
    ("make", "every"),
    [
        ({"every": 3}, {"every_n_train_steps": 4}),
        ({"every": 1, "unit": "epoch"}, {"every_n_train_steps": 4}),
        ({"every": 1, "unit": "epoch"}, {"every_n_epochs": 1, "save_on_train_epoch_end": True}),
        ({"every": 1, "unit": "epoch"}, {"every_n_epochs": 1, "save_on_train_epoch_end": False}),
    ],
    ids=["steps", "epochs, saved within", "epochs, saved after", "epochs, saved at validation"],
)
@pytest.mark.parametrize("stop", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_a_resumed_training_ends_with_the_same_masks_and_weights(tmp_path, make, every, stop):
    # With accumulation over four of sixteen batches, an epoch has 4 steps.
    options = {"accumulate_grad_batches": 4, "precision": "bf16-mixed", "limit_val_batches": 2}
    schedule = SCHEDULE if "unit" not in make else ll.schedules.linear(0.8, steps=2)

    def fit(module, pruning, stop=12, ckpt_path=None):
        save = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **every)
        trainer = trainer_for(tmp_path, [pruning, save, StopAt(stop)], **options)
        trainer.fit(module, Batches(), Batches(), ckpt_path=ckpt_path, weights_only=True)

    path = tmp_path / f"step={stop}.ckpt"
    first, second, whole, resumed = Pruning(schedule, **make), Pruning(schedule, **make), net(), net(seed=7)
    fit(whole, first)
    for each in tmp_path.glob("*.ckpt"):
        each.unlink()
    fit(net(), Pruning(schedule, **make), stop=stop)
    fit(resumed, second, ckpt_path=path)
    assert (second.masks == first.masks) is True
    assert second.done == first.done
    for (name, one), (_, other) in zip(whole.state_dict().items(), resumed.state_dict().items(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("average", ["ema", "swa"])
def test_lightnings_own_averages_are_masked(tmp_path, average):
    callback = (
        EMAWeightAveraging(decay=0.5)
        if average == "ema"
        else StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=1)
    )
    module, pruning = net(), Pruning(SCHEDULE, every=2)
    trainer = trainer_for(tmp_path, [callback, pruning], max_steps=-1, max_epochs=2, limit_val_batches=2)
    trainer.fit(module, Batches(), Batches())
    assert alive(module, pruning.masks) == 0  # the module ends as the average
    assert alive(callback._average_model, {}) == 0
    kept = {name: int(module.get_parameter(name).count_nonzero()) for name in pruning.masks}
    assert kept == pruning.masks.kept


def test_the_masks_come_with_the_checkpoint_into_a_test_run(tmp_path):
    save = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    trainer_for(tmp_path, [Pruning(SCHEDULE, every=4), save]).fit(net(), Batches())
    pruning, module = Pruning(SCHEDULE, every=4), net(3)
    trainer_for(tmp_path, [pruning]).test(module, Batches(), ckpt_path=tmp_path / "step=4.ckpt", weights_only=True)
    assert pruning.masks.kept == {n: int(module.get_parameter(n).count_nonzero()) for n in pruning.masks}


def test_the_older_package_is_served_as_well(tmp_path):
    pruning, kind = Pruning(SCHEDULE, every=2), module_of(pytorch_lightning.LightningModule)
    trainer_for(tmp_path, [pruning], kind=pytorch_lightning).fit(module := net(kind=kind), Batches())
    assert alive(module, pruning.masks) == 0
    assert pruning.masks.sparsity == pytest.approx(0.9, abs=1e-3)


def test_two_optimizers_hold_what_they_share_out(tmp_path):
    class Two(Net):
        automatic_optimization = False

        def training_step(self, batch, index):
            loss = super().training_step(batch, index)
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()

        def configure_optimizers(self):
            first, *others = self.net.parameters()
            return torch.optim.SGD([first], lr=0.1, momentum=0.9), torch.optim.AdamW(others)

    # Lightning counts the steps of both: two a batch. What falls between two prunings is due at the next batch.
    module, pruning = net(kind=Two), Pruning(SCHEDULE, every=3)
    watch = Watch(pruning)
    trainer_for(tmp_path, [pruning, watch], max_steps=24).fit(module, Batches())
    assert watch.alive == [0] * 12
    assert pruning.masks.sparsity == pytest.approx(0.9, abs=1e-3)


def test_what_changed_between_two_halves_is_told(tmp_path):
    save = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    trainer_for(tmp_path, [Pruning(SCHEDULE, every=2), save], max_steps=5).fit(net(), Batches())
    with pytest.raises(ll.LamplighterError, match="pruned by the step, this one by the epoch"):
        trainer_for(tmp_path, [Pruning(SCHEDULE, every=2, unit="epoch")]).fit(
            net(), Batches(), ckpt_path=tmp_path / "step=4.ckpt", weights_only=True
        )


def test_sharded_trainings_are_refused(tmp_path):
    trainer = trainer_for(tmp_path, [pruning := Pruning(SCHEDULE, every=2)])
    trainer.strategy.__class__ = type("FSDPStrategy", (type(trainer.strategy),), {})
    with pytest.raises(ll.LamplighterError, match="FSDPStrategy shards the weights"):
        pruning.on_train_start(trainer, net())


TWO = """
import sys
sys.path.insert(0, {folder!r})
from test_lightning import *
from lamplighter.integrations.pruner import fingerprint

generator = torch.Generator().manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(64, 8, generator=generator), torch.arange(64) % 2)
module, pruning = net(), Pruning(SCHEDULE, every=2)
trainer = trainer_for(sys.argv[1], [pruning], strategy="ddp", devices=2)
trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
masks = pruning.masks
with open(f"{{sys.argv[1]}}/{{trainer.global_rank}}.txt", "w") as file:
    print(trainer.global_step, alive(module, masks), masks.total_kept, fingerprint(masks), file=file)
"""


@pytest.mark.slow
def test_two_processes_prune_to_the_same_masks(tmp_path):
    script = tmp_path / "two.py"
    script.write_text(TWO.format(folder=str(Path(__file__).parent)))
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    first, second = ((tmp_path / f"{rank}.txt").read_text() for rank in (0, 1))
    assert first == second
    assert first.startswith("12 0 80 ")  # of 800 weights
