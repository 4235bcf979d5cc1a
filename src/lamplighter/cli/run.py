"""`lamp run`: an experiment of the paper, resumable."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamplighter.cli.console import progress_bars, prose, stderr, stdout, write_json, write_json_line
from lamplighter.errors import LamplighterError

if TYPE_CHECKING:
    from rich.progress import Progress

    from lamplighter.experiments.recipes import Recipe
    from lamplighter.experiments.records import Record
    from lamplighter.experiments.runner import Request
    from lamplighter.experiments.store import Run
    from lamplighter.experiments.sweeps import Demand

EXAMPLES = """[bold]Examples[/bold]
$ lamp run --list                                        [dim]# every recipe, and what it reproduces[/dim]
$ lamp run vgg16-cifar10 --scale 0.05 --seeds 1          [dim]# a twentieth of the training[/dim]
$ lamp run vgg16-cifar10 --methods lamp,erk --rounds 10  [dim]# part of it; the rest can follow[/dim]
$ lamp run vgg16-cifar10 --ray auto --gpus-per-task 0.2  [dim]# on a Ray cluster, five tasks on each GPU[/dim]
$ lamp report runs -o report                             [dim]# tables and figures of what is finished[/dim]"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to `app`, in the given section of its help."""
    app.command("run", help=prose(run.__doc__ or ""), epilog=EXAMPLES, rich_help_panel=panel)(run)


