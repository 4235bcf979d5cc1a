"""`lamp report`: tables and figures, or one page, from the records of runs."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamplighter.cli.console import prose, stderr, stdout, write_json
from lamplighter.errors import LamplighterError
from lamplighter.optional import require

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from lamplighter.report.bundle import Section
    from lamplighter.report.results import Counted, Results
    from lamplighter.report.tables import Entry, Table

OUT = "Folder for tables and figures, or the name of a page, which ends in .html."
EXAMPLES = """[bold]Examples[/bold]
$ lamp report runs                        [dim]# files in ./report[/dim]
$ lamp report runs -o report.html         [dim]# one page, for a browser[/dim]
$ lamp report runs -r vgg16-cifar10       [dim]# one recipe[/dim]
$ lamp report runs --json > results.json  [dim]# every number, as data[/dim]"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to `app`, in the given section of its help."""
    app.command("report", help=prose(report.__doc__ or ""), epilog=EXAMPLES, rich_help_panel=panel)(report)


def report(
    *,
    runs: Annotated[Path, typer.Argument(help="Folder of runs; it is searched at any depth.")] = Path("runs"),
    out: Annotated[Path, typer.Option("--out", "-o", help=OUT)] = Path("report"),
    recipe: Annotated[list[str] | None, typer.Option("--recipe", "-r", help="Repeatable.", show_default="all")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print every number as JSON instead of the tables.")] = False,
) -> None:
    """Make the paper's tables and figures of finished runs.

    Each recipe gets a table (Markdown, LaTeX, CSV) with the paper's own values beside it, and figures (PNG, PDF):
    accuracy over sparsity, what survives of each layer, iteration against one-shot pruning. Runs that differ in
    anything but method and seed are not mixed. Unfinished runs count as far as they got.

    If OUT ends in .html, all of it becomes one page instead: a single file with charts, a slider over rounds, sortable
    tables and where the numbers come from, that needs no network.
    """
    is_page = out.suffix.lower() == ".html"
    require("lamp report", "report", "plotly" if is_page else "matplotlib")
    from lamplighter.report.bundle import sections  # noqa: PLC0415
    from lamplighter.report.files import write_whole  # noqa: PLC0415
    from lamplighter.report.results import grouped  # noqa: PLC0415

    found = _collect(runs)
    results = grouped(found)
    chosen = [section for section in sections(results) if section.results.spec.recipe in _wanted(results, recipe)]
    # All of it is made before any of it is written.
    made = _page(chosen, found, runs, out) if is_page else _bundle(chosen, results, out)
    for path, content in made.items():
        write_whole(path, content)
    paths = list(made)
    if json:
        write_json({"results": [_as_data(section) for section in chosen], "files": [str(path) for path in paths]})
    else:
        for section in chosen:
            _show(section)
    for path in paths:
        stderr().print(str(path), highlight=False, soft_wrap=True, markup=False)


def _bundle(chosen: "list[Section]", results: "list[Results]", out: Path) -> dict[Path, bytes]:
    from lamplighter.report.bundle import contents  # noqa: PLC0415

    return {out / name: content for section in chosen for name, content in contents(section, results).items()}


def _page(chosen: "list[Section]", found: "list[Counted]", runs: Path, out: Path) -> dict[Path, bytes]:
    from lamplighter.report.page.assembly import page  # noqa: PLC0415

    if out.is_dir():
        raise LamplighterError(f"{out} is a folder, and a page is a file", "give another name that ends in .html")
    return {out: page(chosen, found, runs)}


def _collect(runs: Path) -> "list[Counted]":
    from lamplighter.experiments.store import find_runs  # noqa: PLC0415
    from lamplighter.report.results import counted  # noqa: PLC0415

    if not runs.is_dir():
        raise LamplighterError(f"{runs} is not a folder", "give the folder that `lamp run` wrote its runs to")
    found = find_runs(runs)
    if not found:
        raise LamplighterError(f"there are no runs below {runs}", "give the folder that `lamp run` wrote its runs to")
    finished = counted(found)
    if not finished:
        raise LamplighterError(
            f"none of the {len(found)} runs below {runs} has finished a round", "wait for `lamp run`, or start it again"
        )
    return finished


def _wanted(results: "list[Results]", recipes: list[str] | None) -> set[str]:
    """The recipes to report on: those asked for, which must be there, or all."""
    from lamplighter.naming import closest  # noqa: PLC0415

    known = dict.fromkeys(each.spec.recipe for each in results)
    for recipe in recipes or ():
        if recipe not in known:
            raise LamplighterError(f"there are no runs of a recipe {recipe}", closest(recipe, known))
    return set(recipes or known)


def _show(section: "Section") -> None:
    if not section.tested:
        stdout().print(f"{section.title}: nothing was tested; see its figure.", highlight=False, markup=False)
        return
    shown = section.table
    stdout().print(shown.title, style="bold", highlight=False, markup=False)
    stdout().print(_terminal_table(shown))
    stdout().print(" ".join(shown.notes), style="dim", highlight=False, markup=False)
    stdout().print()


def _terminal_table(shown: "Table") -> "RichTable":
    """Densities by methods, the other way round than in print: terminals are narrow and long."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("left (%)", justify="right", no_wrap=True)
    for method in shown.rows:
        table.add_column(method, justify="right", no_wrap=True)
    for place, head in enumerate(shown.heads):
        table.add_row(head, *(_terminal_cell(entries[place]) for entries in shown.rows.values()))
    return table


def _terminal_cell(entry: "Entry") -> str:
    """Ours, how many seeds if that is not the same everywhere, and the paper's below."""
    number, _, seeds = entry.text.replace(" ± ", "±").partition(" ")
    lines = [f"[bold]{number}[/bold]" if entry.bold else number, seeds]
    if entry.paper:
        lines.append(f"[dim italic]{entry.paper_text.replace(' ± ', '±')}[/dim italic]")
    return "\n".join(filter(None, lines))


def _as_data(section: "Section") -> dict[str, Any]:
    from lamplighter.report.tables import rows  # noqa: PLC0415

    spec = section.results.spec
    settings = {name: value for name, value in spec.to_json().items() if name not in ("method", "seed")}
    found = [_finite(row) for row in rows(section.results, section.title)] if section.tested else []
    return {"recipe": spec.recipe, "title": section.title, "settings": settings, "rows": found}


def _finite(value: Any) -> Any:  # noqa: ANN401
    """JSON has no infinities and no NaN, which is what a network that diverged is worth: null instead."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
