"""`lamp prune`: a checkpoint of any size, streamed into another one."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamplighter.cli.console import ByteBars, byte_bars, prose, write_json, write_text
from lamplighter.errors import LamplighterError, LamplighterWarning

if TYPE_CHECKING:
    from lamplighter.checkpoint.report import Report

_MOST_NAMED = 20
EXAMPLES = """[bold]Examples[/bold]
$ lamp prune model.safetensors -o sparse.safetensors --sparsity 0.5
$ lamp prune Llama-3.1-8B -o sparse --sparsity 0.5 --pattern 2:4 --method uniform  [dim]# a Hugging Face folder[/dim]
$ lamp prune model -o sparse --sparsity 0.9 --exclude "lm_head.*" --dry-run        [dim]# what would be kept[/dim]
$ lamp prune model -o sparse --sparsity 0.5 --ray auto                             [dim]# on a Ray cluster[/dim]"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to `app`, in the given section of its help."""
    app.command("prune", help=prose(prune.__doc__ or ""), epilog=EXAMPLES, rich_help_panel=panel)(prune)


Source = Annotated[Path, typer.Argument(metavar="IN", help="A safetensors file, a file of torch, or a folder.")]
Include = Annotated[
    list[str] | None, typer.Option(help="Glob on names of weights to prune. Repeatable.", show_default="the rule's")
]
Exclude = Annotated[list[str] | None, typer.Option(help="Glob on names of weights to leave out. Repeatable.")]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="To read, mask and write; with --ray, in each task. The bytes are the same.",
        show_default="the processors; with --ray, 1",
    ),
]
Ray = Annotated[str | None, typer.Option(help="Run on a Ray cluster: auto, local or host:port of its head.")]


def prune(
    source: Source,
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="OUT", help="The file or folder to write.")] = None,
    sparsity: Annotated[float, typer.Option(help="Fraction of the weights to remove.")],
    method: Annotated[str, typer.Option(help="lamp, global, uniform, uniform+, er, erk or module:function.")] = "lamp",
    pattern: Annotated[str | None, typer.Option(help='"row", or "N:M" such as 2:4.')] = None,
    include: Include = None,
    exclude: Exclude = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and report, but write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is at OUT.")] = False,
    threads: Threads = None,
    ray: Ray = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Prune a checkpoint of any size, a few MB at a time.

    Reads it once to decide (twice, if its weights are of 32 bits) and once more to write the result, which has the same
    files, with zeros where weights were removed. It is written beside its place and renamed when it is complete; IN is
    never changed. The weights that count are those of linear layers, convolutions and experts; the summary shows which.

    On a Ray cluster all nodes read and write; the folders of IN and OUT have to be the same ones on all of them.
    """
    from lamplighter.checkpoint.prune import prune_checkpoint  # noqa: PLC0415

    if out is None and not dry_run:
        raise LamplighterError("no place is named for the result", "add -o OUT, or --dry-run")
    with byte_bars() as bars:
        report = prune_checkpoint(
            source,
            out,
            sparsity=sparsity,
            method=method,
            pattern=pattern,
            include=include or None,
            exclude=exclude or None,
            force=force,
            dry_run=dry_run,
            threads=threads,
            progress=ByteBars(bars).show,
            ray=ray,
        )
    _warn_of_the_rest(report)
    if json:
        write_json(report.as_data())
    else:
        write_text(summary(report))


def _warn_of_the_rest(report: "Report") -> None:
    """Say what of IN is not in OUT, and what is there unpruned."""
    for said, names in [
        ("not carried over, as it may hold unpruned weights", report.left_out),
        ("carried over unpruned", report.unpruned),
        ("no tensors of the model, and left out", report.dropped),
    ]:
        if names:
            more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
            text = f"{said}: {', '.join(names[:_MOST_NAMED])}{more}"
            warnings.warn(text, LamplighterWarning, stacklevel=1)


def summary(report: "Report") -> str:
    """What was chosen and kept, per layer and in total; asked and reached, sizes and time."""
    from lamplighter.checkpoint import tables  # noqa: PLC0415

    layers = [
        tables.Row(layer.name, (tables.shown_shape(layer.shape), layer.dtype), layer.size, (layer.kept,))
        for layer in report.layers
    ]
    rows = tables.grouped(layers)
    many = len(rows) < len(layers)
    cells = [
        (
            f"{row.name} ({row.layers:,})" if many else row.name,
            *row.kind,
            f"{row.counts[0]:,}",
            f"{row.size:,}",
            tables.percent(row.counts[0], row.size),
        )
        for row in [*rows, tables.total_of(rows, 2)]
    ]
    table = tables.text_table(("layer", "shape", "dtype", "kept", "of", "density"), cells, left=3)
    rate = report.bytes_written / max(report.seconds, 1e-9)
    pattern = f', pattern "{report.pattern}"' if report.pattern else ""
    wrote = f"{tables.shown_bytes(report.bytes_written)} written to {report.destination}"
    return "\n".join(
        [
            table,
            "",
            f"{report.method}{pattern}: sparsity asked {report.sparsity:g}, reached {report.reached:.8g}",
            f"{len(report.layers):,} layers chosen, {report.passed_over:,} other tensors left as they are",
            f"{wrote if report.destination else 'nothing written'}, {report.seconds:.1f} s"
            + (f", {tables.shown_bytes(rate)}/s" if report.destination else ""),
        ]
    )
