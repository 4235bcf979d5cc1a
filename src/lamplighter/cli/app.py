"""The application: its commands, and what every one of them does with errors, warnings and Ctrl-C."""

import errno
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lamplighter.cli import bench, compile, data, demo, estimate, inspect, migrate, pack, plan, prune, report, run  # noqa: A004
from lamplighter.cli.console import plain_warnings, prose, show_error, show_help_if_bare
from lamplighter.errors import LamplighterError
from lamplighter.version import __version__

INTERRUPTED = 130  # 128 + SIGINT, as shells report it

EXAMPLES = """[bold]First steps[/bold]
$ lamp demo            [dim]# see what it does, in about a minute; no downloads[/dim]
$ lamp demo --help     [dim]# what a command takes, with examples[/dim]
$ lamp bench prune     [dim]# how fast it is on this machine, and against what[/dim]
$ lamp prune model.safetensors -o sparse.safetensors --sparsity 0.5

[bold]In Python[/bold]
>>> import lamplighter as ll
>>> masks = ll.prune(model, sparsity=0.9)   [dim]# any PyTorch model, in place[/dim]
>>> print(masks)                            [dim]# what each layer kept[/dim]"""

WELCOME = """
Prune any PyTorch model, and let the algorithm choose how much of each layer stays.

New here? Type [bold cyan]lamp demo[/bold cyan]: it trains a small network, prunes it to 1 % of its weights in four
ways, and shows which way lost the least.
"""


class LampGroup(TyperGroup):
    """The root command: a user's mistake ends in one line and a hint, not in a traceback."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        try:
            with plain_warnings():
                return super().invoke(ctx)
        except LamplighterError as error:
            show_error(error)
            raise typer.Exit(1) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # whoever read the output has gone (`lamp ... | head`): typer ends quietly
            show_error(_refused(error))
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(INTERRUPTED) from interrupt


def _refused(error: OSError) -> LamplighterError:
    """What the operating system would not do, as the user is told."""
    why = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return LamplighterError(why, "the operating system says so: is the disk full, or the network away?")
    return LamplighterError(
        f"{error.filename}: {why}", "check the path, and that you may read it, or write to it where it is an output"
    )


app = typer.Typer(
    name="lamp",
    cls=LampGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"lamp {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True, help=prose(WELCOME))
def root(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    show_help_if_bare(ctx)


demo.register(app, panel="Start here")
prune.register(app, panel="Checkpoints")
plan.register(app, panel="Checkpoints")
inspect.register(app, panel="Checkpoints")
pack.register(app, panel="Checkpoints")
migrate.register(app, panel="Checkpoints")
compile.register(app, panel="Faster on a processor")
estimate.register(app, panel="Faster on a processor")
run.register(app, panel="Experiments")
data.register(app, panel="Experiments")
report.register(app, panel="Experiments")
bench.register(app, panel="This machine")


def main() -> None:
    """Entry point of the script `lamp`."""
    app(prog_name="lamp")
