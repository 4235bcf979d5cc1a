"""Trade-off curves: means, bands of one standard deviation, and which runs are set against each other."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lamplighter.experiments.store import find_runs
from lamplighter.report.figures import rendered
from lamplighter.report.results import collect
from lamplighter.report.tradeoff import counterpart, curve, iteration, shared, tradeoff
from lamplighter.training.settings import Settings
from made_runs import SPEC, make_runs

ONESHOT = replace(SPEC, recipe="mine-oneshot", plan="one-shot")
PRUNED = {"lamp": {0: {1: 0.9, 2: 0.8}, 1: {1: 0.92, 2: 0.7}}, "erk": {0: {1: 0.6}}}


def results(root):
    return {each.spec.recipe: each for each in collect(find_runs(root))}


def lines(axes):
    return {line.get_label(): line.get_ydata().tolist() for line in axes.lines if not line.get_label().startswith("_")}


def test_curves_are_means_over_density_from_the_dense_network_on(tmp_path):
    make_runs(tmp_path, SPEC, {0: 0.94, 1: 0.96}, PRUNED)
    axes = tradeoff(results(tmp_path)["mine"], "title", "note").axes[0]
    assert lines(axes) == {"lamp": pytest.approx([95, 91, 75]), "erk": pytest.approx([95, 60])}
    drawn = {line.get_label(): line.get_xdata().tolist() for line in axes.lines}
    assert drawn["lamp"] == pytest.approx([1, 0.8, 0.64])
    assert axes.get_xscale() == "log"
    assert axes.xaxis_inverted()
    assert axes.get_ylabel() == "test accuracy (%)"


def test_bands_reach_one_sample_standard_deviation_to_either_side(tmp_path):
    make_runs(tmp_path, SPEC, {0: 0.94, 1: 0.96}, {"lamp": PRUNED["lamp"]})
    (band,) = tradeoff(results(tmp_path)["mine"], "title", "note").axes[0].collections
    corners = band.get_paths()[0].vertices
    at_last = corners[np.isclose(corners[:, 0], 0.64), 1]
    assert {round(value, 6) for value in at_last} == {round(75 + sign * math.sqrt(50), 6) for sign in (-1, 1)}


def test_no_percentage_below_0_or_above_100_is_shown(tmp_path):
    make_runs(tmp_path, SPEC, {}, {"lamp": {0: {1: 1.0, 2: 0.0}, 1: {1: 0.9, 2: 0.5}}})
    assert tradeoff(results(tmp_path)["mine"], "title", "note").axes[0].get_ylim() == (0, 100)


def test_networks_that_diverged_are_left_out_of_a_curve(tmp_path):
    pruned = {"lamp": {0: {1: 71.0, 2: math.inf}, 1: {1: math.nan, 2: math.inf}}}
    make_runs(tmp_path, SPEC, {}, pruned, metric="perplexity")
    found = curve(results(tmp_path)["mine"], "lamp", (1, 2))
    assert (found.densities, found.values) == ([0.8], [[71.0]])


def test_a_method_that_always_diverged_is_drawn_without_a_line(tmp_path):
    pruned = {"lamp": {0: {1: 71.0}}, "erk": {0: {1: math.nan}}}
    make_runs(tmp_path, SPEC, {}, pruned, metric="perplexity")
    make_runs(tmp_path, ONESHOT, {}, {"lamp": {0: {1: math.inf}}, "erk": {0: {1: 70.0}}}, metric="perplexity")
    found = results(tmp_path)
    figure = tradeoff(found["mine"], "title", "note")
    assert lines(figure.axes[0]) == {"erk": [], "lamp": [71.0]}
    assert rendered(figure, "png").startswith(b"\x89PNG")
    assert shared(found["mine"], found["mine-oneshot"]) == {}


def test_without_dense_runs_a_curve_begins_at_its_first_round(tmp_path):
    make_runs(tmp_path, replace(SPEC, plan="untrained"), {}, PRUNED)
    axes = tradeoff(results(tmp_path)["mine"], "title", "note").axes[0]
    assert axes.get_xticklabels()[0].get_text() == "80.0"


def test_one_shot_runs_of_the_same_network_data_and_training_are_the_counterpart(tmp_path):
    make_runs(tmp_path, SPEC, {}, PRUNED)
    make_runs(tmp_path, ONESHOT, {}, {"lamp": {0: {2: 0.7}}})
    found = results(tmp_path)
    assert counterpart(found["mine"], list(found.values())) is found["mine-oneshot"]
    assert counterpart(found["mine-oneshot"], list(found.values())) is None
    assert shared(found["mine"], found["mine-oneshot"]) == {"lamp": [2]}


@pytest.mark.parametrize(
    "other",
    [
        replace(ONESHOT, retrain=Settings(steps=399)),
        replace(ONESHOT, dense=Settings(steps=500, precision="bf16")),
        replace(ONESHOT, dataset="svhn"),
        replace(ONESHOT, model="another"),
        replace(ONESHOT, plan="rewind"),
    ],
)
def test_runs_that_were_trained_otherwise_are_no_counterpart(tmp_path, other):
    make_runs(tmp_path, SPEC, {}, PRUNED)
    make_runs(tmp_path, other, {}, PRUNED)
    found = results(tmp_path)
    assert counterpart(found["mine"], list(found.values())) is None


@pytest.mark.parametrize(("rounds", "gain"), [((19, 20, 21), "+2.00 at 1.15 %"), ((17, 18), "+2.00 at 1.80 %")])
def test_iteration_has_a_panel_for_each_method_of_both_and_says_what_it_gains(tmp_path, rounds, gain):
    for spec, offset in ((SPEC, 0.02), (ONESHOT, 0.0)):
        values = {index: 0.5 + offset * (index in (18, 20)) for index in rounds}
        make_runs(tmp_path, spec, {}, {"lamp": {0: values, 1: values}, "erk": {0: values}})
    make_runs(tmp_path, SPEC, {}, {"global": {0: dict.fromkeys(rounds, 0.1)}})
    found = results(tmp_path)
    figure = iteration(found["mine"], found["mine-oneshot"], "title")
    assert [axes.get_title() for axes in figure.axes] == [f"erk\n{gain}", f"lamp\n{gain}"]
    first, second = figure.axes[1].lines[:2]
    assert max(first.get_ydata()) == 52
    assert set(second.get_ydata()) == {50}
    assert rendered(figure, "png").startswith(b"\x89PNG")
