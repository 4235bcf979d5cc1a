"""The densities of a plan as a picture: layer by layer, one line for each method."""

from pathlib import Path
from typing import TYPE_CHECKING

from lamplighter.checkpoint.comparison import Plan
from lamplighter.errors import LamplighterError
from lamplighter.optional import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KINDS = (".png", ".pdf", ".svg")
_NAMED = 24  # so many layers have room for their names


def check_plot(path: Path) -> None:
    """Refuse what cannot be drawn, before any work is done."""
    require("--plot", "report", "matplotlib")
    if path.suffix not in _KINDS:
        raise LamplighterError(f"{path} is no name for a picture", f"end it in {', '.join(_KINDS)}")
    if not path.parent.is_dir():
        raise LamplighterError(f"there is no folder {path.parent} to draw {path.name} in", "make the folder first")


def draw(plan: Plan, path: Path) -> None:
    """Draw the plan to a file, whole or not at all."""
    from lamplighter.report import figures  # noqa: PLC0415

    figures.save(figure_of(plan), path)


def figure_of(plan: Plan) -> "Figure":
    """How much each layer keeps, in layer order; the density of the whole as a thin line."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    from lamplighter.report import figures  # noqa: PLC0415

    count = len(plan.layers)
    with mpl.rc_context(figures.PRINT):
        figure = Figure(figsize=(min(14.0, max(6.0, 0.3 * count + 2.0)), 4.2), layout="constrained")
        axes = figure.subplots()
        every, highest = max(1, count // 24), 0.0
        for place, method in enumerate(plan.methods):
            densities = [100 * layer.kept[method] / layer.size if layer.size else 100.0 for layer in plan.layers]
            highest = max(highest, *densities)
            # Markers of different methods stand at different layers, where there is no room for all.
            marks = (place * every // max(len(plan.methods), 1), every)
            figures.draw_line(axes, method, range(1, count + 1), densities, markevery=marks, clip_on=False)
        whole = 100 * (1 - plan.sparsity)
        axes.axhline(whole, color="#888888", linewidth=0.8, zorder=1)
        axes.set_ylim(0, min(103.0, 1.15 * max(highest, whole)))
        axes.set_ylabel("of the layer is kept (%)")
        _layer_axis(axes, [layer.name for layer in plan.layers])
        figures.set_heading(figure, f"{Path(plan.source).name}, {whole:g} % of all weights kept (thin line)")
        figure.legend(loc="outside right upper", handlelength=3.5)
    return figure


def _layer_axis(axes: "Axes", names: list[str]) -> None:
    axes.set_xlim(0.5, len(names) + 0.5)
    axes.grid(visible=False, axis="x")
    if len(names) <= _NAMED:
        short = [name.removesuffix(".weight") for name in names]
        shown = [name if len(name) <= 40 else f"...{name[-38:]}" for name in short]
        axes.set_xticks(range(1, len(names) + 1), shown, rotation=40, ha="right", rotation_mode="anchor", fontsize=7)
    else:
        axes.set_xlabel("layer, in natural order of the names")
