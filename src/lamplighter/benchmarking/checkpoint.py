"""Pruning a checkpoint against copying its file, in turns; and how much memory it takes, in a fresh process."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from lamplighter.benchmarking.checkpoint_files import Content, make
from lamplighter.checkpoint.staging import check_room
from lamplighter.errors import LamplighterError

PRUNE, COPY, FLUSHED = "lamplighter", "copy", "copy, flushed to the disk"
_IDLE_SECONDS = 0.2
_STATUS = "/proc/self/status"


@dataclass(frozen=True)
class Request:
    """What is measured.

    Args:
        gigabytes: the checkpoint's size.
        dtype: of its weights, as torch calls it.
        sparsity: the fraction to remove.
        repeats: how often each is timed.
        experts: a mixture of so many experts instead, if not 0.
        threads: for pruning; our choice if None.
    """

    gigabytes: float
    dtype: str
    sparsity: float = 0.5
    repeats: int = 3
    experts: int = 0
    threads: int | None = None

    def content(self) -> Content:
        """What the checkpoint holds; an error for a dtype that is not measured."""
        kinds = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
        if self.dtype not in kinds:
            raise LamplighterError(f"unknown dtype {self.dtype!r}", f"choose from {', '.join(kinds)}")
        return Content(int(1e9 * self.gigabytes), kinds[self.dtype], experts=self.experts)


@dataclass(frozen=True)
class Row:
    """One contender: the times of its runs."""

    contender: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The time in the middle."""
        return median(self.seconds)


@dataclass(frozen=True)
class Result:
    """What came out: times, the file's size, and memory beyond what importing torch takes (None where unknown)."""

    nbytes: int
    layers: int
    rows: tuple[Row, ...]
    import_bytes: int | None
    peak_extra_bytes: int | None

    def times(self, contender: str) -> float:
        """How many times as long as `contender` pruning took: medians."""
        medians = {row.contender: row.median for row in self.rows}
        return medians[PRUNE] / medians[contender]


def measure(request: Request, folder: Path | None, progress: Callable[[str], None]) -> Result:
    """Make a checkpoint, prune and copy it in turns; everything is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="lamp-bench-", dir=folder) as made:
        source, target = Path(made) / "in.safetensors", Path(made) / "out.safetensors"
        check_room(source, int(2.2e9 * request.gigabytes))
        make(source, request.content())
        _flush(source)
        progress("made")
        # In a process of its own, and before the times are taken: what it leaves behind would be in their way.
        memory = _in_fresh_process(request, source, target)
        progress("memory")
        works: dict[str, Callable[[], object]] = {
            PRUNE: lambda: _prune(request, source, target),
            COPY: lambda: _copy(source, target),
            FLUSHED: lambda: _copy(source, target, flush=True),
        }
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for repeat in range(1 + request.repeats):
            for name, work in works.items():
                taken = _timed(work, target)
                if repeat:  # the first round warms up
                    seconds[name].append(taken)
                progress(name)
        rows = tuple(Row(name, tuple(each)) for name, each in seconds.items())
        return Result(source.stat().st_size, memory["layers"] or 0, rows, memory["imported"], memory["extra"])


def units(request: Request) -> int:
    """How often `measure` tells of progress."""
    return 2 + 3 * (1 + request.repeats)


def _timed(work: Callable[[], object], target: Path) -> float:
    begun = time.perf_counter()
    work()
    taken = time.perf_counter() - begun
    _flush(target)
    target.unlink()
    time.sleep(_IDLE_SECONDS)  # the disk is busy with what was removed
    return taken


def _prune(request: Request, source: Path, target: Path) -> int:
    from lamplighter.checkpoint.prune import prune_checkpoint  # noqa: PLC0415

    return len(prune_checkpoint(source, target, sparsity=request.sparsity, threads=request.threads).layers)


def _copy(source: Path, target: Path, *, flush: bool = False) -> None:
    shutil.copyfile(source, target)
    if flush:
        _flush(target)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _in_fresh_process(request: Request, source: Path, target: Path) -> dict[str, int | None]:
    command = [sys.executable, "-m", __name__, str(source), str(target), json.dumps(asdict(request))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LamplighterError(f"pruning in a process of its own failed: {last}", "try a smaller --size")
    found: dict[str, int | None] = json.loads(done.stdout)
    return found


def main() -> None:
    """What the fresh process does: prune once, and print its peak beside that of importing torch alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("source", "target", "request"):
        parser.add_argument(name)
    given = parser.parse_args()
    bare = [sys.executable, "-c", f"import torch; print(open({_STATUS!r}).read())"]
    imported = _peak(subprocess.run(bare, capture_output=True, text=True, check=False).stdout)  # noqa: S603
    layers = _prune(Request(**json.loads(given.request)), Path(given.source), Path(given.target))
    Path(given.target).unlink()
    peak = _peak(Path(_STATUS).read_text(encoding="utf-8") if Path(_STATUS).exists() else "")
    extra = None if peak is None or imported is None else peak - imported
    print(json.dumps({"imported": imported, "extra": extra, "layers": layers}))


def _peak(status: str) -> int | None:
    """The peak resident memory in bytes that a process's status tells; only Linux has it."""
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), None)


if __name__ == "__main__":
    main()
