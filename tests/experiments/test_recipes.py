"""The recipes are the paper's: their settings, and each runs from end to end."""

import pytest
import torch

from lamplighter.data.prepare import load, prepare
from lamplighter.errors import LamplighterError
from lamplighter.experiments.recipes import METHODS, RECIPES, find_recipe
from lamplighter.models import MODELS
from lamplighter.pruning import allocate

NAMES = [
    "vgg16-cifar10", "resnet20-cifar10", "densenet121-cifar10", "efficientnet-b0-cifar10", "vgg16-svhn",
    "vgg16-cifar100", "resnet34-restricted-imagenet", "vgg16-cifar10-oneshot", "vgg16-cifar10-rewind",
    "conv6-cifar10-snip", "vgg16-cifar10-extensive", "transformer-xl-ptb", "transformer-xl-wikitext2",
    "resnet50-imagenet-profile",
]  # fmt: skip
# The paper's table of optimization details; ResNet-20, which it leaves out, as VGG-16.
STEPS = {
    "vgg16-cifar10": (50_000, 40_000, 100),
    "resnet20-cifar10": (50_000, 40_000, 100),
    "densenet121-cifar10": (80_000, 60_000, 100),
    "efficientnet-b0-cifar10": (50_000, 40_000, 100),
    "vgg16-svhn": (40_000, 30_000, 100),
    "vgg16-cifar100": (60_000, 50_000, 100),
    "resnet34-restricted-imagenet": (80_000, 80_000, 128),
    "vgg16-cifar10-oneshot": (50_000, 40_000, 100),
    "conv6-cifar10-snip": (0, 50_000, 128),
    "transformer-xl-ptb": (200_000, 50_000, 20),
    "transformer-xl-wikitext2": (200_000, 50_000, 20),
}
ON_CIFAR10 = [name for name in NAMES if "cifar10" in name and "cifar100" not in name]


def test_every_experiment_has_its_name():
    assert list(RECIPES) == NAMES


@pytest.mark.parametrize(("name", "steps"), STEPS.items())
def test_iterations_and_batches_are_those_of_the_paper(name, steps):
    spec = find_recipe(name).spec
    assert (spec.dense.steps, spec.retrain.steps, spec.retrain.batch) == steps
    assert (spec.retrain.optimizer, spec.retrain.lr, spec.retrain.weight_decay) == ("adamw", 3e-4, 0.01)


