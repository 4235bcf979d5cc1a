"""Layers of a checkpoint as a table in plain text; those of many like blocks share a row."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_ROWS = 100


@dataclass(frozen=True, slots=True)
class Row:
    """A layer, or several alike: its name, what it is, how many weights it has, and counts of some of these."""

    name: str
    kind: tuple[str, ...]
    size: int
    counts: tuple[int, ...]
    layers: int = 1


def grouped(rows: Sequence[Row], most: int = MOST_ROWS) -> list[Row]:
    """The rows, or if there are more than `most` one for all whose names differ only in numbers.

    >>> grouped([Row("layers.0.q", ("4x4",), 16, (3,)), Row("layers.1.q", ("4x4",), 16, (4,))], most=1)
    [Row(name='layers.*.q', kind=('4x4',), size=32, counts=(7,), layers=2)]
    """
    if len(rows) <= most:
        return list(rows)
    found: dict[tuple[str, tuple[str, ...]], Row] = {}
    for row in rows:
        key = masked(row.name), row.kind
        before = found.get(key, Row(*key, 0, (0,) * len(row.counts), 0))
        counts = tuple(one + other for one, other in zip(before.counts, row.counts, strict=True))
        found[key] = Row(*key, before.size + row.size, counts, before.layers + row.layers)
    return list(found.values())


def masked(name: str) -> str:
    """A name with stars for its numbers.

    >>> masked("layers.10.mlp.experts.down_proj[3]")
    'layers.*.mlp.experts.down_proj[*]'
    """
    return re.sub(r"[0-9]+", "*", name)


def total_of(rows: Iterable[Row], kinds: int) -> Row:
    """All rows in one."""
    rows = list(rows)
    counts = tuple(sum(column) for column in zip(*(row.counts for row in rows), strict=True))
    return Row("total", ("",) * kinds, sum(row.size for row in rows), counts, sum(row.layers for row in rows))


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int, *, total: bool = True) -> str:
    """Aligned columns, the first `left` to the left; the last row is set apart if it is a total."""
    table = [head, *rows]
    widths = [max(len(row[place]) for row in table) for place in range(len(head))]
    lines = ["  ".join(_align(cell, place < left, widths[place]) for place, cell in enumerate(row)) for row in table]
    lines = [line.rstrip() for line in lines]
    rule = "-" * max(map(len, lines))
    body = [*lines[1:-1], rule, lines[-1]] if total else lines[1:]
    return "\n".join([lines[0], rule, *body])


def percent(count: int, size: int) -> str:
    """How much of a layer that is.

    >>> percent(1, 3)
    '33.33 %'
    """
    return f"{100 * count / size:.2f} %" if size else "100.00 %"


def shown_shape(shape: Sequence[int]) -> str:
    """A shape as it is usually written.

    >>> shown_shape((16, 3, 3))
    '16x3x3'
    """
    return "x".join(map(str, shape)) or "scalar"


def shown_bytes(count: float) -> str:
    """A number of bytes as people read it.

    >>> shown_bytes(1_500_000), shown_bytes(12)
    ('1.50 MB', '12 B')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def _align(cell: str, left: bool, width: int) -> str:
    return cell.ljust(width) if left else cell.rjust(width)
