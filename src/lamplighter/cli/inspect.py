"""`lamp inspect`: what is in a checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamplighter.cli.console import ByteBars, byte_bars, prose, show_error, stderr, write_json, write_text
from lamplighter.cli.prune import Source, Threads
from lamplighter.errors import LamplighterError
from lamplighter.optional import require

if TYPE_CHECKING:
    from lamplighter.checkpoint.inspection import Inspection, TensorReport

EXAMPLES = """[bold]Examples[/bold]
$ lamp inspect model.safetensors
$ lamp inspect model --html model.html  [dim]# one page, for a browser[/dim]
$ lamp inspect model --json             [dim]# every tensor, as data[/dim]"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to `app`, in the given section of its help."""
    app.command("inspect", help=prose(inspect.__doc__ or ""), epilog=EXAMPLES, rich_help_panel=panel)(inspect)


def inspect(
    source: Source,
    *,
    threads: Threads = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write what was found as one page, too.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Show what is in a checkpoint: tensors, layers that count, dtypes, zeros and magnitudes.

    Reads it once. Files that are damaged or cut short are named, each of them.
    """
    from lamplighter.checkpoint.inspection import damaged, inspect_checkpoint  # noqa: PLC0415

    if html is not None:
        _check_page(html)
    errors = damaged(source)
    for error in errors:
        show_error(error)
    if errors:
        raise typer.Exit(1)
    with byte_bars() as bars:
        found = inspect_checkpoint(source, threads=threads, tell=ByteBars(bars).show)
    if html is not None:
        _write_page(html, found)
    if json:
        write_json(found.as_data())
    else:
        write_text(table(found))


def _check_page(html: Path) -> None:
    """Before anything is read: what a page needs is there, and its name is free."""
    require("lamp inspect --html", "report", "plotly")
    if html.is_dir():
        raise LamplighterError(f"{html} is a folder, and a page is a file", "give another name that ends in .html")


def _write_page(html: Path, found: "Inspection") -> None:
    from lamplighter.report.files import write_whole  # noqa: PLC0415
    from lamplighter.report.page.inspection import inspection_page  # noqa: PLC0415

    write_whole(html, inspection_page(found))
    stderr().print(str(html), highlight=False, soft_wrap=True, markup=False)


def table(found: "Inspection") -> str:
    """A row for each tensor, or for those of like blocks together; then files and what counts."""
    from lamplighter.checkpoint import tables  # noqa: PLC0415

    many = len(found.tensors) > tables.MOST_ROWS
    groups: dict[str, list[TensorReport]] = {}
    for tensor in found.tensors:
        groups.setdefault(tables.masked(tensor.name) if many else tensor.name, []).append(tensor)
    head = ("tensor", "shape", "dtype", "layers", "zeros", "smallest", "median", "largest")
    lines = [tables.text_table(head, [_row(name, each) for name, each in groups.items()], left=3, total=False), ""]
    lines += [f"{file}: {tables.shown_bytes(size)}" for file, size in found.files.items()]
    layers, weights = sum(t.layers for t in found.tensors), sum(t.size for t in found.tensors if t.layers)
    if found.packed:
        lines.append(f"{len(found.tensors):,} tensors, packed: bitmasks and values; lamp unpack gives the weights")
    else:
        lines.append(f"{len(found.tensors):,} tensors; {layers:,} layers of {weights:,} weights count by default")
    if found.dropped:
        lines.append(f"no tensors of the model: {', '.join(found.dropped)}")
    broken = [f"{tensor.name} ({tensor.nonfinite:,})" for tensor in found.tensors if tensor.nonfinite]
    if broken:
        lines.append(f"NaN or infinite values: {', '.join(broken)}")
    if found.obstacle is not None:
        lines.append(f"cannot be pruned as it is: {found.obstacle}")
    return "\n".join(lines)


def _row(name: str, tensors: "list[TensorReport]") -> tuple[str, ...]:
    from lamplighter.checkpoint import tables  # noqa: PLC0415

    first = tensors[0]
    shapes = {tensor.shape for tensor in tensors}
    dtypes = {tensor.dtype for tensor in tensors}
    zeros, size = sum(tensor.zeros or 0 for tensor in tensors), sum(tensor.size for tensor in tensors)
    medians = sorted(tensor.median for tensor in tensors if tensor.median is not None)
    smallest = [tensor.smallest for tensor in tensors if tensor.smallest is not None]
    largest = [tensor.largest for tensor in tensors if tensor.largest is not None]
    return (
        name if len(tensors) == 1 else f"{name} ({len(tensors):,})",
        tables.shown_shape(first.shape) if len(shapes) == 1 else "various",
        first.dtype if len(dtypes) == 1 else "various",
        f"{sum(tensor.layers for tensor in tensors):,}" if any(tensor.layers for tensor in tensors) else "",
        "" if first.zeros is None else tables.percent(zeros, size) if size else "",
        f"{min(smallest):.3g}" if smallest else "",
        f"{medians[len(medians) // 2]:.3g}" if medians else "",
        f"{max(largest):.3g}" if largest else "",
    )
