"""How methods are drawn on the page: as in the figures, in the words of the page's charts, and on a dark ground."""

from collections.abc import Sequence
from typing import Any

from lamplighter.report.figures import STYLES, style_of

_SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "v": "triangle-down",
    "P": "cross",
    "D": "diamond",
    "X": "x",
}
_DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
# What would be too light on white: the orange, darker.
_DARKER = {"#E69F00": "#B97F00"}
# What would be too dark on a dark ground: black, and the blue, for which the same palette has a lighter one.
_LIGHTER = {"#000000": "#FFFFFF", "#0072B2": "#56B4E9", "#666666": "#A6A6A6"}
# Methods that are not built in differ from each other by marker.
_SPARE = ("x", "star", "hexagon", "hourglass", "bowtie", "pentagon")


def looks(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Method -> its colour on light and on dark, marker and dashes.

    >>> looks(["erk"])
    {'erk': {'light': '#0072B2', 'dark': '#56B4E9', 'symbol': 'diamond', 'dash': 'dot'}}
    """
    strangers = [method for method in methods if method not in STYLES]
    return {method: _look(method, strangers) for method in methods}


def _look(method: str, strangers: Sequence[str]) -> dict[str, Any]:
    style = style_of(method)
    symbol = _SYMBOLS[style.marker]
    if method in strangers:
        symbol = _SPARE[strangers.index(method) % len(_SPARE)]
    return {
        "light": _DARKER.get(style.color, style.color),
        "dark": _LIGHTER.get(style.color, style.color),
        "symbol": symbol,
        "dash": _dash(style.dashes),
    }


def _dash(dashes: str | tuple[int, tuple[int, ...]]) -> str:
    """Lengths in line widths become pixels; a line is two pixels wide."""
    return _DASHES[dashes] if isinstance(dashes, str) else ",".join(f"{2 * length}px" for length in dashes[1])
