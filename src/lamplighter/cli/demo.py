"""`lamp demo`: trains, prunes and plots on built-in data."""

import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamplighter.cli.console import progress_bars, prose, stderr, stdout, write_json
from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.optional import require

if TYPE_CHECKING:
    from lamplighter.experiments.demo import Point, Setting

METHODS = "lamp,global,uniform,erk"

EXAMPLES = """[bold]Examples[/bold]
$ lamp demo                                 [dim]# everything; figures in ./demo[/dim]
$ lamp demo --methods lamp,erk --trials 1   [dim]# a quicker look at two methods[/dim]
$ lamp demo --json > demo.json              [dim]# every measurement, as data[/dim]"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to `app`, in the given section of its help."""
    app.command("demo", help=prose(demo.__doc__ or ""), epilog=EXAMPLES, rich_help_panel=panel)(demo)


def demo(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for curves.png and layers.png.")] = Path("demo"),
    methods: Annotated[str, typer.Option(help="Methods to compare, separated by commas.")] = METHODS,
    seed: Annotated[int, typer.Option(min=0, help="First trial's seed: split, initial weights, order of batches.")] = 0,
    trials: Annotated[int, typer.Option(min=1, help="Networks to train and average over.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, max=30, help="Each prunes 20 % of what is left; 21 leave 0.92 %.")] = 21,
    json: Annotated[bool, typer.Option("--json", help="Print every measurement as JSON instead of the table.")] = False,
) -> None:
    """Train a small network, prune it round by round in several ways, compare.

    Nothing is downloaded: the images are the digits that come with scikit-learn. All methods start from the same
    trained network and train the same number of steps after each pruning; they differ only in how much they leave to
    each layer. Takes about a minute.
    """
    require("lamp demo", "demo", "matplotlib", "sklearn")
    from lamplighter.experiments.demo import Setting, check_methods  # noqa: PLC0415
    from lamplighter.report import demo as report  # noqa: PLC0415

    chosen = tuple(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
    if not chosen:
        raise typer.BadParameter("name at least one method", param_hint="--methods")
    setting = Setting(methods=chosen, seed=seed, trials=trials, rounds=rounds)
    check_methods(setting)
    _make_folder(out)
    began = time.perf_counter()
    points = _watch(setting)
    paths = report.draw(points, setting, out)
    seconds = time.perf_counter() - began
    if json:
        write_json(report.record(points, setting, seconds))
    else:
        stdout().print(report.table(points, setting))
    stderr().print(f"{seconds:.0f} s. Figures: {paths[0]} and {paths[1]}", highlight=False, soft_wrap=True)


def _make_folder(folder: Path) -> None:
    """Make the folder of the figures and write to it, so that a place that cannot be is told before any training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror or str(error)
        raise LamplighterError(
            f"figures cannot be written to {folder}: {why}",
            "name a folder with --out that you may write to; it is made if it is not there",
        ) from error


def _watch(setting: "Setting") -> "list[Point]":
    """Run the demonstration behind one progress bar for the dense networks and one for each method."""
    from lamplighter.experiments.demo import measure  # noqa: PLC0415
    from lamplighter.report.figures import percent  # noqa: PLC0415

    points: list[Point] = []
    with progress_bars("steps") as bars, warnings.catch_warnings():
        # That some methods empty whole layers is what the figures show; not once a round across the bars as well.
        warnings.simplefilter("ignore", LamplighterWarning)
        phases = {**setting.steps, "all": sum(setting.steps.values())}
        width = max(map(len, phases))
        tasks = {
            phase: bars.add_task(phase.ljust(width), total=steps, start=False, note="")
            for phase, steps in phases.items()
        }
        bars.start_task(tasks["dense"])
        bars.start_task(tasks["all"])
        for point in measure(setting):
            bars.start_task(tasks[point.method])
            note = f"{100 * point.accuracy:.1f} at {percent(point.density)} %"
            bars.update(tasks[point.method], advance=point.steps, note=note)
            bars.advance(tasks["all"], point.steps)
            points.append(point)
    return points
