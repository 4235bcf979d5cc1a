"""Peaks and crests: whether 3x3 convolutions are pruned more than 1x1 ones, in a network that comes trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lamplighter.report.figures import PRINT, percent, set_heading
from lamplighter.report.layerwise import layer_axis, layer_shapes, methods_shown, pruned_sizes, reached, shade, survival
from lamplighter.report.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROUNDS = (1, 4, 7)  # 80, 41 and 21 %


@dataclass(frozen=True)
class Kernel:
    """How the layers with a kernel of one kind are drawn in a profile."""

    marker: str
    filled: bool


KERNELS = {"1x1": Kernel("o", False), "3x3": Kernel("^", True), "other": Kernel("s", True)}


def kernel_of(name: str, shape: Sequence[int]) -> str:
    """The kernel of a convolution: by its weight's shape, else by the names of torchvision's ResNet-50.

    >>> kernel_of("layer1.0.conv2.weight", (64, 64, 3, 3)), kernel_of("layer1.0.conv3.weight", ()), kernel_of("fc", ())
    ('3x3', '1x1', 'other')
    """
    if shape:
        kernel = "x".join(map(str, shape[2:]))
        return kernel if kernel in KERNELS else "other"
    if not name.startswith("layer"):
        return "other"
    return "3x3" if ".conv2." in name else "1x1"


def profile(results: Results, title: str) -> "Figure":
    """Peaks and crests: one panel per method, one line per density, a marker for every kind of kernel."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    methods, rounds = methods_shown(results), reached(results, ROUNDS)
    shapes = layer_shapes(results.spec, pruned_sizes(results))
    kernels = [kernel_of(name, shape) for name, shape in shapes.items()]
    with mpl.rc_context(PRINT):
        figure = Figure(figsize=(7.6, 2.0 * len(methods) + 1.1), layout="constrained")
        panels = figure.subplots(len(methods), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, method in zip(panels, methods, strict=True):
            for place, index in enumerate(rounds):
                if results.records(method, index):
                    color = shade(place, len(rounds), len(shapes))["color"]
                    _draw_profile(axes, survival(results, method, index, list(shapes)), kernels, color)
            axes.set_title(method, fontsize=10, loc="left")
            axes.set_ylim(-4, 104)
        panels[len(panels) // 2].set_ylabel("of the layer survives (%)")
        layer_axis(panels[-1], len(shapes))
        _profile_legend(figure, [percent(results.spec.density(index)) for index in rounds], kernels)
        set_heading(figure, title)
    return figure


def _draw_profile(axes: "Axes", values: Sequence[float], kernels: Sequence[str], color: str) -> None:
    axes.plot(range(1, len(values) + 1), values, color=color, linewidth=1.0)
    for kind, look in KERNELS.items():
        places = [place for place, kernel in enumerate(kernels) if kernel == kind]
        face = color if look.filled else "white"
        marked = [values[place] for place in places]
        options: dict[str, Any] = {"markeredgecolor": color, "markerfacecolor": face, "markersize": 4.0}
        axes.plot([1 + place for place in places], marked, look.marker, linestyle="", **options)


def _profile_legend(figure: "Figure", densities: Sequence[str], kernels: Sequence[str]) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    lines = [
        Line2D([], [], color=shade(place, len(densities), 0)["color"], label=f"{density} % of all weights")
        for place, density in enumerate(densities)
    ]
    marks = [
        Line2D([], [], color="black", linestyle="", marker=look.marker, label=kind)
        for kind, look in KERNELS.items()
        if kind in kernels
    ]
    for mark, look in zip(marks, (look for kind, look in KERNELS.items() if kind in kernels), strict=True):
        mark.set_markerfacecolor("black" if look.filled else "white")
    figure.legend(handles=[*lines, *marks], loc="outside lower center", ncols=len(lines) + len(marks), fontsize=8)
