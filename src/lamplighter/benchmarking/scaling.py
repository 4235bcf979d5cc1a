"""Whether pruning stays as cheap per weight when models grow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from lamplighter.benchmarking import weights as weights_of
from lamplighter.benchmarking.contenders import lamplighter
from lamplighter.benchmarking.pruning import check_device, check_sparsity, timed

SIZES = (10_000_000, 100_000_000, 500_000_000)
REPEATS = 5


@dataclass(frozen=True)
class Row:
    """float32 weights of one size, in layers of 2.5 million."""

    weights: int
    seconds: tuple[float, ...]
    nanoseconds_per_weight: float
    times_smallest: float


def check(sizes: Sequence[int], sparsity: float, device: str) -> None:
    """Refuse what cannot be measured, before anything is."""
    check_sparsity(sparsity, min(sizes))
    check_device(device)


def measure(sizes: Sequence[int], sparsity: float, device: str, progress: Callable[[str], None]) -> list[Row]:
    """Prune models of every size, one after the other, restored in between; medians."""
    check(sizes, sparsity, device)
    seconds: dict[int, list[float]] = {}
    for size in sizes:
        pristine = weights_of.fill(weights_of.of_size(size), torch.float32, device)
        weights = {name: weight.clone() for name, weight in pristine.items()}
        taken = []
        for _ in range(1 + REPEATS):
            weights_of.restore(weights, pristine)
            taken.append(timed(lamplighter(weights, sparsity), device))
            progress(f"{size:,} weights")
        seconds[size] = taken[1:]  # the first one warms up
    each = {size: 1e9 * median(seconds[size]) / size for size in sizes}
    return [Row(size, tuple(seconds[size]), each[size], each[size] / each[min(sizes)]) for size in sizes]
