"""Results: which runs belong together, and what their seeds come to."""

import math
import shutil
from dataclasses import replace

import pytest

from lamplighter.experiments.store import find_runs, open_run
from lamplighter.report.results import Cell, collect
from lamplighter.training.settings import Settings
from made_runs import SPEC, make_run, make_runs


def results(root):
    return collect(find_runs(root))


def test_seeds_are_gathered_by_method_and_round(tmp_path):
    pruned = {"lamp": {0: {1: 0.9, 2: 0.8}, 1: {1: 0.92}}, "erk": {1: {1: 0.5}}}
    make_runs(tmp_path, SPEC, {0: 0.95, 1: 0.97}, pruned)
    (found,) = results(tmp_path)
    assert found.methods == ("erk", "lamp")
    assert found.rounds == (1, 2)
    assert found.cell("lamp", 1).values == {0: 90.0, 1: 92.0}
    assert [found.cell(*place).n for place in (("lamp", 1), ("lamp", 2), ("erk", 1))] == [2, 1, 1]
    assert found.cell("erk", 2) is None
    assert found.cell("erk", 0).values == found.cell("lamp", 0).values == {0: 95.0, 1: 97.0}


def test_statistics_are_those_of_a_sample():
    cell = Cell({0: 90.0, 1: 92.0, 2: 97.0})
    assert (cell.n, cell.mean) == (3, 93.0)
    assert cell.std == pytest.approx(math.sqrt((9 + 1 + 16) / 2), rel=1e-12)
    assert Cell({3: 90.0}).std is None
    assert Cell({0: math.inf, 1: 90.0}).std is None
    assert Cell({0: math.inf, 1: 90.0}).mean == math.inf


def test_accuracies_are_in_percent_and_perplexities_as_they_are(tmp_path):
    make_runs(tmp_path / "images", SPEC, {}, {"lamp": {0: {1: 0.9}}})
    make_runs(tmp_path / "text", SPEC, {}, {"lamp": {0: {1: 71.5}}}, metric="perplexity")
    (images,), (text,) = results(tmp_path / "images"), results(tmp_path / "text")
    assert images.cell("lamp", 1).mean == 90.0
    assert text.cell("lamp", 1).mean == 71.5
    assert (images.lower_is_better, text.lower_is_better) == (False, True)


@pytest.mark.parametrize(
    "other",
    [
        replace(SPEC, retrain=Settings(steps=40)),
        replace(SPEC, dense=Settings(steps=500, precision="bf16")),
        replace(SPEC, plan="one-shot"),
        replace(SPEC, recipe="another"),
        replace(SPEC, rate=0.5),
        replace(SPEC, options={"width": 8}),
    ],
)
def test_runs_of_other_settings_are_not_mixed(tmp_path, other):
    make_runs(tmp_path, SPEC, {0: 0.95}, {"lamp": {0: {1: 0.9}}})
    make_runs(tmp_path, other, {0: 0.5}, {"lamp": {1: {1: 0.2}}})
    found = {each.spec.id: each for each in results(tmp_path)}
    assert set(found) == {SPEC.id, other.id}
    assert found[SPEC.id].cell("lamp", 1).values == {0: 90.0}
    assert found[other.id].cell("lamp", 1).values == {1: 20.0}


def test_the_dense_network_is_that_of_the_same_dense_settings(tmp_path):
    longer = replace(SPEC, dense=Settings(steps=5000))
    make_runs(tmp_path, SPEC, {0: 0.95}, {"lamp": {0: {1: 0.9}}})
    make_runs(tmp_path, longer, {0: 0.5}, {"lamp": {0: {1: 0.2}}})
    found = {each.spec.id: each for each in results(tmp_path)}
    assert found[SPEC.id].cell("lamp", 0).mean == 95.0
    assert found[longer.id].cell("lamp", 0).mean == 50.0


def test_how_a_run_was_carried_out_makes_no_group(tmp_path):
    compiled = replace(SPEC, dense=replace(SPEC.dense, compiled=True), retrain=replace(SPEC.retrain, graph=True))
    make_runs(tmp_path, SPEC, {0: 0.95}, {"lamp": {0: {1: 0.9}}})
    make_runs(tmp_path, compiled, {1: 0.93}, {"lamp": {1: {1: 0.8}}})
    (found,) = results(tmp_path)
    assert found.cell("lamp", 1).values == {0: 90.0, 1: 80.0}
    assert found.cell("lamp", 0).values == {0: 95.0, 1: 93.0}


@pytest.mark.parametrize("longer", ["here", "there"])
def test_of_two_copies_of_a_run_the_one_that_got_furthest_counts_once(tmp_path, longer):
    make_runs(tmp_path / "here", SPEC, {}, {"lamp": {0: {1: 0.9}}})
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    make_run(tmp_path / longer, replace(SPEC, method="lamp"), {2: 0.8})
    (found,) = results(tmp_path)
    assert found.cell("lamp", 1).n == found.cell("lamp", 2).n == 1


def test_runs_without_a_finished_round_are_passed_over(tmp_path):
    open_run(tmp_path, replace(SPEC, method="lamp"))
    assert results(tmp_path) == []
    make_run(tmp_path, SPEC.shared, {0: 0.95})
    (found,) = results(tmp_path)
    assert (found.methods, found.rounds) == (("dense",), ())
    assert found.cell("dense", 0).values == {0: 95.0}


def test_lamp_comes_last_and_what_is_new_before_it(tmp_path):
    methods = ("lamp", "mine", "erk", "uniform+", "global", "uniform", "er")
    make_runs(tmp_path, SPEC, {}, {method: {0: {1: 0.9}} for method in methods})
    (found,) = results(tmp_path)
    assert found.methods == ("global", "uniform", "uniform+", "er", "erk", "mine", "lamp")


def test_longer_training_comes_first(tmp_path):
    for steps in (40, 4000):
        make_runs(tmp_path, replace(SPEC, retrain=Settings(steps=steps)), {}, {"lamp": {0: {1: 0.9}}})
    assert [each.spec.retrain.steps for each in results(tmp_path)] == [4000, 40]
