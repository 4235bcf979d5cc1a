"""`lamp bench checkpoint`: pruning a checkpoint on this machine, against copying its file."""

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamplighter.cli.console import progress_bars, prose, stderr, write_json
from lamplighter.errors import LamplighterError, LamplighterWarning

if TYPE_CHECKING:
    from lamplighter.benchmarking.checkpoint import Request, Result

EXAMPLES = """[bold]Examples[/bold]
$ lamp bench checkpoint --size 0.1                       [dim]# seconds, to see what it shows[/dim]
$ lamp bench checkpoint                                  [dim]# 4 GB of bfloat16; takes 9 GB of disk[/dim]
$ lamp bench checkpoint --experts 10000                  [dim]# 30,000 small layers[/dim]
$ lamp bench checkpoint --size 10 --folder /mnt/scratch  [dim]# on another disk[/dim]"""


def register(group: typer.Typer) -> None:
    """Add the command to the group `lamp bench`."""
    group.command("checkpoint", help=prose(checkpoint.__doc__ or ""), epilog=EXAMPLES)(checkpoint)


def checkpoint(
    *,
    size: Annotated[float, typer.Option(min=0.001, help="Of the checkpoint, in GB.")] = 4.0,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    sparsity: Annotated[float, typer.Option(help="Fraction of the weights to remove.")] = 0.5,
    experts: Annotated[int, typer.Option(min=0, help="A mixture of so many experts, of 200 kB each.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each, after one to warm up.")] = 3,
    threads: Annotated[int | None, typer.Option(min=1, show_default="the processors")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where to write.", show_default="for temporary files")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON instead of a table.")] = False,
) -> None:
    """Time pruning a checkpoint against copying its file, and measure the memory it takes.

    Writes a checkpoint of random weights with a tensor of 500 MB, then prunes and copies it in turns. Peak memory is
    that of a fresh process, beyond what importing torch takes. The system keeps files it has just written in memory,
    for the copy and for us alike.
    """
    from lamplighter.benchmarking import machine  # noqa: PLC0415
    from lamplighter.benchmarking.checkpoint import Request, measure, units  # noqa: PLC0415

    if folder is not None and not folder.is_dir():
        raise LamplighterError(f"there is no folder {folder}", "make it first")
    request = Request(0.0002 * experts if experts else size, dtype, sparsity, repeats, experts, threads)
    request.content()
    load = machine.load_average()
    if (disturbed := machine.disturbance()) is not None:
        warnings.warn(disturbed, LamplighterWarning, stacklevel=1)
    with progress_bars("runs") as bars:
        task = bars.add_task("measuring", total=units(request), note="")
        found = measure(request, folder, lambda note: bars.update(task, advance=1, note=note))
    about = {**machine.describe("cpu"), "load_before": load}
    if json:
        write_json({"machine": about, "request": asdict(request), **asdict(found), **ratios(found)})
        return
    print(table(request, found))
    stderr().print(f"{about['processor']}, load {load} before", style="dim", highlight=False, soft_wrap=True)


def ratios(found: "Result") -> dict[str, Any]:
    """How many times as long as a copy pruning took."""
    from lamplighter.benchmarking.checkpoint import COPY, FLUSHED  # noqa: PLC0415

    return {"times_copy": found.times(COPY), "times_flushed_copy": found.times(FLUSHED)}


def table(request: "Request", found: "Result") -> str:
    """Times, rates, ratios and memory."""
    from lamplighter.checkpoint import tables  # noqa: PLC0415

    cells = [
        (
            row.contender,
            f"{row.median:.2f}",
            f"{tables.shown_bytes(found.nbytes / row.median)}/s",
            f"{found.times(row.contender):.2f}",
        )
        for row in found.rows
    ]
    memory = "unknown" if found.peak_extra_bytes is None else tables.shown_bytes(found.peak_extra_bytes)
    imported = "" if found.import_bytes is None else f", which takes {tables.shown_bytes(found.import_bytes)}"
    return "\n".join(
        [
            f"{tables.shown_bytes(found.nbytes)} of {request.dtype} in {found.layers:,} layers, sparsity "
            f"{request.sparsity:g}; medians of {request.repeats}",
            "",
            tables.text_table(("", "seconds", "", "pruning takes so many times"), cells, left=1, total=False),
            "",
            f"peak memory of pruning, beyond importing torch{imported}: {memory}",
        ]
    )
