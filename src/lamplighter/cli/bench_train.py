"""`lamp bench train`: training steps per second on this machine, ours against the plain loop."""

import json as encoding
import os
import warnings
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamplighter.cli.console import progress_bars, prose, stderr, stdout, write_json
from lamplighter.errors import LamplighterError, LamplighterWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from lamplighter.benchmarking.training import Request, Row

EXAMPLES = """[bold]Examples[/bold]
$ lamp bench train                                   [dim]# every variant[/dim]
$ lamp bench train --variants loop-fp32,graph-bf16   [dim]# two of them[/dim]
$ lamp bench train --trials 10 --out speed.json      [dim]# kept as it goes[/dim]
$ lamp bench train --profile graph-bf16              [dim]# and its kernels[/dim]"""

# What takes a minute or two on the device.
STEPS = {"cuda": 1000, "cpu": 20}
WIDTH = {"cuda": 64, "cpu": 8}

Variants = Annotated[str | None, typer.Option(help="Separated by commas.", show_default="all the device can run")]
Steps = Annotated[int | None, typer.Option(min=1, help="Steps to time.", show_default="1000; on a CPU 20")]
Width = Annotated[int | None, typer.Option(min=1, help="Of VGG-16's first layer.", show_default="64; on a CPU 8")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:0.", show_default="cuda if there is one")]
Profile = Annotated[str, typer.Option(metavar="NAME", help="Variants whose kernels to list. CUDA only.")]


def register(group: typer.Typer) -> None:
    """Add the command to the group `lamp bench`."""
    group.command("train", help=prose(train.__doc__ or ""), epilog=EXAMPLES)(train)


def train(
    *,
    variants: Variants = None,
    steps: Steps = None,
    batch: Annotated[int, typer.Option(min=1, help="Images per step.")] = 100,
    width: Width = None,
    device: Device = None,
    trials: Annotated[int, typer.Option(min=1, help="Networks, in variants that train several together.")] = 5,
    limit: Annotated[float, typer.Option(min=0, help="Seconds that each variant may take.")] = 180,
    profile: Profile = "",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON file, written after each variant.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON instead of a table.")] = False,
) -> None:
    """Time training of VGG-16: step by step, compiled, recorded, several trials at once.

    The plain loop, loop-fp32, is what the others are compared with. Random images stand in for CIFAR-10. Each variant
    runs in a process of its own: a few steps to compile and warm up, which takes less when the compiler has kept its
    work from an earlier run, then the steps that are timed. One that fails or takes too long costs only itself.

    Variants: loop-fp32, loop-tf32 and loop-bf16, a plain loop in three precisions; compiled-bf16; graph-tf32 and
    graph-bf16, steps recorded as a CUDA graph; branches, streams and stacked, several trials at once in three ways;
    branches-sparse and stacked-sparse, with 1.15 % of the weights; graph-bf16-autotuned and branches-autotuned, with a
    search for the fastest kernels; stacked-loop, several trials at once without recording. A CPU can run loop-fp32,
    loop-bf16, compiled-bf16 and stacked-loop.
    """
    from lamplighter.benchmarking.training import Request, suited  # noqa: PLC0415

    place, kind = _place(device)
    profiled = _names(profile)
    chosen = tuple(dict.fromkeys((*(suited(place) if variants is None else _names(variants)), *profiled)))
    if not chosen:
        raise typer.BadParameter("name at least one variant", param_hint="--variants")
    request = Request(
        chosen, steps or STEPS[kind], batch, width or WIDTH[kind], place, trials, limit=limit, profile=profiled
    )
    request.check()
    if device is None and kind == "cpu":
        sizes = f"width {request.width}, {request.steps} steps of {batch} images"
        stderr().print(f"No CUDA device here: measuring on the CPU ({sizes}).", highlight=False, soft_wrap=True)
    _contest(request, out, json)


def _place(device: str | None) -> tuple[str, str]:
    """The device to measure on, and whether that is "cuda" or "cpu"."""
    import torch  # noqa: PLC0415

    from lamplighter.benchmarking.pruning import check_device  # noqa: PLC0415

    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(place)
    return place, torch.device(place).type


def _names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def _contest(request: "Request", out: Path | None, json: bool) -> None:
    from lamplighter.benchmarking import machine  # noqa: PLC0415
    from lamplighter.cli.bench import _print_machine  # noqa: PLC0415  (that module registers this one)

    about = {**_about(request.device), "load_before": machine.load_average()}
    if (disturbed := machine.disturbance()) is not None:
        warnings.warn(disturbed, LamplighterWarning, stacklevel=1)
    rows: list[Row] = []
    _keep(None, out)  # so that a place that cannot be written is told before the work
    _measure(rows, request, about, out)
    for row in rows:
        if trouble := row.error or row.profile_error:
            what = "failed" if row.error else "could not be profiled"
            warnings.warn(f"{row.variant} {what}: {trouble}", LamplighterWarning, stacklevel=1)
    if json:
        write_json(_record(rows, request, about))
    else:
        stdout().print(_table(rows, request))
        for row in rows:
            if row.kernels:
                stdout().print(_kernel_table(row))
        _print_machine(about)
    if all(row.error for row in rows):
        raise LamplighterError(
            "no variant could be measured", "see the warnings above; --json shows where each went wrong"
        )


def _measure(rows: "list[Row]", request: "Request", about: dict[str, Any], out: Path | None) -> None:
    """Add the row of each variant, and keep what there is after each."""
    from lamplighter.benchmarking.training import measure, trials_of  # noqa: PLC0415

    with progress_bars("steps") as bars:
        total = request.steps * sum(trials_of(name, request) for name in request.variants)
        task = bars.add_task("measuring", total=total, note="")
        for name in request.variants:
            bars.update(task, note=name)
            rows.append(measure(name, request))
            bars.advance(task, request.steps * trials_of(name, request))
            _keep(_record(rows, request, about), out)


def _about(device: str) -> dict[str, Any]:
    """The machine, with the versions of CUDA's libraries where they matter."""
    import torch  # noqa: PLC0415

    from lamplighter.benchmarking import machine  # noqa: PLC0415

    about = machine.describe(device)
    if torch.device(device).type == "cuda":
        about |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]
    return about


