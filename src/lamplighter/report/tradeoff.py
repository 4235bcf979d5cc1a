"""What sparsity costs: curves over density with bands, and iteration against one-shot pruning."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from lamplighter.experiments.spec import Spec
from lamplighter.report.captions import MEASURED
from lamplighter.report.figures import PRINT, Curve, density_axis, draw_line, percent, set_heading, style_of
from lamplighter.report.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


# How one-shot pruning is drawn beside a method's own line.
_ONESHOT: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.0, "markerfacecolor": "white"}


def curve(results: Results, method: str, rounds: Sequence[int]) -> Curve:
    """The values of a method over density, seed by seed; rounds that it has not finished are left out."""
    found = {index: cell for index in rounds if (cell := results.cell(method, index)) is not None}
    values = [[value for value in cell.values.values() if math.isfinite(value)] for cell in found.values()]
    densities = [results.spec.density(index) for index in found]
    drawn = [(density, each) for density, each in zip(densities, values, strict=True) if each]
    return Curve([density for density, _ in drawn], [each for _, each in drawn])


def tradeoff(results: Results, title: str, note: str) -> "Figure":
    """One line per method: means over seeds, and bands one standard deviation to either side.

    Args:
        results: the runs.
        title: above the figure.
        note: below the title, smaller.
    """
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(PRINT):
        figure = Figure(figsize=(7.0, 4.4), layout="constrained")
        axes = figure.subplots()
        for method in results.methods:
            _draw_banded(axes, method, curve(results, method, (0, *results.rounds)))
        _finish(axes, results, [0, *results.rounds] if results.dense else list(results.rounds))
        axes.set_ylabel(MEASURED[results.metric])
        axes.legend(loc="upper left" if results.lower_is_better else "lower left", handlelength=3.5)
        set_heading(figure, title)
        axes.set_title(textwrap.fill(note, 95), loc="left", fontsize=8, color="#444444")
    return figure


def _draw_banded(axes: "Axes", method: str, line: Curve) -> None:
    means = [fmean(values) for values in line.values]
    draw_line(axes, method, line.densities, means)
    low = [mean - std for mean, std in zip(means, _spread(line), strict=True)]
    high = [mean + std for mean, std in zip(means, _spread(line), strict=True)]
    axes.fill_between(line.densities, low, high, color=style_of(method).color, alpha=0.15, linewidth=0)


def _spread(line: Curve) -> list[float]:
    """Sample standard deviations; nothing to show for one seed."""
    return [stdev(values) if len(values) > 1 else 0.0 for values in line.values]


def _finish(axes: "Axes", results: Results, rounds: Sequence[int]) -> None:
    """The axes: densities, and no percentages that there cannot be, wherever bands reach."""
    density_axis(axes, [results.spec.density(index) for index in rounds])
    if results.metric == "accuracy":
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0), min(high, 100))


def counterpart(results: Results, others: Sequence[Results]) -> Results | None:
    """The one-shot runs to compare iterative ones with: the same network and data, trained in the same way."""
    wanted = _comparable(results.spec) if results.spec.plan == "iterative" else None
    found = (other for other in others if other.spec.plan == "one-shot" and _comparable(other.spec) == wanted)
    return next(found, None)


def _comparable(spec: Spec) -> str:
    return replace(spec, recipe="", plan="iterative", method="dense", seed=0).id


def shared(iterative: Results, oneshot: Results) -> dict[str, list[int]]:
    """Method -> the rounds that there are numbers for in both; without methods that have none."""
    common = {method: _known(iterative, method) & _known(oneshot, method) for method in iterative.methods}
    return {method: sorted(rounds) for method, rounds in common.items() if rounds}


def _known(results: Results, method: str) -> set[int]:
    """The pruned rounds with a finite value."""
    return {index for index in results.rounds if curve(results, method, (index,)).values}


def iteration(iterative: Results, oneshot: Results, title: str) -> "Figure":
    """One panel per method: pruned round by round (filled, its usual line), and at once (hollow, thin).

    Above each panel stands what iteration gains.
    """
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    methods = shared(iterative, oneshot)
    every = sorted({index for rounds in methods.values() for index in rounds})
    with mpl.rc_context(PRINT):
        figure = Figure(figsize=(2.1 * len(methods) + 0.8, 3.4), layout="constrained")
        panels = figure.subplots(1, len(methods), sharey=True, squeeze=False)[0]
        for axes, (method, rounds) in zip(panels, methods.items(), strict=True):
            _draw_pair(axes, method, curve(iterative, method, rounds), curve(oneshot, method, rounds))
            _finish(axes, iterative, every)
            axes.set_xlabel("")  # once for all, below the middle
            axes.set_title(_gain(iterative, oneshot, method, rounds), fontsize=9)
        panels[0].set_ylabel(MEASURED[iterative.metric])
        panels[len(panels) // 2].set_xlabel("weights that survive (%)")
        figure.legend(handles=_pair_legend(), loc="outside lower center", ncols=2, handlelength=3.5)
        set_heading(figure, title)
    return figure


def _draw_pair(axes: "Axes", method: str, iterative: Curve, oneshot: Curve) -> None:
    _draw_banded(axes, method, iterative)
    axes.lines[-1].set_linestyle("-")
    look = style_of(method)
    means = [fmean(values) for values in oneshot.values]
    bars: dict[str, Any] = {"elinewidth": 0.8, "capsize": 2.0, "markeredgecolor": look.color}
    axes.errorbar(oneshot.densities, means, _spread(oneshot), color=look.color, marker=look.marker, **bars, **_ONESHOT)


def _pair_legend() -> "list[Line2D]":
    from matplotlib.lines import Line2D  # noqa: PLC0415

    iterative = Line2D([], [], color="black", marker="o", label="iterative, band: one standard deviation")
    hollow = Line2D([], [], color="black", marker="o", label="one-shot, bars: one standard deviation", **_ONESHOT)
    return [iterative, hollow]


def _gain(iterative: Results, oneshot: Results, method: str, rounds: Sequence[int]) -> str:
    """What iteration brings where the paper says so, after round 20 (1.15 %); else at the sparsest shared density."""
    index = 20 if 20 in rounds else rounds[-1]
    (first,), (second,) = (curve(results, method, (index,)).values for results in (iterative, oneshot))
    return f"{method}\n{fmean(first) - fmean(second):+.2f} at {percent(iterative.spec.density(index))} %"
