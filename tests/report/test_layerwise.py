"""Layerwise figures: the layers in the network's order, and what is left in each."""

import math
from dataclasses import replace

import pytest

from lamplighter.experiments.recipes import find_recipe
from lamplighter.experiments.store import find_runs
from lamplighter.models import MODELS
from lamplighter.report import layerwise, peaks
from lamplighter.report.figures import rendered
from lamplighter.report.layerwise import kept, layer_shapes, reached, survival
from lamplighter.report.peaks import kernel_of
from lamplighter.report.results import collect
from lamplighter.targets import find_layers
from made_runs import SIZES, SPEC, make_run, make_runs

LAYERS = list(SIZES)


def only(root):
    (found,) = collect(find_runs(root))
    return found


def make(root, rounds, methods=("lamp",), spec=SPEC):
    make_runs(root, spec, {}, {method: {0: dict.fromkeys(rounds, 0.5)} for method in methods})
    return only(root)


def test_layers_stand_in_the_networks_order_not_in_that_of_their_names():
    found = {layer.name: layer.weight.numel() for layer in find_layers(MODELS["vgg16"](10, width=4))}
    assert next(iter(found)) == "classifier.weight"
    shapes = layer_shapes(replace(SPEC, model="vgg16", options={"width": 4}), found)
    assert list(shapes) == [*(name for name in found if name != "classifier.weight"), "classifier.weight"]
    assert shapes["features.0.weight"] == (4, 3, 3, 3)


def test_shapes_are_those_of_the_models_options():
    wide, narrow = SPEC, replace(SPEC, options={"width": 8})
    shapes = [layer_shapes(replace(spec, model="vgg16"), {"features.0.weight": 1}) for spec in (wide, narrow)]
    assert shapes == [{"features.0.weight": (64, 3, 3, 3)}, {"features.0.weight": (8, 3, 3, 3)}]


def test_layers_that_no_model_here_has_come_as_they_are_recorded():
    assert layer_shapes(SPEC, SIZES) == {"first.weight": (), "last.weight": ()}
    assert layer_shapes(replace(SPEC, model="vgg16"), {"b": 1, "classifier.weight": 2}) == {
        "classifier.weight": (10, 512),
        "b": (),
    }


def test_what_is_left_is_averaged_over_seeds(tmp_path):
    for seed, first in enumerate((100, 300)):
        budgets = {3: {"first.weight": first, "last.weight": 5120 - first}}
        make_run(tmp_path, replace(SPEC, method="lamp", seed=seed), {3: 0.5}, budgets=budgets)
    found = only(tmp_path)
    assert kept(found, "lamp", 3, LAYERS) == [200, 4920]
    assert survival(found, "lamp", 3, LAYERS) == [20, pytest.approx(100 * 4920 / 9000)]


def test_the_rounds_shown_are_the_papers_densities(tmp_path):
    rounds = layerwise.SURVIVAL_ROUNDS, layerwise.COUNT_ROUNDS, peaks.ROUNDS
    assert [[f"{100 * SPEC.density(index):.3g}" for index in each] for each in rounds] == [
        ["51.2", "26.2", "13.4", "6.87", "3.52"],
        ["3.52", "1.8", "0.922", "0.472", "0.242"],
        ["80", "41", "21"],
    ]
    found = make(tmp_path, range(1, 19))
    assert reached(found, layerwise.SURVIVAL_ROUNDS) == [3, 6, 9, 12, 15]
    assert reached(found, layerwise.COUNT_ROUNDS) == [15, 18]


