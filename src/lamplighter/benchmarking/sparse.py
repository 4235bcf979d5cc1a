"""How fast pruned networks run: dense runtimes and ours, in turns, in one run."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from lamplighter.benchmarking.machine import limited_to
from lamplighter.benchmarking.sparse_contenders import CONTENDERS
from lamplighter.benchmarking.sparse_models import MODELS, pruned
from lamplighter.errors import LamplighterError
from lamplighter.runtime import build
from lamplighter.runtime.compiling import compile as compiled

OURS = "ours"


@dataclass(frozen=True)
class Request:
    """What to measure.

    Args:
        model: vgg16, resnet50 or linear.
        densities: the fraction of the weights that is left.
        batch: images at once.
        threads: for everyone to use.
        repeats: runs of each, after two to warm up.
        against: dense runtimes, those that are installed; all if empty.
        tune: seconds to measure each way of each of our layers for.
    """

    model: str = "vgg16"
    densities: tuple[float, ...] = (0.0352, 0.0115, 0.0030)
    batch: int = 1
    threads: int = 1
    repeats: int = 20
    against: tuple[str, ...] = ()
    tune: float = 0.01

    def check(self) -> None:
        """Refuse what cannot be measured, before anything is."""
        if self.model not in MODELS:
            raise LamplighterError(f"there is no model {self.model!r}", f"choose of {', '.join(MODELS)}")
        for density in self.densities:
            if not 0 < density <= 1:
                raise LamplighterError(f"density is {density}, expected a fraction above 0, up to 1")
        for name in self.against:
            if name not in CONTENDERS:
                raise LamplighterError(f"there is no contender {name!r}", f"choose of {', '.join(CONTENDERS)}")
        if (missing := build.available()) is not None:
            raise LamplighterError(missing, "without the kernels there is nothing to measure")


@dataclass(frozen=True)
class Row:
    """One contender.

    Args:
        contender: a dense runtime, or ours.
        density: of the weights; None where zeros make no difference.
        work: the fraction of the dense network's multiply-adds that is left; None for dense runtimes.
        seconds: of each run.
        cpu: processor seconds of each run, of all threads: what others who share the machine take does not count.
    """

    contender: str
    density: float | None
    work: float | None
    seconds: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the seconds."""
        return median(self.seconds)

    @property
    def median_cpu(self) -> float:
        """Of the processor seconds."""
        return median(self.cpu)


@dataclass(frozen=True)
class Report:
    """All contenders, and why others are not among them."""

    rows: tuple[Row, ...]
    missing: Mapping[str, str]

    def speedup(self, row: Row) -> float:
        """How many times faster a contender is than the fastest dense one."""
        return min(other.median for other in self.rows if other.density is None) / row.median

    def speedup_cpu(self, row: Row) -> float:
        """The same in processor time."""
        return min(other.median_cpu for other in self.rows if other.density is None) / row.median_cpu


def measure(request: Request, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Time every contender on the same input, in turns."""
    request.check()
    with _quietly(request.threads):
        model, example = pruned(request.model, request.densities[0], request.batch)
        works, missing = _dense(request, model, example, progress)
        if not works:
            raise LamplighterError("no dense runtime could be measured", "leave out --against")
        left: dict[tuple[str, float | None], float] = {}
        for density in request.densities:
            model, _ = pruned(request.model, density, request.batch)
            fast = compiled(model, example, threads=request.threads, tune=request.tune, measure=False)
            assert fast.compiled is not None
            left[OURS, density] = fast.compiled.density
            works[OURS, density] = partial(fast.compiled, example.numpy())
            progress(f"compiled at density {density:g}")
        timed = _in_turns(works, request.repeats, progress)
    rows = tuple(
        Row(name, density, left.get((name, density)), tuple(wall for wall, _ in taken), tuple(cpu for _, cpu in taken))
        for (name, density), taken in timed.items()
    )
    return Report(rows, missing)


_Works = dict[tuple[str, float | None], Callable[[], object]]


def _dense(
    request: Request, model: nn.Module, example: Tensor, progress: Callable[[str], None]
) -> tuple[_Works, dict[str, str]]:
    works: _Works = {}
    missing: dict[str, str] = {}
    for name in request.against or tuple(CONTENDERS):
        try:
            works[name, None] = CONTENDERS[name](model, example, request.threads)
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        progress(f"prepared {name}")
    return works, missing


def _in_turns(
    works: _Works, repeats: int, progress: Callable[[str], None]
) -> dict[tuple[str, float | None], list[tuple[float, float]]]:
    timed: dict[tuple[str, float | None], list[tuple[float, float]]] = {key: [] for key in works}
    for repeat in range(repeats + 2):
        for key, work in works.items():
            cpu, wall = time.process_time(), time.perf_counter()
            work()
            taken = time.perf_counter() - wall, time.process_time() - cpu
            if repeat >= 2:
                timed[key].append(taken)
        progress(f"round {repeat + 1}")
    return timed


@contextmanager
def _quietly(threads: int) -> Iterator[None]:
    with limited_to(threads), torch.no_grad():
        yield
