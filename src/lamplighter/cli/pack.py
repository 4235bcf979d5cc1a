"""`lamp pack`, `lamp unpack` and `lamp verify`: the compact sparse file, back to dense, and a check."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamplighter.cli.console import progress_bars, prose, stderr, stdout, write_json
from lamplighter.errors import LamplighterWarning

if TYPE_CHECKING:
    from lamplighter.checkpoint.packed_conversion import Conversion, Watch
    from lamplighter.checkpoint.packed_verdict import Verdict

PACK_EXAMPLES = """[bold]Examples[/bold]
$ lamp pack pruned.safetensors -o packed.safetensors
$ lamp pack pruned/ -o packed/          [dim]# a folder: shards, index, and the other files[/dim]
$ lamp unpack packed/ -o pruned-again/  [dim]# the same bytes again[/dim]"""

UNPACK_EXAMPLES = """[bold]Examples[/bold]
$ lamp unpack packed.safetensors -o pruned.safetensors
$ lamp unpack packed/ -o pruned/ --force"""

VERIFY_EXAMPLES = """[bold]Examples[/bold]
$ lamp verify packed.safetensors model.safetensors
$ lamp verify pruned/ model/ --json     [dim]# the counts of every tensor[/dim]"""

Out = Annotated[Path, typer.Option("--out", "-o", help="The file or folder to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Threads = Annotated[int | None, typer.Option(min=1, help="How many to use.", show_default="one for each processor")]
Json = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")]


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands to `app`, in the given section of its help."""
    for command, epilog in ((pack, PACK_EXAMPLES), (unpack, UNPACK_EXAMPLES), (verify, VERIFY_EXAMPLES)):
        help_text = prose(command.__doc__ or "")
        app.command(command.__name__, help=help_text, epilog=epilog, rich_help_panel=panel)(command)


def pack(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A sparse checkpoint: a file or a folder.")],
    out: Out,
    *,
    force: Force = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Write a pruned checkpoint as bitmasks and nonzero values.

    A safetensors file again, that any program which reads safetensors can read. Nothing is lost, not a bit: `lamp
    unpack` gives back what was there, whatever the dtypes. Tensors that would not become smaller stay as they are.

    The checkpoint is read twice, a little at a time, however large it is: values are counted first.
    """
    from lamplighter.checkpoint.checkpoint import Checkpoint  # noqa: PLC0415
    from lamplighter.checkpoint.packed_packing import pack as carry_out  # noqa: PLC0415

    with _bar("packing", 2 * Checkpoint(source).nbytes) as watch:
        done = carry_out(source, out, force=force, threads=threads, watch=watch)
    _warn_of_left_out(done)
    if json:
        write_json({"out": str(out), **asdict(done)})
    else:
        said = f"{done.sparse:,} of {_many(done.tensors, 'tensor')} {'is' if done.sparse == 1 else 'are'} sparse now"
        _show(done, out, (done.packed_bytes, done.dense_bytes), said)


def unpack(
    source: Annotated[Path, typer.Argument(metavar="IN", help="What lamp pack wrote: a file or a folder.")],
    out: Out,
    *,
    force: Force = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Give back the checkpoint that was packed, bit for bit.

    A damaged file is an error that names the tensor, before anything stands in OUT.
    """
    from lamplighter.checkpoint.packed_reading import Packed  # noqa: PLC0415
    from lamplighter.checkpoint.packed_unpacking import unpack as carry_out  # noqa: PLC0415

    with _bar("unpacking", Packed(source).nbytes) as watch:
        done = carry_out(source, out, force=force, threads=threads, watch=watch)
    _warn_of_left_out(done)
    if json:
        write_json({"out": str(out), **asdict(done)})
    else:
        said = f"{done.sparse:,} of {_many(done.tensors, 'tensor')} {'was' if done.sparse == 1 else 'were'} sparse"
        _show(done, out, (done.dense_bytes, done.packed_bytes), said)


def verify(
    pruned: Annotated[Path, typer.Argument(metavar="PRUNED", help="A pruned checkpoint, packed or not.")],
    original: Annotated[Path, typer.Argument(metavar="ORIGINAL", help="What it was made from.")],
    *,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Compare a pruned checkpoint, packed or not, with the original.

    Every weight that is kept must be the original's, bit for bit, every other one zero. Where the file says how it was
    pruned, the layers are found again and as many weights of each must be kept as planned; where that cannot be decided
    again, the reason is given. Exits with 1 if anything is different, and names the first tensor and entry.
    """
    from lamplighter.checkpoint.packed_reading import Packed  # noqa: PLC0415
    from lamplighter.checkpoint.packed_verifying import verify as carry_out  # noqa: PLC0415

    with _bar("comparing", Packed(original).nbytes) as watch:
        verdict = carry_out(pruned, original, threads=threads, watch=watch)
    if json:
        write_json({"pruned": str(pruned), "original": str(original), **verdict.as_data()})
    else:
        _show_verdict(verdict)
    if not verdict.ok:
        raise typer.Exit(1)


@contextmanager
def _bar(what: str, total: int) -> "Iterator[Watch]":
    """A bar in megabytes; what it yields is told how many bytes more are done with."""
    with progress_bars("MB") as bars:
        task = bars.add_task(what, total=total / 1e6, note="")
        yield lambda nbytes: bars.update(task, advance=nbytes / 1e6)


def _show(done: "Conversion", out: Path, sizes: tuple[int, int], said: str) -> None:
    after, before = sizes
    text = f"{out}: {after:,} bytes, was {before:,}; {said}"
    stdout().print(text, highlight=False, soft_wrap=True, markup=False)
    _show_seconds(done.seconds)


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _warn_of_left_out(done: "Conversion") -> None:
    if done.left_out:
        said = f"not carried over, as it may hold other weights: {', '.join(done.left_out)}"
        warnings.warn(said, LamplighterWarning, stacklevel=1)


def _show_verdict(verdict: "Verdict") -> None:
    console = stdout()
    rows = {
        "entries": verdict.entries,
        "removed": verdict.removed,
        "zero in both": verdict.zero_in_both,
        "as in the original": verdict.nonzero - verdict.different,
        "different": verdict.different,
    }
    if verdict.planned:
        rows["layers"] = len(verdict.planned)
        rows["of them as planned"] = verdict.layers_as_planned
    for name, count in rows.items():
        console.print(f"{name:<20}{count:>20,}", highlight=False)
    for each in verdict.differences[:10]:
        console.print(f"different: {each}", highlight=False, soft_wrap=True, markup=False)
    if len(verdict.differences) > 10:
        console.print(f"different: {_many(len(verdict.differences) - 10, 'more place')}", highlight=False)
    if verdict.unchecked:
        said = f"budgets not checked: {verdict.unchecked}"
        console.print(said, highlight=False, soft_wrap=True, markup=False)
    if verdict.ok:
        console.print(f"ok: {verdict.outcome}", highlight=False, soft_wrap=True, markup=False)
    _show_seconds(verdict.seconds)


def _show_seconds(seconds: float) -> None:
    stderr().print(f"{seconds:.1f} s", style="dim", highlight=False)