def run(
    recipe: Annotated[str | None, typer.Argument(help="Name of the experiment; --list shows them.")] = None,
    *,
    listed: Annotated[bool, typer.Option("--list", help="Show the recipes and what each reproduces.")] = False,
    methods: Annotated[str | None, typer.Option(help="Separated by commas.", show_default="the paper's")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many, from 0.", show_default="the paper's")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Go so far.", show_default="the paper's last")] = None,
    scale: Annotated[float, typer.Option(help="Shortens all trainings alike: 0.05 is a twentieth.")] = 1.0,
    data: Annotated[Path | None, typer.Option(help="The dataset's folder.", show_default="./data, or fetched")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of all runs.")] = Path("runs"),
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:0.", show_default="cuda if there")] = None,
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16 (on GPUs, faster).")] = "fp32",
    together: Annotated[int, typer.Option(min=1, help="Networks that train side by side on a GPU.")] = 5,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster: auto, local or host:port of its head.")] = None,
    gpus_per_task: Annotated[
        float | None, typer.Option(min=0, help="With --ray; 0.25 shares a GPU.", show_default="1 if there are any")
    ] = None,
    cpus_per_task: Annotated[float | None, typer.Option(min=0.1, help="With --ray.", show_default="1")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line for each finished round.")] = False,
) -> None:
    """Run an experiment of the paper.

    Trains, prunes and tests round by round; every finished round is kept in RUNS/RECIPE/METHOD-SEED-HASH. Interrupted
    at any moment and started again, it goes on from there; asked for more rounds, methods or seeds, it adds them.

    On a Ray cluster every run is a task of its own; folders of data and runs have to be the same ones on all nodes.
    """
    from lamplighter.experiments.recipes import RECIPES, find_recipe  # noqa: PLC0415

    if listed or recipe is None:
        if recipe is None and not listed:
            raise LamplighterError("no recipe is named", "lamp run --list shows them")
        _show_recipes([find_recipe(name) for name in RECIPES], json)
        return
    found = find_recipe(recipe, scale, _precision(precision))
    request = _request(found, methods, seeds, rounds, together)
    if ray is None:
        _refuse_without_ray(gpus_per_task, cpus_per_task)
        _carry_out(request, data, out, device, json)
    else:
        demand = _demand(device, gpus_per_task, cpus_per_task)
        _sweep(request, data, out, json, address=ray, demand=demand)


def _precision(given: str) -> Any:  # noqa: ANN401
    if given not in {"fp32", "tf32", "bf16"}:
        raise LamplighterError(f"precision is {given!r}, expected fp32, tf32 or bf16")
    return given


def _request(recipe: "Recipe", methods: str | None, seeds: int | None, rounds: int | None, together: int) -> "Request":
    from lamplighter.experiments.runner import Request, check_request  # noqa: PLC0415

    chosen = recipe.methods if methods is None else tuple(part.strip() for part in methods.split(",") if part.strip())
    last = recipe.rounds[-1] if rounds is None else rounds
    steps = recipe.rounds if last <= recipe.rounds[-1] else tuple(range(1, last + 1))
    made = tuple(index for index in steps if index <= last)
    request = Request(recipe, chosen, tuple(range(seeds or recipe.seeds)), made, together)
    check_request(request)
    return request


def _carry_out(request: "Request", data: Path | None, out: Path, device: str | None, json: bool) -> None:
    import torch  # noqa: PLC0415

    from lamplighter.benchmarking.pruning import check_device  # noqa: PLC0415
    from lamplighter.experiments.runner import carry_out  # noqa: PLC0415
    from lamplighter.experiments.sources import open_data  # noqa: PLC0415
    from lamplighter.experiments.starting import Place  # noqa: PLC0415

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
    content, data_hash = open_data(request.recipe.spec, data)
    there = content if isinstance(content, Path) else content.to(device)
    with progress_bars("steps") as bars:
        watch = Bars(bars, request, json)
        runs = carry_out(request, Place(out, there, torch.device(device)), watch, data_hash)
    _show_end(runs, request, out, json)


def _refuse_without_ray(gpus: float | None, cpus: float | None) -> None:
    for name, given in {"--gpus-per-task": gpus, "--cpus-per-task": cpus}.items():
        if given is not None:
            raise LamplighterError(f"{name} is for sweeps on a cluster", "add --ray ADDRESS")


def _demand(device: str | None, gpus: float | None, cpus: float | None) -> "Demand":
    """What each task takes of its node."""
    from lamplighter.experiments.sweeps import Demand  # noqa: PLC0415

    if device not in {None, "cpu", "cuda"}:
        raise LamplighterError(f"device is {device!r}, but Ray chooses where a task runs", "say cpu or cuda")
    if (device == "cpu" and gpus) or (device == "cuda" and gpus == 0):
        raise LamplighterError(f"tasks are to train on {device}, and to take {gpus:g} GPUs each", "leave out one")
    if device is not None and gpus is None:
        gpus = float(device == "cuda")
    return Demand(1.0 if cpus is None else cpus, gpus)


def _sweep(request: "Request", data: Path | None, out: Path, json: bool, *, address: str, demand: "Demand") -> None:
    from lamplighter.experiments.sweeps import connected, find_site, finished_rounds, sweep  # noqa: PLC0415

    with connected(address):
        site = find_site(request.recipe.spec, data, out)
        with progress_bars("tasks") as bars:
            watch = Bars(bars, request, json, "tasks", finished_rounds(request, site.root))
            runs = sweep(request, site, demand, watch)
    _show_end(runs, request, out, json)


def _show_end(runs: "list[Run]", request: "Request", out: Path, json: bool) -> None:
    if not json:
        stdout().print(f"{len(runs)} runs in {out / request.recipe.name}; lamp report {out} -o report", highlight=False)


class Bars:
    """Progress as bars, and a line for each finished round.

    Args:
        bars: where they are shown.
        request: what is carried out.
        json: whether the lines are JSON, on standard output.
        unit: what the second bar counts.
        before: rounds that were finished before.
    """

    def __init__(self, bars: "Progress", request: "Request", json: bool, unit: str = "steps", before: int = 0) -> None:
        self.bars = bars
        self.json = json
        total = len(request.dense) + len(request.pruned) * len(request.rounds)
        self.rounds = bars.add_task("rounds", total=total, completed=before, note=request.recipe.name)
        self.training = bars.add_task(unit, total=None, note="")

    def phase(self, title: str, steps: int) -> None:
        """A training begins."""
        self.bars.reset(self.training, total=steps, note=title)

    def step(self, done: int) -> None:
        """So many of its steps are done."""
        self.bars.update(self.training, completed=done)

    def finished(self, run: "Run", record: "Record") -> None:
        """A round is finished and kept."""
        self.bars.update(self.rounds, advance=1)
        if self.json:
            write_json_line({"run": str(run.folder), "density": record.density, **asdict(record)})
            return
        line = f"{run.spec.method:9} seed {run.spec.seed} round {record.round:2} {100 * record.density:6.2f} %"
        if record.metric != "none":
            line += f"  {record.metric} {record.value:.4g}, loss {record.loss:.4g}  {record.seconds:.0f} s"
        (self.bars.console if self.bars.console.is_terminal else stderr()).print(line, highlight=False)


def _show_recipes(recipes: "list[Recipe]", json: bool) -> None:
    from rich.table import Table  # noqa: PLC0415

    if json:
        write_json({each.name: {"reproduces": each.reproduces, "methods": each.methods} for each in recipes})
        return
    table = Table(title="Recipes", title_justify="left")
    for column in ("recipe", "reproduces", "steps", "rounds", "seeds"):
        table.add_column(column, justify="right" if column in {"rounds", "seeds"} else "left")
    for each in recipes:
        steps = f"{each.spec.dense.steps:,} + {each.spec.retrain.steps:,}"
        table.add_row(each.name, each.reproduces, steps, str(each.rounds[-1]), str(each.seeds))
    stdout().print(table)
