"""`lamp bench distributed`: what pruning sends between processes, and how long it takes."""

import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamplighter.cli.console import progress_bars, prose, stderr, stdout, write_json
from lamplighter.errors import LamplighterError, LamplighterWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from lamplighter.benchmarking.distributed import Row

EXAMPLES = """[bold]Examples[/bold]
$ lamp bench distributed                         [dim]# four layers of 4.2 M weights, 1 to 4 processes[/dim]
$ lamp bench distributed --processes 2 --side 4096 --dtype float32
$ lamp bench distributed --placement columns --json"""


def register(group: typer.Typer) -> None:
    """Add the command to the group `lamp bench`."""
    group.command("distributed", help=prose(distributed.__doc__ or ""), epilog=EXAMPLES)(distributed)


def distributed(
    *,
    processes: Annotated[list[int] | None, typer.Option(help="Repeatable.", show_default="1, 2, 3, 4")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Repeatable.", show_default="bfloat16, float32")] = None,
    layers: Annotated[int, typer.Option(min=1, help="How many.")] = 4,
    side: Annotated[int, typer.Option(min=1, help="Rows and columns of each layer.")] = 2048,
    placement: Annotated[str, typer.Option(help="What of a layer a process holds: rows or columns.")] = "rows",
    sparsity: Annotated[float, typer.Option(help="Fraction of the weights to remove.")] = 0.9,
    method: Annotated[str, typer.Option(help="How removal is shared out among layers.")] = "lamp",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each, after one to warm up.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON instead of a table.")] = False,
) -> None:
    """Measure pruning of a model that several processes share.

    Divides the same random weights among 1, 2, 3 and 4 processes of this machine, which talk by gloo, prunes them, and
    checks that the masks are the same. Bytes are what the process that sends most sends, as ring algorithms send them.
    The processes share this machine's cores: more of them need not be faster here.
    """
    from lamplighter.benchmarking import distributed as bench  # noqa: PLC0415
    from lamplighter.benchmarking import machine  # noqa: PLC0415

    counts, dtypes = tuple(processes or (1, 2, 3, 4)), tuple(dtype or ("bfloat16", "float32"))
    request = bench.Request(counts, dtypes, layers, side, placement, sparsity, method, repeats)
    request.check()
    about: dict[str, Any] = {"load_before": machine.load_average()}
    if (disturbed := machine.disturbance()) is not None:
        warnings.warn(disturbed, LamplighterWarning, stacklevel=1)
    with progress_bars("runs") as bars:
        task = bars.add_task("measuring", total=bench.units(request), note="starting")
        rows = bench.measure(request, lambda done: bars.update(task, advance=1, note=done))
    if not bench.agreed(rows):
        raise LamplighterError("different numbers of processes gave different masks", "please report this")
    about = {**machine.describe("cpu"), **about, "threads": 1}
    if json:
        write_json({"machine": about, "request": asdict(request), "rows": [_as_data(row) for row in rows]})
        return
    stdout().print(_table(rows))
    load = "unknown" if about["load_before"] is None else f"{about['load_before']:.1f}"
    words = f"{about['processor']}, {about['cores']} cores; load {load} before; torch {about['torch']}"
    stderr().print(words, style="dim", highlight=False, soft_wrap=True)


def _as_data(row: "Row") -> dict[str, Any]:
    return {**asdict(row), "median": row.median, "sent_per_layer": row.sent_per_layer, "share": row.share}


def _table(rows: "Sequence[Row]") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    title = f"Pruning {rows[0].layers} layers, {rows[0].weights:,} weights, in several processes: the same masks"
    caption = "Sent: by each process, for each layer, and in all as a fraction of the weights' bytes."
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for column in ("weights", "processes", "ms", "kB sent per layer", "of the weights", "messages"):
        table.add_column(column, justify="left" if column == "weights" else "right", no_wrap=True)
    for place, row in enumerate(rows):
        new = place == 0 or rows[place - 1].dtype != row.dtype
        if new and place > 0:
            table.add_section()
        sent = (f"{row.sent_per_layer / 1000:,.1f}", f"{100 * row.share:.3f} %", f"{row.calls}")
        table.add_row(row.dtype if new else "", str(row.processes), f"{1000 * row.median:,.0f}", *sent)
    return table
