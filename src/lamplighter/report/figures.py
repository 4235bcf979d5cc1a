"""Figures that read well in print: every method keeps one marker, one line style and one shade of colour."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lamplighter.report.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Style:
    """How one method is drawn: told apart by marker and dashes where there is no colour."""

    color: str
    marker: str
    dashes: str | tuple[int, tuple[int, ...]]


# Colours of Okabe and Ito, which readers with colour-blindness can tell apart, ordered from dark to light.
STYLES: dict[str, Style] = {
    "lamp": Style("#000000", "o", "-"),
    "global": Style("#D55E00", "s", "--"),
    "uniform": Style("#009E73", "^", "-."),
    "uniform+": Style("#CC79A7", "v", (0, (5, 1, 1, 1, 1, 1))),
    "er": Style("#E69F00", "P", (0, (3, 1, 1, 1))),
    "erk": Style("#0072B2", "D", ":"),
}
_SPARE = Style("#666666", "X", (0, (1, 2)))

# What every figure is drawn with.
PRINT: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Curve:
    """One method's measurements: at each density, one value per trial."""

    densities: Sequence[float]
    values: Sequence[Sequence[float]]


def style_of(method: str) -> Style:
    """The style that belongs to `method`; one neutral style for what is not built in."""
    return STYLES.get(method, _SPARE)


def curves(lines: Mapping[str, Curve], ylabel: str, title: str) -> "Figure":
    """Values against density, sparser to the right: means over trials, and bars from the worst trial to the best."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(PRINT):
        figure = Figure(figsize=(7.0, 4.4), layout="constrained")
        axes = figure.subplots()
        for method, curve in lines.items():
            _draw_curve(axes, method, curve)
        densities = sorted({density for curve in lines.values() for density in curve.densities}, reverse=True)
        density_axis(axes, densities)
        axes.set_ylabel(ylabel)
        axes.set_title(title, loc="left", fontsize=11)
        axes.legend(loc="lower left", handlelength=3.5)
    return figure


def _draw_curve(axes: "Axes", method: str, curve: Curve) -> None:
    means = [fmean(trials) for trials in curve.values]
    below = [mean - min(trials) for mean, trials in zip(means, curve.values, strict=True)]
    above = [max(trials) - mean for mean, trials in zip(means, curve.values, strict=True)]
    draw_line(axes, method, curve.densities, means)
    axes.errorbar(
        curve.densities, means, (below, above), fmt="none", ecolor=style_of(method).color, elinewidth=0.8, capsize=2.0
    )


def draw_line(axes: "Axes", method: str, places: Sequence[float], values: Sequence[float], **options: Any) -> None:  # noqa: ANN401
    """One method's line in its style; options go to `Axes.plot`."""
    look = style_of(method)
    axes.plot(
        places,
        values,
        label=method,
        color=look.color,
        marker=look.marker,
        linestyle=look.dashes,
        markeredgecolor="white",
        markeredgewidth=0.6,
        **options,
    )


def density_axis(axes: "Axes", densities: Sequence[float]) -> None:
    """A logarithmic axis, labelled with every third density itself rather than with powers of ten."""
    axes.set_xscale("log")
    axes.invert_xaxis()
    shown = densities[::3]
    axes.set_xticks(shown, [percent(density) for density in shown])
    axes.minorticks_off()
    axes.set_xlabel("weights that survive (%)")


def percent(density: float) -> str:
    """Three digits or two decimals, as the paper prints densities: 100, 51.2, 6.87, 1.80, 0.92."""
    value = 100 * density
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def layers(names: Sequence[str], survival: Mapping[float, Mapping[str, Sequence[float]]], title: str) -> "Figure":
    """What survives of each layer, one panel per density of the whole network.

    Args:
        names: the layers, in order.
        survival: overall density -> method -> density of each layer.
        title: above all panels.
    """
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(PRINT):
        figure = Figure(figsize=(2.7 * len(survival) + 0.8, 3.9), layout="constrained")
        panels = figure.subplots(1, len(survival), sharey=True, squeeze=False)[0]
        floor = _floor(survival)
        for axes, (density, methods) in zip(panels, survival.items(), strict=True):
            _draw_layers(axes, names, density, methods, floor)
        panels[0].set_ylabel("of the layer survives (%)")
        _survival_axis(panels[0], floor)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), handlelength=3.5)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _floor(survival: Mapping[float, Mapping[str, Sequence[float]]]) -> float:
    """The lower end of the axis, where emptied layers are drawn: below the sparsest that has anything left."""
    densities = [d for methods in survival.values() for layers in methods.values() for d in layers if d > 0]
    return min(densities, default=1.0) / 3


def _draw_layers(
    axes: "Axes", names: Sequence[str], density: float, methods: Mapping[str, Sequence[float]], floor: float
) -> None:
    for method, found in methods.items():
        draw_line(axes, method, range(len(names)), [max(value, floor) for value in found], clip_on=False)
    axes.set_title(f"{percent(density)} % of all weights", fontsize=10)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.grid(visible=False, axis="x")


def _survival_axis(axes: "Axes", floor: float) -> None:
    axes.set_yscale("log")
    axes.set_ylim(floor, 1.0)
    ticks = [tick for tick in (1.0, 0.1, 0.01, 0.001, 0.0001) if tick > floor]
    axes.set_yticks([*ticks, floor], [*[f"{100 * tick:g}" for tick in ticks], "none"])
    axes.minorticks_off()


def set_heading(figure: "Figure", heading: str) -> None:
    """Above all panels, from the left edge, in as many lines as the figure's width asks for."""
    characters = int(11 * figure.get_figwidth())
    figure.suptitle(textwrap.fill(heading, characters), x=0.01, ha="left", fontsize=11)


def save(figure: "Figure", path: Path, **options: Any) -> None:  # noqa: ANN401
    """Write `figure` to `path`, as the kind its name ends in; whole, or not at all."""
    write_whole(path, rendered(figure, path.suffix.removeprefix("."), **options))


def rendered(figure: "Figure", kind: str, **options: Any) -> bytes:  # noqa: ANN401
    """The file of a figure: the same bytes for the same figure."""
    import matplotlib as mpl  # noqa: PLC0415

    # Type 42: text in a PDF stays text. Without a date, what has not changed does not look changed.
    dateless = {"metadata": {"CreationDate": None}} if kind == "pdf" else {}
    content = io.BytesIO()
    with mpl.rc_context({"pdf.fonttype": 42}):
        figure.savefig(content, **{"format": kind, "dpi": 160, **dateless, **options})
    return content.getvalue()
