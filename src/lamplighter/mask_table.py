"""Masks as a table: per layer shape, kept, density; and the total."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lamplighter.masks import Masks

HEAD = ("layer", "shape", "kept", "of", "density")


def rows(masks: Masks) -> list[tuple[str, str, str, str, str]]:
    """One row for each layer and one for the total."""
    kept, sizes, densities = masks.kept, masks.sizes, masks.densities()
    table = [
        (name, "x".join(map(str, shape)), f"{kept[name]:,}", f"{sizes[name]:,}", _percent(densities[name]))
        for name, shape in masks.shapes.items()
    ]
    return [*table, ("total", "", f"{masks.total_kept:,}", f"{masks.total:,}", _percent(masks.density))]


def as_text(masks: Masks) -> str:
    """The table in plain text."""
    table = [HEAD, *rows(masks)]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEAD))]
    lines = ["  ".join(_align(cell, i, widths[i]) for i, cell in enumerate(row)).rstrip() for row in table]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def as_html(masks: Masks) -> str:
    """The table for a notebook."""
    table = rows(masks)
    head = "".join(f"<th>{cell}</th>" for cell in HEAD)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _align(cell: str, column: int, width: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"
