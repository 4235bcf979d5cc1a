"""A run's name follows from what was decided, and from nothing else."""

from dataclasses import replace

import pytest

from lamplighter.errors import LamplighterError
from lamplighter.experiments.recipes import RECIPES, find_recipe
from lamplighter.experiments.spec import Spec
from lamplighter.training.settings import Settings

# Names that runs already have: whatever is added to Spec or Settings, these stay.
GOLDEN = {
    "vgg16-cifar10": "lamp-3-4dbbd47ddf",
    "vgg16-cifar10-rewind": "lamp-3-b00d0b7908",
    "conv6-cifar10-snip": "lamp-3-544b22fdc2",
    "transformer-xl-ptb": "lamp-3-790c78f564",
}


def spec_of(name="vgg16-cifar10", **changes):
    return replace(find_recipe(name).spec, method="lamp", seed=3, **changes)


@pytest.mark.parametrize(("name", "expected"), GOLDEN.items())
def test_the_names_of_runs_made_before_stay(name, expected):
    assert spec_of(name).id == expected


def test_every_decision_changes_the_name():
    spec = spec_of()
    changed = [
        replace(spec, method="erk"), replace(spec, seed=4), replace(spec, model="resnet20"),
        replace(spec, plan="one-shot"), replace(spec, score="random"), replace(spec, rate=0.3),
        replace(spec, rewind_step=7), replace(spec, include=("*.weight",)), replace(spec, options={"width": 8}),
        replace(spec, dense=replace(spec.dense, steps=1)), replace(spec, retrain=replace(spec.retrain, lr=1e-3)),
        replace(spec, retrain=replace(spec.retrain, precision="bf16")), replace(spec, recipe="other"),
    ]  # fmt: skip
    assert len({each.id for each in [spec, *changed]}) == 1 + len(changed)


@pytest.mark.parametrize("execution", ["compiled", "autotune", "graph"])
def test_how_a_run_is_carried_out_does_not_change_its_name(execution):
    spec = spec_of()
    assert replace(spec, retrain=replace(spec.retrain, **{execution: True})).id == spec.id


def test_a_setting_at_its_default_does_not_enter_the_name():
    spec = spec_of()
    assert replace(spec, rate=0.2, dense=replace(spec.dense, momentum=0.9)).id == spec.id


def test_methods_share_the_dense_run_of_their_seed():
    lamp = spec_of()
    assert lamp.shared == replace(lamp, method="erk").shared
    assert lamp.shared.id != replace(lamp, seed=4).shared.id
    assert lamp.shared.id == replace(lamp, retrain=replace(lamp.retrain, steps=5)).shared.id


@pytest.mark.parametrize("name", RECIPES)
def test_a_spec_survives_json(name):
    spec = find_recipe(name, 0.05).spec
    assert Spec.from_json(spec.to_json()) == spec


def test_a_spec_of_another_version_is_refused():
    data = spec_of().to_json() | {"flavour": "new"}
    with pytest.raises(LamplighterError, match="flavour"):
        Spec.from_json(data)


def test_densities_are_powers_of_what_survives_a_round():
    spec = Spec("r", "m", "d", Settings(steps=1), Settings(steps=1))
    assert [round(100 * spec.density(t), 2) for t in (0, 1, 12, 20, 30)] == [100, 80, 6.87, 1.15, 0.12]
