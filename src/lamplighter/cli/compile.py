"""`lamp compile`: an exported program of PyTorch as a file that runs without torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamplighter.cli.console import prose, stderr, stdout, write_json
from lamplighter.errors import LamplighterError

if TYPE_CHECKING:
    from lamplighter.runtime.compiling import Fast

EXAMPLES = """[bold]Example[/bold]
>>> torch.export.save(torch.export.export(model.eval(), (images,)), "model.pt2")   [dim]# in Python[/dim]
$ lamp compile model.pt2 -o model.lamp
>>> lamplighter.runtime.load("model.lamp")(images)                 [dim]# in Python, without torch[/dim]"""


def register(parent: typer.Typer, panel: str) -> None:
    """Add the command to `parent`, in the given section of its help."""
    parent.command("compile", help=prose(compile_.__doc__ or ""), epilog=EXAMPLES, rich_help_panel=panel)(compile_)


def compile_(
    program: Annotated[Path, typer.Argument(help="What torch.export.save wrote.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The .lamp file.")],
    threads: Annotated[int, typer.Option(min=1, help="To work together.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Replace the output if it is there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was measured as JSON.")] = False,
) -> None:
    """Compile a pruned network for processors: faster where zeros allow it, in a file that needs no torch.

    For each layer the fastest kernel is measured on this machine; at the end, the network beside the dense one.
    """
    if output.exists() and not force:
        raise LamplighterError(f"{output} is there already", "name another, or add --force")
    if not output.parent.is_dir():
        raise LamplighterError(f"there is no folder {output.parent}", "create it first")
    fast = compile_program(program, threads)
    fast.save(output)
    measured, size = fast.measured, output.stat().st_size
    assert measured is not None
    if json:
        seconds = {"dense": measured.dense, "sparse": measured.sparse}
        write_json({"output": str(output), "bytes": size, "seconds": seconds, "threads": threads})
        return
    stdout().print(f"{output}: {size:,} bytes", highlight=False, soft_wrap=True)
    stderr().print(str(measured), style="dim", highlight=False, soft_wrap=True)


def compile_program(path: Path, threads: int) -> "Fast":
    """Compile the program in a file for inputs of the shape it was exported for."""
    import torch  # noqa: PLC0415

    from lamplighter.runtime.compiling import compile as compiled  # noqa: PLC0415

    if not path.is_file():
        raise LamplighterError(f"there is no file {path}", "name what torch.export.save wrote")
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise LamplighterError(f"{path} is no exported program: {error}", "write it with torch.export.save") from error
    inputs = program.graph_signature.user_inputs
    shapes = {node.name: node.meta["val"].shape for node in program.graph.nodes if node.name in inputs}
    if len(shapes) != 1:
        raise LamplighterError(
            f"{path} takes {len(shapes)} tensors", "the sparse runtime takes programs with one input"
        )
    return compiled(program, torch.randn(tuple(next(iter(shapes.values())))), threads=threads)
