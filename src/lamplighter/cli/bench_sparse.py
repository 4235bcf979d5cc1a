"""`lamp bench sparse`: pruned networks in our runtime and in dense ones, on this machine."""

import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamplighter.cli.console import progress_bars, prose, stderr, stdout, write_json
from lamplighter.errors import LamplighterWarning

if TYPE_CHECKING:
    from rich.table import Table

    from lamplighter.benchmarking.sparse import Report, Request

EXAMPLES = """[bold]Examples[/bold]
$ lamp bench sparse                                  [dim]# VGG-16 for CIFAR, one image at a time[/dim]
$ lamp bench sparse --batch 16 --threads 2
$ lamp bench sparse --model resnet50 --density 0.05 --density 0.02
$ lamp bench sparse --against openvino --json        [dim]# every repeat, as data[/dim]"""


def register(group: typer.Typer) -> None:
    """Add the command to the group `lamp bench`."""
    group.command("sparse", help=prose(sparse.__doc__ or ""), epilog=EXAMPLES)(sparse)


def sparse(
    *,
    model: Annotated[str, typer.Option(help="vgg16, resnet50 or linear.")] = "vgg16",
    density: Annotated[
        list[float] | None, typer.Option(help="Repeatable.", show_default="0.0352, 0.0115, 0.003")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images at once.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="For everyone to use.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each, after two to warm up.")] = 20,
    against: Annotated[
        list[str] | None,
        typer.Option(help="A dense runtime: eager, inductor, openvino, onnxruntime. Repeatable.", show_default="all"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON instead of a table.")] = False,
) -> None:
    """Time pruned networks in our runtime against dense runtimes.

    A network with as many weights in each layer as LAMP leaves there is run by torch, eagerly and compiled, by OpenVINO
    and ONNX Runtime where they are installed, and by our sparse kernels, in turns. Dense runtimes take the same time at
    every density. Read the ratios to the fastest of them.
    """
    from lamplighter.benchmarking import machine  # noqa: PLC0415
    from lamplighter.benchmarking.sparse import Request, measure  # noqa: PLC0415

    densities = tuple(density) if density else (0.0352, 0.0115, 0.0030)
    request = Request(model, densities, batch, threads, repeats, tuple(against or ()))
    request.check()
    about: dict[str, Any] = {"load_before": machine.load_average()}
    if (disturbed := machine.disturbance()) is not None:
        warnings.warn(disturbed, LamplighterWarning, stacklevel=1)
    with progress_bars("steps") as bars:
        task = bars.add_task("measuring", total=units(request), note="")
        report = measure(request, lambda done: bars.update(task, advance=1, note=done))
    about = {**machine.describe("cpu"), **about, "threads": threads}
    if json:
        write_json({"machine": about, "request": asdict(request), "missing": report.missing, "rows": _data(report)})
        return
    stdout().print(_table(report, request))
    for name, why in report.missing.items():
        stderr().print(f"without {name}: {why}", style="dim", highlight=False, soft_wrap=True)
    load = "unknown" if about["load_before"] is None else f"{about['load_before']:.1f}"
    words = f"{about['processor']}, {threads} of {about['cores']} threads; load {load} before; torch {about['torch']}"
    stderr().print(words, style="dim", highlight=False, soft_wrap=True)


def units(request: "Request") -> int:
    """How many times progress is reported."""
    from lamplighter.benchmarking.sparse_contenders import CONTENDERS  # noqa: PLC0415

    return len(request.against or CONTENDERS) + len(request.densities) + request.repeats + 2


def _data(report: "Report") -> list[dict[str, Any]]:
    return [
        {
            **asdict(row),
            "median": row.median,
            "median_cpu": row.median_cpu,
            "speedup": report.speedup(row),
            "speedup_cpu": report.speedup_cpu(row),
        }
        for row in report.rows
    ]


def _table(report: "Report", request: "Request") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    images = "1 image" if request.batch == 1 else f"{request.batch} images"
    caption = f"Medians of {request.repeats}. Work: multiply-adds left. Times: as fast as the fastest dense runtime."
    table = Table(title=f"{request.model}, {images}", caption=caption, title_justify="left", caption_justify="left")
    table.add_column("contender", no_wrap=True)
    for column in ("density", "work", "ms", "CPU ms", "times", "times (CPU)"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in report.rows:
        sizes = ["" if value is None else f"{100 * value:.3g} %" for value in (row.density, row.work)]
        taken = [f"{1000 * value:.3g}" for value in (row.median, row.median_cpu)]
        table.add_row(row.contender, *sizes, *taken, f"{report.speedup(row):.2f}", f"{report.speedup_cpu(row):.2f}")
    return table
