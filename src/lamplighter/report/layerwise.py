"""Where the surviving weights are: layer by layer, for several densities of the whole network."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from lamplighter.experiments.spec import Spec
from lamplighter.models import MODELS
from lamplighter.report.figures import PRINT, percent, set_heading
from lamplighter.report.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHODS = ("global", "erk", "lamp")  # those of the paper's figures, in its order
SURVIVAL_ROUNDS = (3, 6, 9, 12, 15)  # 51.2, 26.2, 13.4, 6.87 and 3.52 % of the weights
COUNT_ROUNDS = (15, 18, 21, 24, 27)  # 3.52, 1.80, 0.92, 0.47 and 0.24 %
# From the densest network to the sparsest, as in the paper: from light to dark, and told apart by marker as well.
_SHADES = ("#c2c2c2", "#9a9a9a", "#6f6f6f", "#424242", "#000000")
_MARKERS = ("o", "s", "^", "D", "v")


def layer_shapes(spec: Spec, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The layers from the network's input to its output, with the shapes of their weights.

    Records name layers in natural order of their names, where `classifier` stands before `features`. A layer of a
    network that is not known here keeps that order, and has no shape.
    """
    import torch  # noqa: PLC0415

    if spec.model not in MODELS:
        return dict.fromkeys(sizes, ())
    make: Any = MODELS[spec.model]
    with torch.device("meta"):
        found = {name: tuple(weight.shape) for name, weight in make(10, **spec.options).named_parameters()}
    return {name: found[name] for name in found if name in sizes} | {name: () for name in sizes if name not in found}


def kept(results: Results, method: str, index: int, layers: Sequence[str]) -> list[float]:
    """Weights left in each layer, averaged over seeds."""
    records = results.records(method, index).values()
    return [fmean(record.budgets[name] for record in records) for name in layers]


def survival(results: Results, method: str, index: int, layers: Sequence[str]) -> list[float]:
    """Percent of each layer that is left, averaged over seeds."""
    sizes = next(iter(results.records(method, index).values())).sizes
    counts = kept(results, method, index, layers)
    return [100 * count / sizes[name] for name, count in zip(layers, counts, strict=True)]


def reached(results: Results, rounds: Sequence[int]) -> list[int]:
    """Those of the rounds that any of the figure's methods has finished."""
    return [index for index in rounds if any(results.records(method, index) for method in METHODS)]


def layerwise(results: Results, title: str) -> "Figure":
    """Above, how much of each layer survives; below, how many weights that is, at sparser densities."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    methods = methods_shown(results)
    kinds = [(reached(results, SURVIVAL_ROUNDS), survival), (reached(results, COUNT_ROUNDS), kept)]
    kinds = [(rounds, measure) for rounds, measure in kinds if rounds]
    layers = list(layer_shapes(results.spec, pruned_sizes(results)))
    with mpl.rc_context(PRINT):
        width = min(5.4, max(2.7, 0.06 * len(layers)))
        figure = Figure(figsize=(width * len(methods) + 1.9, 2.6 * len(kinds) + 0.7), layout="constrained")
        panels = figure.subplots(len(kinds), len(methods), sharex=True, sharey="row", squeeze=False)
        for row, (rounds, measure) in zip(panels, kinds, strict=True):
            for axes, method in zip(row, methods, strict=True):
                for place, index in enumerate(rounds):
                    if results.records(method, index):
                        look = shade(place, len(rounds), len(layers))
                        axes.plot(range(1, len(layers) + 1), measure(results, method, index, layers), **look)
            _legend(row[-1], [percent(results.spec.density(index)) for index in rounds], len(layers))
            if measure is survival:
                _survival_axis(row[0])
            else:
                _count_axis(row)
        for axes, method in zip(panels[0], methods, strict=True):
            axes.set_title(method, fontsize=10)
        for axes in panels[-1]:
            layer_axis(axes, len(layers))
        set_heading(figure, title)
    return figure


def methods_shown(results: Results) -> list[str]:
    """Those of the paper's figures that have run."""
    return [method for method in METHODS if method in results.pruned]


def pruned_sizes(results: Results) -> dict[str, int]:
    """Layer -> weights, of the layers that are pruned: what counts in the dense network may be more."""
    rounds = next(iter(results.pruned[methods_shown(results)[0]].values()))
    return next(iter(rounds.values())).sizes


def shade(place: int, count: int, layers: int) -> dict[str, Any]:
    """The look of one density of several: the sparsest is the darkest."""
    last = len(_SHADES) - 1
    step = last if count == 1 else round(place * last / (count - 1))
    # Markers and lines of deep networks must not run into each other.
    every, thin = max(1, layers // 20), 1.2 if layers <= 40 else 0.8
    return {"color": _SHADES[step], "marker": _MARKERS[step], "markersize": 3.5, "linewidth": thin, "markevery": every}


def _legend(axes: "Axes", densities: Sequence[str], layers: int) -> None:
    """Beside the last panel of a row, where it hides nothing."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    handles = [
        Line2D([], [], label=f"{density} %", **(shade(place, len(densities), layers) | {"markevery": None}))
        for place, density in enumerate(densities)
    ]
    axes.legend(handles=handles, title="of all weights", loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)


def _survival_axis(axes: "Axes") -> None:
    axes.set_ylabel("of the layer survives (%)")
    axes.set_ylim(-3, 103)


def _count_axis(row: Sequence["Axes"]) -> None:
    """A logarithmic axis for a row of panels, with a place for 0 if there are emptied layers."""
    row[0].set_ylabel("weights left in the layer")
    counts = np.concatenate([np.asarray(line.get_ydata(), float) for axes in row for line in axes.lines])
    if counts.min() >= 1:
        row[0].set_yscale("log")
        row[0].set_ylim(10 ** math.floor(math.log10(counts.min())), 2 * counts.max())
        return
    row[0].set_yscale("symlog", linthresh=1)
    row[0].set_ylim(-0.3, 2 * counts.max())


def layer_axis(axes: "Axes", count: int) -> None:
    """Layers by number, the first and the last among them."""
    step = 3 if count <= 20 else max(5, 5 * round(count / 40))
    between = [place for place in range(step, count, step) if place > 1 and 2 * (count - place) >= step]
    axes.set_xticks(sorted({1, *between, count}))
    axes.set_xlabel("layer, from input to output")