def _record(rows: "Sequence[Row]", request: "Request", about: dict[str, Any]) -> dict[str, Any]:
    from lamplighter.benchmarking.training import VARIANTS, speedup  # noqa: PLC0415

    found = [
        {**asdict(row), "total": row.total, "times_plain": speedup(rows, row), "how": asdict(VARIANTS[row.variant])}
        for row in rows
    ]
    return {"machine": about, "request": asdict(request), "rows": found}


def _keep(record: dict[str, Any] | None, out: Path | None) -> None:
    """Write the file, if one is wanted, so that nothing measured is lost when the rest is interrupted.

    Without a record this only tries whether it could be written: what an earlier run left there stays.
    """
    if out is None:
        return
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(encoding.dumps(record, indent=1) + "\n", "utf-8")
        if record is None:
            part.unlink()
        else:
            part.replace(out)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise LamplighterError(f"{out} cannot be written: {error}", "name another file with --out") from error


def _table(rows: "Sequence[Row]", request: "Request") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    from lamplighter.benchmarking.training import PLAIN, speedup  # noqa: PLC0415

    of_device = request.device != "cpu"
    caption = f"Memory: the most that {'tensors on the device' if of_device else 'the process'} took."
    if PLAIN not in request.variants:
        caption += f" Ratios need {PLAIN}."
    title = f"Training VGG-16 of width {request.width}: {request.steps:,} steps of {request.batch} images"
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    table.add_column("variant", no_wrap=True)
    for column in ("\ntrials", "steps/s\nin all", "steps/s\nof each", "times\nplain", "s to\nprepare", "\nmemory"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.variant, str(row.trials), *_cells(row, speedup(rows, row)))
    return table


def _cells(row: "Row", ratio: float | None) -> tuple[str, ...]:
    if row.total is None or row.each is None or row.preparation is None:
        return ("failed",)
    times = "" if ratio is None else f"{ratio:.2f}"
    memory = "" if row.memory is None else f"{row.memory / 1e9:.2f} GB"
    return _rate(row.total), _rate(row.each), times, f"{row.preparation:.0f}", memory


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _kernel_table(row: "Row") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    title = f"{row.variant}: the kernels of one recording, {row.recorded_steps} steps of each trial"
    table = Table(title=title, title_justify="left")
    table.add_column("us", justify="right", no_wrap=True)
    table.add_column("calls", justify="right", no_wrap=True)
    table.add_column("kernel", no_wrap=True)  # C++ names run to hundreds of characters; --json has them whole
    for kernel in row.kernels:
        table.add_row(f"{kernel.microseconds:,.1f}", str(kernel.calls), kernel.name)
    return table
