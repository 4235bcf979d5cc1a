"""Captions: every group of runs says what it is, and no two say the same."""

from dataclasses import replace

import pytest

from lamplighter.experiments.recipes import find_recipe
from lamplighter.experiments.store import find_runs
from lamplighter.report.captions import headings, heads, notes, seeds, stems, training
from lamplighter.report.results import Results, collect
from lamplighter.training.settings import Settings
from made_runs import SPEC, make_runs


def of(*specs):
    return [Results(spec, {}, {}) for spec in specs]


def test_a_heading_says_recipe_steps_and_precision():
    bf16 = find_recipe("vgg16-cifar10", 0.05, "bf16").spec
    assert headings(of(SPEC, bf16)) == ["mine: 500 + 400 steps, fp32", "vgg16-cifar10: 2,500 + 2,000 steps, bf16"]
    assert headings(of(find_recipe("conv6-cifar10-snip").spec)) == ["conv6-cifar10-snip: 50,000 steps, fp32"]
    profile = find_recipe("resnet50-imagenet-profile").spec
    assert headings(of(profile)) == ["resnet50-imagenet-profile: not retrained"]
    assert stems(of(profile)) == ["resnet50-imagenet-profile"]


def test_groups_of_one_recipe_also_say_what_else_tells_them_apart():
    narrow = replace(SPEC, options={"width": 8}, retrain=Settings(steps=400, drops=(0.5, 0.75), compiled=True))
    assert headings(of(SPEC, narrow, replace(SPEC, recipe="other", rate=0.5))) == [
        "mine: 500 + 400 steps, fp32, retrain.drops none",
        "mine: 500 + 400 steps, fp32, retrain.drops 0.5 0.75, options.width 8",
        "other: 500 + 400 steps, fp32",
    ]


def test_file_names_are_recipe_steps_and_precision_and_differ():
    mixed = replace(SPEC, retrain=Settings(steps=400, precision="bf16"))
    plain, narrow, both = stems(of(SPEC, replace(SPEC, rate=0.5), mixed))
    assert both == "mine-500-400-fp32-bf16"
    assert plain.startswith("mine-500-400-fp32-")
    assert narrow.startswith("mine-500-400-fp32-")
    assert plain != narrow
    assert stems(of(SPEC)) == ["mine-500-400-fp32"]


@pytest.mark.parametrize(
    ("recipe", "scale", "said"),
    [
        ("vgg16-cifar10", 1.0, "50,000 steps, then 40,000 after each pruning (the full length)"),
        ("vgg16-cifar10-oneshot", 0.05, "2,500 steps, then 2,000 after the one pruning (0.05 of the full length)"),
        ("vgg16-cifar10-rewind", 1.0, "50,000 steps, then 49,000 after each pruning and rewinding (the full length)"),
        ("conv6-cifar10-snip", 0.5, "25,000 steps after pruning the untrained network (0.5 of the full length)"),
    ],
)
def test_training_is_described_by_plan_and_scale(recipe, scale, said):
    assert training(find_recipe(recipe, scale).spec).startswith(f"{said}, batches of ")


def test_training_of_a_recipe_of_ones_own_claims_no_full_length():
    assert training(SPEC) == "500 steps, then 400 after each pruning, batches of 100, adamw, fp32"
    assert training(find_recipe("resnet50-imagenet-profile").spec) == "pruned once, not retrained"


@pytest.mark.parametrize(
    ("pruned", "said"),
    [
        ({"lamp": {0: {1: 0.9}}}, "one seed"),
        ({"lamp": {0: {1: 0.9}, 1: {1: 0.9}}}, "mean ± sample standard deviation over 2 seeds"),
        (
            {"lamp": {0: {1: 0.9, 2: 0.8}, 1: {1: 0.9}}, "erk": {0: {1: 0.9}, 1: {1: 0.9}, 2: {1: 0.9}}},
            "mean ± sample standard deviation over 1 to 3 seeds",
        ),
    ],
)
def test_seeds_are_counted_over_pruned_networks(tmp_path, pruned, said):
    make_runs(tmp_path, SPEC, dict.fromkeys(range(5), 0.95), pruned)
    (found,) = collect(find_runs(tmp_path))
    assert seeds(found) == said


def test_notes_say_hardware_and_hours_of_each_network(tmp_path):
    make_runs(tmp_path, SPEC, {0: 0.95}, {"lamp": {0: {1: 0.9}}}, seconds=7200.0, together=4)
    make_runs(tmp_path, SPEC, {}, {"erk": {0: {1: 0.9}}}, seconds=1800.0, together=1, device="a processor")
    (found,) = collect(find_runs(tmp_path))
    assert notes(found, with_paper=False)[-1] == (
        "Tested after the last step of every round, on NVIDIA H200 and a processor, 4 networks side by side, "
        "1.5 h of training."
    )


def test_heads_are_the_densities_of_the_rounds():
    assert heads(Results(SPEC, {}, {}), (0, 3, 12, 30)) == ["100", "51.2", "6.87", "0.12"]
    assert heads(Results(replace(SPEC, rate=0.5), {}, {}), (1, 3)) == ["50.0", "12.5"]