def test_the_other_optimizers_are_those_of_the_paper():
    rewind, sgd = find_recipe("vgg16-cifar10-rewind").spec, find_recipe("vgg16-cifar10-extensive").spec
    assert (rewind.dense.optimizer, rewind.dense.lr, rewind.dense.weight_decay) == ("adam", 3e-4, 0)
    assert (sgd.dense.optimizer, sgd.dense.lr, sgd.dense.momentum, sgd.dense.weight_decay) == ("sgd", 0.1, 0.9, 1e-4)
    assert (sgd.dense.batch, sgd.dense.drops, sgd.dense.steps) == (64, (0.5, 0.75), 160 * (50_000 // 64))


def test_scale_shortens_all_trainings_alike():
    spec = find_recipe("vgg16-cifar10-rewind", 0.05).spec
    assert (spec.dense.steps, spec.retrain.steps, spec.rewind_step, spec.dense.warmup) == (2500, 2450, 50, 25)
    with pytest.raises(LamplighterError, match="scale is 0"):
        find_recipe("vgg16-cifar10", 0)
    with pytest.raises(LamplighterError, match="scale is 2"):
        find_recipe("vgg16-cifar10", 2)


def test_an_unknown_recipe_is_told_its_nearest():
    with pytest.raises(LamplighterError, match="vgg16-cifar10"):
        find_recipe("vgg-cifar10")


def test_last_rounds_are_the_last_columns_of_the_papers_tables():
    last = {name: round(100 * find_recipe(name).spec.density(find_recipe(name).rounds[-1]), 2) for name in NAMES}
    columns = {"vgg16-cifar10": 0.12, "resnet20-cifar10": 0.38, "densenet121-cifar10": 0.74, "vgg16-cifar100": 0.24}
    assert {name: last[name] for name in columns} == columns
    assert last["transformer-xl-ptb"] == 3.52
    assert last["resnet50-imagenet-profile"] == 20.97


def test_transformer_xl_prunes_the_weights_that_the_paper_counts():
    with torch.device("meta"):
        model = MODELS["transformer-xl"](10)
    spec = find_recipe("transformer-xl-ptb").spec
    model = model.to_empty(device="cpu").requires_grad_(False)
    for parameter in model.parameters():
        parameter.fill_(1.0)
    assert sum(allocate(model, 0.0, include=list(spec.include)).values()) == 7_569_600


@pytest.mark.parametrize("name", ON_CIFAR10)
def test_recipes_on_cifar10_run_from_end_to_end(name, tiny, run_tiny, images, tmp_path):
    recipe = tiny(name)
    rounds = recipe.rounds[:2]
    methods = METHODS if name == "vgg16-cifar10" else ("lamp", "erk")
    runs = run_tiny(recipe, images, tmp_path, methods=methods, rounds=rounds)
    pruned = [run for run in runs if run.spec.method != "dense"]
    assert [run.spec.method for run in pruned] == list(methods)
    for run in pruned:
        assert [record.round for record in run.records] == list(rounds)
        for record in run.records:
            assert record.kept == record.total - round((1 - 0.8**record.round) * record.total)
            assert record.kept == sum(record.budgets.values())
            assert record.metric == "accuracy"
            assert 0 <= record.value <= 1
            assert record.steps == 2


@pytest.mark.parametrize("name", ["transformer-xl-ptb", "transformer-xl-wikitext2"])
def test_language_models_run_from_end_to_end(name, tiny, run_tiny, tmp_path):
    recipe = tiny(name)
    line = "one two three four five six seven eight nine ten eleven"
    source = tmp_path / "source"
    source.mkdir()
    for split, lines in (("train", 60), ("valid", 5), ("test", 10)):
        (source / f"{recipe.spec.dataset}.{split}.txt").write_text(f"{line}\n" * lines)
    with pytest.warns(UserWarning, match="not the complete dataset"):
        prepare(recipe.spec.dataset, source, tmp_path / "prepared")
    data = load(recipe.spec.dataset, tmp_path / "prepared")
    runs = run_tiny(recipe, data, tmp_path)
    assert [record.metric for run in runs for record in run.records] == ["perplexity"] * 5
    assert all(record.value > 1 for run in runs for record in run.records)
    assert len({record.total for run in runs for record in run.records}) == 1


def test_svhn_and_cifar100_run_from_end_to_end(tiny, run_tiny, write_images, tmp_path):
    for name, columns in {"vgg16-svhn": ("image", "label"), "vgg16-cifar100": ("img", "fine_label")}.items():
        recipe = tiny(name)
        source = tmp_path / name
        for split, count in (("train", 64), ("test", 20)):
            labels = [place % 10 for place in range(count)]
            path = source / f"{split}-00000-of-00001.parquet"
            write_images(path, labels, image=columns[0], label=columns[1])
        with pytest.warns(UserWarning, match="not the complete dataset"):
            prepare(recipe.spec.dataset, source, tmp_path / "prepared")
        runs = run_tiny(recipe, load(recipe.spec.dataset, tmp_path / "prepared"), tmp_path / "runs")
        assert [len(run.records) for run in runs] == [1, 2, 2]


def test_restricted_imagenet_runs_from_end_to_end(tiny, run_tiny, write_images, tmp_path):
    recipe = tiny("resnet34-restricted-imagenet", dense=1, retrain=1)
    groups = [151, 281, 30, 33, 80, 365, 389, 118, 300]
    for split, count in (("train", 18), ("validation", 9)):
        labels = [groups[place % 9] for place in range(count)]
        write_images(tmp_path / "source" / f"{split}-00000-of-00001.parquet", labels, image="image", size=(40, 50))
    with pytest.warns(UserWarning, match="not the complete dataset"):
        prepare("restricted-imagenet", tmp_path / "source", tmp_path / "prepared")
    data = load("restricted-imagenet", tmp_path / "prepared")
    runs = run_tiny(recipe, data, tmp_path, methods=("lamp",), rounds=(1,))
    assert [len(run.records) for run in runs] == [1, 1]


def test_the_profile_prunes_a_network_that_comes_trained(tiny, run_tiny, tmp_path):
    from safetensors.torch import save_file

    recipe = tiny("resnet50-imagenet-profile")
    torch.manual_seed(0)
    save_file(MODELS["resnet50"](1000, **recipe.spec.options).state_dict(), tmp_path / "model.safetensors")
    runs = run_tiny(recipe, tmp_path / "model.safetensors", tmp_path, rounds=recipe.rounds)
    assert [[record.round for record in run.records] for run in runs] == [[1, 4, 7]] * 2
    assert {record.metric for run in runs for record in run.records} == {"none"}
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(LamplighterError, match="does not hold the weights of resnet50"):
        run_tiny(recipe, tmp_path / "other.safetensors", tmp_path / "again", rounds=recipe.rounds)
