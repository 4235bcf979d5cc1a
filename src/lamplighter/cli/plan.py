"""`lamp plan`: what pruning would keep of each layer of a checkpoint, before anything is written."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamplighter.cli.console import ByteBars, byte_bars, prose, stderr, write_json, write_text
from lamplighter.cli.prune import Exclude, Include, Ray, Source, Threads

if TYPE_CHECKING:
    from lamplighter.checkpoint.comparison import Plan

EXAMPLES = """[bold]Examples[/bold]
$ lamp plan model --sparsity 0.9
$ lamp plan model --sparsity 0.9 --method lamp --method erk --plot layers.png  [dim]# side by side[/dim]"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to `app`, in the given section of its help."""
    app.command("plan", help=prose(plan.__doc__ or ""), epilog=EXAMPLES, rich_help_panel=panel)(plan)


def plan(
    source: Source,
    *,
    sparsity: Annotated[float, typer.Option(help="Fraction of the weights to remove.")],
    method: Annotated[list[str] | None, typer.Option(help="Repeatable.", show_default="lamp")] = None,
    pattern: Annotated[str | None, typer.Option(help='"row", or "N:M" such as 2:4.')] = None,
    include: Include = None,
    exclude: Exclude = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the densities to this file (png, pdf or svg).")] = None,
    threads: Threads = None,
    ray: Ray = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Show what each layer of a checkpoint would keep.

    Reads the checkpoint once (if its weights are of 32 bits once more for each method), and writes nothing.
    """
    from lamplighter.checkpoint.comparison import compare  # noqa: PLC0415

    if plot is not None:
        from lamplighter.checkpoint.plotting import check_plot  # noqa: PLC0415

        check_plot(plot)
    with byte_bars() as bars:
        found = compare(
            source,
            sparsity=sparsity,
            methods=method or ["lamp"],
            pattern=pattern,
            include=include or None,
            exclude=exclude or None,
            threads=threads,
            tell=ByteBars(bars).show,
            ray=ray,
        )
    if plot is not None:
        from lamplighter.checkpoint.plotting import draw  # noqa: PLC0415

        draw(found, plot)
        stderr().print(f"drawn to {plot}", highlight=False, soft_wrap=True)
    if json:
        write_json(found.as_data())
    else:
        write_text(table(found))


def table(found: "Plan") -> str:
    """The layers with the density that each method gives them, and the total."""
    from lamplighter.checkpoint import tables  # noqa: PLC0415

    layers = [
        tables.Row(
            layer.name,
            (tables.shown_shape(layer.shape), layer.dtype),
            layer.size,
            tuple(layer.kept[method] for method in found.methods),
        )
        for layer in found.layers
    ]
    rows = tables.grouped(layers)
    cells = [
        (
            f"{row.name} ({row.layers:,})" if len(rows) < len(layers) else row.name,
            *row.kind,
            f"{row.size:,}",
            *(part for count in row.counts for part in (f"{count:,}", tables.percent(count, row.size))),
        )
        for row in [*rows, tables.total_of(rows, 2)]
    ]
    columns = [part for method in found.methods for part in (method, "density")]
    return "\n".join(
        [
            tables.text_table(("layer", "shape", "dtype", "weights", *columns), cells, left=3),
            "",
            f"{len(found.layers):,} layers chosen, {found.passed_over:,} other tensors left as they are",
        ]
    )
