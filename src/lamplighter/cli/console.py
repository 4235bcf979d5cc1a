"""Where the command writes: data to standard output, everything else to standard error."""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from lamplighter.errors import LamplighterError, LamplighterWarning


def stdout() -> Console:
    """For what the user asked for: tables and `--json`."""
    return Console()


def stderr() -> Console:
    """For progress, logs, warnings and errors."""
    return Console(stderr=True)


def write_text(text: str) -> None:
    """Text on standard output; characters that its encoding has not are escaped, as on standard error."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def write_json(data: object) -> None:
    """One JSON document on standard output, as it is: no colour, no wrapping."""
    print(json.dumps(data, indent=2))


def write_json_line(data: object) -> None:
    """One JSON document on a line of its own, at once: for what becomes known piece by piece."""
    print(json.dumps(data), flush=True)


def prose(text: str) -> str:
    """Paragraphs without their line breaks, for help that is wrapped to the terminal's width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def show_help_if_bare(ctx: typer.Context) -> None:
    """A group named without a command answers with its help, which is what was wanted."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def show_error(error: LamplighterError) -> None:
    """`error:` and, on a line of its own, `hint:`."""
    console = stderr()
    console.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)
    if error.hint is not None:
        console.print(Text.assemble(("hint: ", "bold cyan"), error.hint), soft_wrap=True)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show the library's warnings as `warning: ...`, without the file and line of the code that gave them."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: object) -> None:
            if issubclass(category, LamplighterWarning):
                stderr().print(Text.assemble(("warning: ", "bold yellow"), str(message)), soft_wrap=True)
            else:
                usual(message, category, *where)  # type: ignore[arg-type]

        warnings.showwarning = show  # type: ignore[assignment]
        yield


class RateColumn(ProgressColumn):
    """How many units a second, or nothing before the first."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self.unit}/s", style="progress.data.speed")


def progress_bars(unit: str) -> Progress:
    """Bars on standard error with a rate, the time taken and the time left; silent where nobody watches."""
    console = stderr()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        RateColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        TextColumn("{task.fields[note]}", style="dim"),
        console=console,
        disable=not console.is_terminal,
    )


def byte_bars() -> Progress:
    """Bars on standard error in bytes, with a rate, the time taken and the time left; silent where nobody watches."""
    console = stderr()
    return Progress(
        TextColumn("{task.description:8}"),
        BarColumn(bar_width=16),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
    )


class ByteBars:
    """One bar for each stage of some work, begun when the stage begins."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.tasks: dict[str, TaskID] = {}

    def show(self, stage: str, done: int, total: int) -> None:
        """So many bytes of a stage are done, of so many as far as is known."""
        if stage not in self.tasks:
            self.tasks[stage] = self.bars.add_task(stage, total=total)
        self.bars.update(self.tasks[stage], completed=done, total=total)
