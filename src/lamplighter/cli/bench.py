"""`lamp bench`: this machine, ours against the alternatives."""

import warnings
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamplighter.cli import bench_checkpoint, bench_distributed, bench_pack, bench_sparse, bench_train
from lamplighter.cli.console import progress_bars, prose, show_help_if_bare, stderr, stdout, write_json
from lamplighter.errors import LamplighterWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from lamplighter.benchmarking import scaling
    from lamplighter.benchmarking.pruning import Request, Row

EXAMPLES = """[bold]Examples[/bold]
$ lamp bench prune --quick     [dim]# a few seconds, to see what it shows[/dim]
$ lamp bench prune             [dim]# ResNet-50's 25.5 M weights: a few minutes[/dim]
$ lamp bench prune --json      [dim]# every repeat, as data[/dim]
$ lamp bench prune --scaling   [dim]# up to 500 M weights; takes 5 GB of memory[/dim]"""

app = typer.Typer()


@app.callback(invoke_without_command=True)
def bench(ctx: typer.Context) -> None:
    """Measure this machine: ours against the alternatives."""
    show_help_if_bare(ctx)


def register(parent: typer.Typer, panel: str) -> None:
    """Add the group to `parent`, in the given section of its help."""
    parent.add_typer(app, name="bench", rich_help_panel=panel)


Model = Annotated[
    str | None, typer.Option(help="Whose weights to prune: resnet50 or resnet50-small.", show_default="resnet50")
]
Dtype = Annotated[list[str] | None, typer.Option(help="Repeatable.", show_default="float32, bfloat16")]
Repeats = Annotated[
    int | None, typer.Option(min=1, help="Runs of each contender, after one to warm up.", show_default="5")
]
Threads = Annotated[int | None, typer.Option(min=1, help="For torch to use.", show_default="torch's choice")]
Memory = Annotated[
    bool | None,
    typer.Option(
        "--memory/--no-memory",
        help="Also measure peak memory, each contender in a new process.",
        show_default="memory",
    ),
]


def prune(
    *,
    model: Model = None,
    dtype: Dtype = None,
    sparsity: Annotated[float, typer.Option(help="Fraction of the weights to remove.")] = 0.9,
    repeats: Repeats = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:0.")] = "cpu",
    threads: Threads = None,
    memory: Memory = None,
    quick: Annotated[bool, typer.Option("--quick", help="resnet50-small, 3 repeats, no memory.")] = False,
    scaling: Annotated[bool, typer.Option("--scaling", help="Time per weight at 10, 100 and 500 M instead.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON instead of a table.")] = False,
) -> None:
    """Time LAMP pruning against the alternatives, in one run.

    Prunes the same random weights with lamplighter, with the listing in the paper's appendix, and with torch's
    global_unstructured, in turns, and copies them once for scale. Times are medians; read the ratios, they depend less
    on the machine.
    """
    from lamplighter.benchmarking.pruning import Request  # noqa: PLC0415

    fixed = {"--model": model, "--repeats": repeats, "--memory": memory}
    if scaling:
        _refuse("--scaling", {**fixed, "--dtype": dtype, "--quick": quick or None})
        _prune_scaling(sparsity, device, json, threads)
        return
    dtypes = tuple(dtype or ("float32", "bfloat16"))
    if quick:
        _refuse("--quick", fixed)
        request = Request("resnet50-small", dtypes, sparsity, repeats=3, device=device, with_memory=False)
    else:
        request = Request(model or "resnet50", dtypes, sparsity, repeats or 5, device, memory is not False)
    _prune_contest(request, json, threads)


app.command("prune", help=prose(prune.__doc__ or ""), epilog=EXAMPLES)(prune)
bench_train.register(app)
bench_checkpoint.register(app)
bench_pack.register(app)
bench_distributed.register(app)
bench_sparse.register(app)


def _refuse(chosen: str, given: dict[str, Any]) -> None:
    """An error if options were given that `chosen` leaves no choice in: they would go unheeded."""
    unheeded = [option for option, value in given.items() if value is not None]
    if unheeded:
        raise typer.BadParameter(f"cannot be combined with {', '.join(unheeded)}, leave out one", param_hint=chosen)


def _load_before() -> float | None:
    """The load before measuring, with a warning if times will mislead."""
    from lamplighter.benchmarking import machine  # noqa: PLC0415

    load = machine.load_average()
    if (disturbed := machine.disturbance()) is not None:
        warnings.warn(disturbed, LamplighterWarning, stacklevel=1)
    return load