def test_above_survival_below_counts_a_column_for_each_method(tmp_path):
    figure = layerwise.layerwise(make(tmp_path, range(1, 28), ("lamp", "erk", "global", "uniform")), "title")
    assert [axes.get_title() for axes in figure.axes] == ["global", "erk", "lamp", "", "", ""]
    assert [len(axes.lines) for axes in figure.axes] == [5] * 6
    assert figure.axes[0].lines[0].get_ydata().tolist() == pytest.approx([51.2, 51.2])
    assert figure.axes[3].lines[4].get_ydata().tolist() == [2, 22]  # 0.24 % of 1,000 and of 9,000
    assert [text.get_text() for text in figure.axes[2].get_legend().get_texts()] == [
        *("51.2 %", "26.2 %", "13.4 %", "6.87 %", "3.52 %"),
    ]
    looks = {(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}
    assert len({color for color, _ in looks}) == len({marker for _, marker in looks}) == 5


def test_layers_that_are_not_pruned_are_not_shown(tmp_path):
    make_run(tmp_path, SPEC.shared, {0: 0.9}, sizes={"embedding.weight": 500, **SIZES})
    figure = layerwise.layerwise(make(tmp_path, range(1, 10)), "title")
    assert len(figure.axes[0].lines[0].get_xdata()) == len(SIZES)


def test_a_row_without_records_is_left_out(tmp_path):
    figure = layerwise.layerwise(make(tmp_path, range(1, 10)), "title")
    assert [axes.get_ylabel() for axes in figure.axes] == ["of the layer survives (%)"]


@pytest.mark.parametrize(("emptied", "scale"), [(True, "symlog"), (False, "log")])
def test_emptied_layers_show_at_zero(tmp_path, emptied, scale):
    budgets = {15: {"first.weight": 0 if emptied else 2, "last.weight": 350}}
    make_run(tmp_path, replace(SPEC, method="lamp"), {15: 0.5}, budgets=budgets)
    counts = layerwise.layerwise(only(tmp_path), "title").axes[1]
    assert counts.get_yscale() == scale
    low, high = counts.get_ylim()
    assert all(low <= count < high for count in counts.lines[0].get_ydata())


@pytest.mark.parametrize("count", [2, 14, 20, 36, 82, 121])
def test_the_first_and_the_last_layer_are_numbered_and_labels_are_few(count):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    layerwise.layer_axis(axes, count)
    ticks = axes.get_xticks().tolist()
    assert (ticks[0], ticks[-1]) == (1, count)
    assert len(ticks) <= 14
    assert len(set(ticks)) == len(ticks)


@pytest.fixture(scope="module")
def resnet50():
    """Layer -> shape, in the order of records."""
    return {layer.name: tuple(layer.weight.shape) for layer in find_layers(MODELS["resnet50"](1000, width=8))}


def test_kernels_are_told_by_shape_and_else_by_torchvisions_names(resnet50):
    kinds = {name: kernel_of(name, shape) for name, shape in resnet50.items()}
    assert sorted(kinds.values()).count("3x3") == 16
    assert sorted(kinds.values()).count("1x1") == 36
    assert {name for name, kind in kinds.items() if kind == "other"} == {"conv1.weight", "fc.weight"}
    assert {name: kernel_of(name, ()) for name in resnet50} == kinds


def test_peaks_mark_the_kernels_of_every_layer(tmp_path, resnet50):
    recipe = find_recipe("resnet50-imagenet-profile")
    sizes = {name: math.prod(shape) for name, shape in resnet50.items()}
    for method in recipe.methods:
        make_run(tmp_path, replace(recipe.spec, method=method), dict.fromkeys(recipe.rounds, 0.0), sizes=sizes)
    figure = peaks.profile(only(tmp_path), "title")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["global", "erk", "lamp"]
    whole, ones, threes, others = figure.axes[0].lines[:4]
    assert len(whole.get_xdata()) == 54
    assert [len(line.get_xdata()) for line in (ones, threes, others)] == [36, 16, 2]
    assert others.get_xdata().tolist() == [1, 54]
    assert threes.get_xdata().tolist()[:2] == [3, 7]
    assert len(figure.axes[0].lines) == 3 * 4
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [*(f"{p} % of all weights" for p in ("80.0", "41.0", "21.0")), "1x1", "3x3", "other"]
    assert rendered(figure, "pdf").startswith(b"%PDF")
