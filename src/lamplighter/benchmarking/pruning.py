"""How long pruning takes: the contenders in turns, on the same weights."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from lamplighter.benchmarking import memory
from lamplighter.benchmarking import weights as weights_of
from lamplighter.benchmarking.contenders import CONTENDERS, COPY, OURS, Work
from lamplighter.benchmarking.machine import settle
from lamplighter.errors import LamplighterError

STEADY = 3.0  # on a quiet machine copies differ by a fifth, on a busy one twentyfold
DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class Request:
    """What to measure."""

    model: str = "resnet50"
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    sparsity: float = 0.9
    repeats: int = 5
    device: str = "cpu"
    with_memory: bool = True

    def check(self) -> None:
        """Refuse what cannot be measured, before anything is."""
        if self.model not in weights_of.MODELS:
            raise LamplighterError(f"unknown model {self.model!r}", hint=f"known: {', '.join(weights_of.MODELS)}")
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                raise LamplighterError(f"unknown dtype {dtype!r}", hint=f"known: {', '.join(DTYPES)}")
        check_sparsity(self.sparsity, sum(math.prod(shape) for shape in weights_of.MODELS[self.model]().values()))
        check_device(self.device)


@dataclass(frozen=True)
class Row:
    """One contender on weights of one dtype."""

    dtype: str
    contender: str
    seconds: tuple[float, ...]
    peak_extra_bytes: int | None
    weight_bytes: int

    @property
    def median(self) -> float:
        """The middle one of the repeats, in seconds."""
        return median(self.seconds)

    @property
    def memory(self) -> float | None:
        """Peak extra memory as a multiple of the weights' own."""
        return None if self.peak_extra_bytes is None else self.peak_extra_bytes / self.weight_bytes


def units(request: Request) -> int:
    """How many times `measure` reports progress."""
    return len(request.dtypes) * len(CONTENDERS) * (1 + request.repeats + request.with_memory)


def measure(request: Request, progress: Callable[[str], None]) -> list[Row]:
    """Every contender on every dtype, in turns, so that slow changes of the machine meet them all.

    Turns do not help against other processes that want the same cores: see `machine.disturbance`. Weights are restored
    between runs, outside the measured time. `progress` is called with what was done.
    """
    request.check()
    return [row for dtype in request.dtypes for row in _measure_dtype(request, dtype, progress)]


def _measure_dtype(request: Request, dtype: str, progress: Callable[[str], None]) -> Iterator[Row]:
    pristine = weights_of.fill(weights_of.MODELS[request.model](), getattr(torch, dtype), request.device)
    weights = {name: weight.clone() for name, weight in pristine.items()}
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for repeat in range(1 + request.repeats):
        for name, contender in CONTENDERS.items():
            weights_of.restore(weights, pristine)
            taken = timed(contender(weights, request.sparsity), request.device)
            if repeat > 0:  # the first time round warms up
                seconds[name].append(taken)
            progress(f"{dtype} {name}")
    size = weights_of.size_in_bytes(weights)
    del weights, pristine
    for name, taken_by in seconds.items():
        extra = None
        if request.with_memory:
            extra = memory.peak_extra_bytes(name, request.model, dtype, request.sparsity, request.device)
            progress(f"{dtype} memory of {name}")
        yield Row(dtype, name, tuple(taken_by), extra, size)


def timed(work: Work, device: str) -> float:
    """Seconds that `work` takes, until its device has finished."""
    settle()
    _finish(device)
    began = time.perf_counter()
    work()
    _finish(device)
    return time.perf_counter() - began


def speedup(rows: Sequence[Row], row: Row) -> float:
    """How many times as long as ours `row` takes."""
    return row.median / _median_of(rows, OURS, row.dtype)


def copies(rows: Sequence[Row], row: Row) -> float:
    """How many plain copies of the weights could be made meanwhile."""
    return row.median / _median_of(rows, COPY, row.dtype)


def unsteady(rows: Sequence[Row]) -> list[str]:
    """The dtypes during whose measurement something else ran: a plain copy should always take about as long."""
    plain = [row for row in rows if row.contender == COPY]
    return [row.dtype for row in plain if max(row.seconds) > STEADY * min(row.seconds)]


def _median_of(rows: Sequence[Row], contender: str, dtype: str) -> float:
    return next(row.median for row in rows if row.contender == contender and row.dtype == dtype)


def check_sparsity(sparsity: float, weights: int) -> None:
    """Refuse a sparsity that removes none of so many weights, or all of them."""
    if not 0 < sparsity < 1:
        raise LamplighterError(
            f"sparsity is {sparsity}, expected more than 0 and less than 1", "0.9 removes nine weights in ten"
        )
    removed = round(sparsity * weights)
    if not 0 < removed < weights:
        raise LamplighterError(
            f"sparsity {sparsity} removes {removed:,} of {weights:,} weights, expected some of them, and not all",
            "0.9 removes nine weights in ten",
        )


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise LamplighterError(f"unknown device {device!r}", hint="use cpu, cuda or cuda:0") from error
    if kind not in {"cpu", "cuda"} or (kind == "cuda" and not torch.cuda.is_available()):
        raise LamplighterError(f"device {device!r} is not available here", hint="use --device cpu")


def _finish(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