def _prune_contest(request: "Request", json: bool, threads: int | None) -> None:
    from lamplighter.benchmarking import machine, pruning  # noqa: PLC0415

    request.check()
    load = _load_before()
    with machine.limited_to(threads), progress_bars("runs") as bars:
        task = bars.add_task("measuring", total=pruning.units(request), note="")
        rows = pruning.measure(request, lambda done: bars.update(task, advance=1, note=done))
        about = {**machine.describe(request.device), "load_before": load}
    if dtypes := pruning.unsteady(rows):
        what = f"a plain copy took very different times ({', '.join(dtypes)}): something else ran, ratios will mislead"
        warnings.warn(what, LamplighterWarning, stacklevel=1)
    about["unsteady"] = dtypes
    if json:
        found = [_row_as_data(rows, row) for row in rows]
        write_json({"machine": about, "request": asdict(request), "rows": found})
        return
    stdout().print(_contest_table(rows, request))
    _print_machine(about)


def _row_as_data(rows: "Sequence[Row]", row: "Row") -> dict[str, Any]:
    from lamplighter.benchmarking.pruning import copies, speedup  # noqa: PLC0415

    derived = {"median": row.median, "times_ours": speedup(rows, row), "copies": copies(rows, row)}
    return {**asdict(row), **derived, "peak_extra_of_weights": row.memory}


def _contest_table(rows: "Sequence[Row]", request: "Request") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    from lamplighter.benchmarking.pruning import copies, speedup  # noqa: PLC0415

    caption = f"Medians of {request.repeats}. Extra memory: peak, results included, as a multiple of the weights' own."
    title = f"Pruning {request.model} to sparsity {request.sparsity:g}"
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    table.add_column("weights", no_wrap=True)
    table.add_column("contender", no_wrap=True)
    for column in ("\nms", "times\nours", "times\ncopy", "extra\nmemory"):
        table.add_column(column, justify="right", no_wrap=True)
    for place, row in enumerate(rows):
        new = place == 0 or rows[place - 1].dtype != row.dtype
        if new and place > 0:
            table.add_section()
        ratios = _times(speedup(rows, row)), _times(copies(rows, row))
        extra = "" if row.memory is None else f"{row.memory:.2f}"
        table.add_row(row.dtype if new else "", row.contender, _milliseconds(row.median), *ratios, extra)
    return table


def _prune_scaling(sparsity: float, device: str, json: bool, threads: int | None) -> None:
    from lamplighter.benchmarking import machine, scaling  # noqa: PLC0415

    scaling.check(scaling.SIZES, sparsity, device)
    load = _load_before()
    with machine.limited_to(threads), progress_bars("runs") as bars:
        task = bars.add_task("measuring", total=(1 + scaling.REPEATS) * len(scaling.SIZES), note="making weights")
        rows = scaling.measure(scaling.SIZES, sparsity, device, lambda done: bars.update(task, advance=1, note=done))
        about = {**machine.describe(device), "load_before": load}
    if json:
        write_json({"machine": about, "sparsity": sparsity, "rows": [asdict(row) for row in rows]})
        return
    stdout().print(_scaling_table(rows, sparsity))
    _print_machine(about)


def _scaling_table(rows: "Sequence[scaling.Row]", sparsity: float) -> "Table":
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=f"Pruning float32 weights to sparsity {sparsity:g}", title_justify="left")
    for column in ("weights", "ms", "ns per weight", "times smallest"):
        table.add_column(column, justify="right")
    for row in rows:
        each = f"{row.nanoseconds_per_weight:.2f}", f"{row.times_smallest:.2f}x"
        table.add_row(f"{row.weights:,}", _milliseconds(median(row.seconds)), *each)
    return table


def _milliseconds(seconds: float) -> str:
    """As many digits as mean something."""
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.1f}"


def _load(about: dict[str, Any]) -> str:
    return "unknown" if about["load_before"] is None else f"{about['load_before']:.1f}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"


def _print_machine(about: dict[str, Any]) -> None:
    words = [
        f"{about['processor']}, {about['threads']} threads",
        f"load {_load(about)} before",
        f"torch {about['torch']}",
        about.get("gpu", ""),
    ]
    stderr().print("; ".join(word for word in words if word), style="dim", highlight=False, soft_wrap=True)
