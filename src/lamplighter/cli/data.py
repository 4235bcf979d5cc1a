"""`lamp data`: what the experiments train on, prepared once into one checked file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamplighter.cli.console import progress_bars, prose, show_help_if_bare, stderr, stdout, write_json
from lamplighter.data.catalog import PREPARED
from lamplighter.errors import LamplighterError
from lamplighter.optional import require

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from lamplighter.data.catalog import ImageSource, TextSource
    from lamplighter.data.prepare import Prepared

READERS = frozenset({"PIL", "pyarrow"})

EXAMPLES = """[bold]Examples[/bold]
$ lamp data list                           [dim]# what there is, what is prepared[/dim]
$ lamp data prepare cifar10                [dim]# fetched from the Hugging Face hub[/dim]
$ lamp data prepare ptb --source ~/files   [dim]# from files that are here[/dim]
$ lamp data verify cifar10                 [dim]# still what was written?[/dim]"""

app = typer.Typer()

Name = Annotated[str, typer.Argument(help="A dataset, as `lamp data list` names it.", show_default=False)]
Folder = Annotated[Path, typer.Option("--data", help="Folder of the prepared files.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.callback(invoke_without_command=True)
def data(ctx: typer.Context) -> None:
    """Prepare the datasets that experiments train on."""
    show_help_if_bare(ctx)


def register(parent: typer.Typer, panel: str) -> None:
    """Add the group to `parent`, in the given section of its help."""
    parent.add_typer(app, name="data", rich_help_panel=panel)


def list_datasets(*, folder: Folder = PREPARED, json: Json = False) -> None:
    """List the datasets: what they hold, where they come from, whether they are prepared.

    Says "partly" of a file that holds fewer images or words than the whole dataset, and "damaged" of one that cannot
    be read. Only `lamp data verify` reads all of it.
    """
    from lamplighter.data.catalog import DATASETS  # noqa: PLC0415

    found = {name: _look(name, folder) for name in DATASETS}
    if json:
        write_json([_as_data(name, DATASETS[name], state) for name, state in found.items()])
        return
    stdout().print(_table(found))
    stderr().print(
        f"Looked for prepared files in {folder}. Missing ones: lamp data prepare NAME",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )


def prepare(
    name: Name,
    *,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Folder that holds the dataset, or a folder of its name: parquet files as the hub serves them, class "
            "folders of images, text files, or a tar archive of text files.",
            show_default="the Hugging Face hub",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--data", "--out", "-o", help="Folder for the prepared file.")] = PREPARED,
    force: Annotated[bool, typer.Option("--force", help="Do it again even if it is done.")] = False,
    json: Json = False,
) -> None:
    """Turn a dataset into one checked file, once.

    Images become pixels and labels, text becomes word numbers; the file is an ordinary safetensors file with its own
    hash inside. Where it is there already, and whole, nothing is done.
    """
    from lamplighter.data import prepare as preparing  # noqa: PLC0415

    there = None if force else preparing.find(name, folder)
    if there is None:
        done = _prepare(name, source, folder)
    else:
        with _waiting("checking"):
            done = preparing.verify(name, folder)
        said = f"{name} is prepared already, and whole: nothing to do (--force does it again)"
        stderr().print(said, highlight=False, soft_wrap=True)
    if json:
        write_json({"name": name, **_prepared_as_data(done), "already": there is not None})
        return
    _print_prepared(name, done)


def verify(name: Name, *, folder: Folder = PREPARED, json: Json = False) -> None:
    """Read a prepared file and compare it with its hash.

    Exits with 1 if the file is not there, or is not what was written.
    """
    from lamplighter.data import prepare as preparing  # noqa: PLC0415

    with _waiting("checking"):
        found = preparing.verify(name, folder)
    if json:
        write_json({"name": name, **_prepared_as_data(found)})
        return
    _print_prepared(name, found)
    print(f"whole: sha256 {found.sha256}")


app.command("list", help=prose(list_datasets.__doc__ or ""), epilog=EXAMPLES)(list_datasets)
app.command("prepare", help=prose(prepare.__doc__ or ""), epilog=EXAMPLES)(prepare)
app.command("verify", help=prose(verify.__doc__ or ""), epilog=EXAMPLES)(verify)


def _prepare(name: str, source: Path | None, folder: Path) -> "Prepared":
    from lamplighter.data import prepare as preparing  # noqa: PLC0415
    from lamplighter.data.catalog import DATASETS, ImageSource  # noqa: PLC0415

    if isinstance(DATASETS.get(name), ImageSource):
        require(f"preparing {name}", "train", "PIL")
    with _users_mistakes(name), progress_bars("images") as bars:
        watch = _Watch(bars)
        preparing.prepare(name, source, folder, force=True, progress=watch)
        watch.finish()
    done = preparing.find(name, folder)
    assert done is not None
    return done


class _Watch:
    """A bar for each split, the first of them begun at once because opening the files can take a while."""

    def __init__(self, bars: "Progress") -> None:
        self.bars = bars
        self.tasks: dict[str, TaskID] = {}
        self.waiting = bars.add_task("reading", total=None, note="")

    def __call__(self, split: str, done: int, total: int) -> None:
        if split not in self.tasks:
            self.bars.update(self.waiting, visible=False)
            self.tasks[split] = self.bars.add_task(split, total=total, note="")
        self.bars.update(self.tasks[split], completed=done)
        if done == total:
            self.bars.update(self.waiting, description="checking", visible=True)

    def finish(self) -> None:
        """Leave no bar that seems to go on."""
        self.bars.update(self.waiting, total=1, completed=1)


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    """A bar without an end, for work that does not say how far it is."""
    with progress_bars("") as bars:
        task = bars.add_task(what, total=None, note="")
        yield
        bars.update(task, total=1, completed=1)


@contextmanager
def _users_mistakes(name: str) -> Iterator[None]:
    """Packages that are missing and folders that cannot be read or written are told in one line."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in READERS:
            raise
        require(f"preparing {name}", "train", error.name)
        raise
    except OSError as error:
        what = f"{name} could not be prepared: {error}"
        raise LamplighterError(what, "are both folders there and allowed, and is there room?") from error


def _look(name: str, folder: Path) -> "Prepared | LamplighterError | None":
    """What is prepared; a damaged file must not keep the others from being listed."""
    from lamplighter.data.prepare import find  # noqa: PLC0415

    try:
        return find(name, folder)
    except LamplighterError as error:
        return error


def _table(found: "dict[str, Prepared | LamplighterError | None]") -> "Table":
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from lamplighter.data.catalog import DATASETS  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("holds")
    table.add_column("on the Hugging Face hub", no_wrap=True)
    table.add_column("prepared", no_wrap=True)
    for name, state in found.items():
        table.add_row(name, _contents(DATASETS[name]), DATASETS[name].hub, _word(state))
    return table


def _contents(source: "ImageSource | TextSource") -> str:
    from lamplighter.data.catalog import ImageSource  # noqa: PLC0415

    total = sum(source.counts.values())
    return f"{total:,} images, {source.classes} classes" if isinstance(source, ImageSource) else f"{total:,} words"


def _word(state: "Prepared | LamplighterError | None") -> str:
    if state is None:
        return "no"
    if isinstance(state, LamplighterError):
        return "damaged"
    return "yes" if state.complete else "partly"


def _as_data(
    name: str, source: "ImageSource | TextSource", state: "Prepared | LamplighterError | None"
) -> dict[str, Any]:
    from lamplighter.data.catalog import ImageSource  # noqa: PLC0415

    about: dict[str, Any] = {"name": name, "kind": "text", "hub": source.hub, "counts": source.counts}
    if isinstance(source, ImageSource):
        about |= {"kind": "images", "classes": source.classes}
    damaged = state.message if isinstance(state, LamplighterError) else None
    prepared = None if state is None or isinstance(state, LamplighterError) else _prepared_as_data(state)
    return {**about, "prepared": prepared, "damaged": damaged}


def _prepared_as_data(done: "Prepared") -> dict[str, Any]:
    return {**asdict(done), "path": str(done.path)}


def _print_prepared(name: str, done: "Prepared") -> None:
    """The path on a line of its own, so that `head -1` takes it."""
    from lamplighter.data.catalog import DATASETS, ImageSource  # noqa: PLC0415

    unit = "images" if isinstance(DATASETS[name], ImageSource) else "words"
    counts = " + ".join(f"{count:,} {split}" for split, count in done.counts.items())
    print(done.path)
    print(f"{counts} {unit}{'' if done.complete else ', not the complete dataset'}")
