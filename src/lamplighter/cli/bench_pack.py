"""`lamp bench pack`: how small packed files are, and how fast they are made and read, on this machine."""

import warnings
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamplighter.cli.console import progress_bars, prose, stderr, stdout, write_json
from lamplighter.errors import LamplighterWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from lamplighter.benchmarking.packing import Row

EXAMPLES = """[bold]Examples[/bold]
$ lamp bench pack                       [dim]# a model of 1 GB, in a minute[/dim]
$ lamp bench pack --size 4 --json       [dim]# every repeat, as data[/dim]
$ lamp bench pack --folder /mnt/scratch [dim]# on another disk[/dim]"""


def register(group: typer.Typer) -> None:
    """Add the command to the group `lamp bench`."""
    group.command("pack", help=prose(pack.__doc__ or ""), epilog=EXAMPLES)(pack)


def pack(
    *,
    size: Annotated[float, typer.Option(help="Of the model, in GB of bfloat16 weights.")] = 1.0,
    sparsity: Annotated[list[float] | None, typer.Option(help="Repeatable.", show_default="0.5, 0.9, 0.99")] = None,
    method: Annotated[str, typer.Option(help="How removal is shared out among layers.")] = "lamp",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each, after one to warm up.")] = 3,
    threads: Annotated[int | None, typer.Option(min=1, help="To use.", show_default="one for each processor")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where to write.", show_default="for temporary files")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON instead of a table.")] = False,
) -> None:
    """Measure packed files: their size, and how fast they are made and read.

    Writes a language model of random bfloat16 weights, prunes it, and then, in turns, copies the pruned file plainly,
    packs it, unpacks it and compares the two, to the disk each time. Needs four times the model's size on the disk.
    Times are medians; read them beside the copy's.
    """
    from lamplighter.benchmarking import machine, packing  # noqa: PLC0415

    chosen = tuple(sparsity) if sparsity else (0.5, 0.9, 0.99)
    request = packing.Request(size, chosen, method, repeats, threads, folder)
    request.check()
    about: dict[str, Any] = {"load_before": machine.load_average()}
    if (disturbed := machine.disturbance()) is not None:
        warnings.warn(disturbed, LamplighterWarning, stacklevel=1)
    with progress_bars("runs") as bars:
        task = bars.add_task("measuring", total=packing.units(request), note="writing the model")
        rows = packing.measure(request, lambda done: bars.update(task, advance=1, note=done))
    about = {**machine.describe("cpu"), **about}
    if json:
        asked = {**asdict(request), "folder": None if folder is None else str(folder)}
        write_json({"machine": about, "request": asked, "rows": [_as_data(row) for row in rows]})
        return
    stdout().print(_table(rows))
    load = "unknown" if about["load_before"] is None else f"{about['load_before']:.1f}"
    words = f"{about['processor']}, {threads or about['cores']} threads; load {load} before; torch {about['torch']}"
    stderr().print(words, style="dim", highlight=False, soft_wrap=True)


def _as_data(row: "Row") -> dict[str, Any]:
    rates = {name: row.rate(name) for name in row.seconds}
    copies = {name: row.copies(name) for name in row.seconds}
    return {**asdict(row), "ideal_bits": row.ideal_bits, "bytes_per_second": rates, "copies": copies}


def _table(rows: "Sequence[Row]") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    largest = max(row.dense_bytes for row in rows)
    caption = (
        "GB/s of the dense file. Bits: of the packed file for each prunable weight; 1 + 16 (1 - sparsity) at best."
    )
    title = f"Packing {rows[0].weights:,} prunable bfloat16 weights, {largest / 1e9:.2f} GB in all"
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for column in ("sparsity", "bits", "at best", "work", "seconds", "GB/s", "times copy"):
        table.add_column(column, justify="left" if column == "work" else "right", no_wrap=True)
    for row in rows:
        for place, (work, seconds) in enumerate(row.seconds.items()):
            first = (f"{row.sparsity:g}", f"{row.bits:.3f}", f"{row.ideal_bits:.3f}") if place == 0 else ("", "", "")
            rate = f"{row.rate(work) / 1e9:.2f}"
            table.add_row(*first, work, f"{median(seconds):.2f}", rate, f"{row.copies(work):.2f}")
        table.add_section()
    return table
