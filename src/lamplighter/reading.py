"""Reading weights in memory: layer by layer, in parallel runs, with no copy of what is contiguous."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from lamplighter.errors import LamplighterError
from lamplighter.kernels import Run, kernels_for
from lamplighter.naming import listed
from lamplighter.spectrum import Spectrum, add

T = TypeVar("T")

# A layer is split only where one thread would otherwise be left with most of the work.
SMALLEST_SPLIT = 1 << 21


class Tensors:
    """Layers in memory, as a source of spectra.

    Args:
        tensors: what is ranked (weights, or computed scores), by layer name in layer order.
        alive: bit-packed masks of what earlier rounds kept; layers without one are whole.
    """

    def __init__(self, tensors: Mapping[str, Tensor], alive: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.alive = alive

    def count(self) -> dict[str, Spectrum]:
        """The spectrum of every layer; what is not finite is an error."""
        tasks = pieces(self.tensors)

        def work(piece: Piece) -> Spectrum:
            run = run_of(self.tensors[piece.layer], self.alive.get(piece.layer), piece)
            return kernels_for(run).count(run)  # type: ignore[no-any-return]

        parts: dict[str, list[Spectrum]] = {name: [] for name in self.tensors}
        for piece, spectrum in zip(tasks, parallel(work, tasks), strict=True):
            parts[piece.layer].append(spectrum)
        summed = {name: add(spectra) for name, spectra in parts.items()}
        broken = {name: s.nonfinite for name, s in summed.items() if s.nonfinite}
        if broken:
            counted = [f"{name} ({count:,})" for name, count in broken.items()]
            raise LamplighterError(
                f"NaN or infinite values in {listed(counted)}: they have no rank",
                "find out where they come from, or leave these layers out with exclude=[...]",
            )
        return summed

    def window(self, codes: Mapping[str, tuple[int, int]], *, energy: bool) -> dict[str, tuple[Spectrum, float]]:
        """Exact spectra between two codes, and about the energy above."""
        windows = {}
        for name, (low, high) in codes.items():
            run = run_of(self.tensors[name], self.alive.get(name))
            windows[name] = kernels_for(run).window(run, low, high, energy=energy)
        return windows

    def energy(self, codes: Mapping[str, int]) -> dict[str, int]:
        """The exact energy of the entries from a code up, in units squared."""
        runs = {name: run_of(self.tensors[name], self.alive.get(name)) for name in codes}
        return {name: kernels_for(run).energy(run, codes[name]) for name, run in runs.items()}


@dataclass(frozen=True)
class Piece:
    """A stretch of a layer, in flat logical order, that one thread works on."""

    layer: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many entries it has."""
        return self.stop - self.start

    @property
    def packed(self) -> slice:
        """Where its bits stand in the layer's packed mask."""
        return slice(self.start // 8, (self.stop + 7) // 8)


def pieces(tensors: Mapping[str, Tensor]) -> list[Piece]:
    """The layers in pieces, so that all threads finish at about the same time."""
    total = sum(t.numel() for t in tensors.values())
    limit = max(SMALLEST_SPLIT, -(-total // (4 * torch.get_num_threads())) // 8 * 8)
    found = []
    for name, tensor in tensors.items():
        size = tensor.numel()
        step = limit if tensor.is_contiguous() else max(size, 1)  # what must be copied is copied once
        found += [Piece(name, start, min(start + step, size)) for start in range(0, max(size, 1), step)]
    return found


def run_of(tensor: Tensor, alive: Tensor | None, piece: Piece | None = None) -> Run:
    """The entries of a layer, or a piece of it; a copy if they do not lie in memory in logical order."""
    flat = tensor.reshape(-1)
    if piece is None:
        return Run(flat, alive)
    return Run(flat[piece.start : piece.stop], None if alive is None else alive[piece.packed])


def parallel(work: Callable[[Piece], T], tasks: list[Piece]) -> list[T]:
    """The results of all tasks, in order; the largest are begun first."""
    threads = min(torch.get_num_threads(), len(tasks))
    if threads <= 1 or sum(task.size for task in tasks) < 1 << 16:
        return [work(task) for task in tasks]
    order = sorted(range(len(tasks)), key=lambda i: -tasks[i].size)
    before = torch.get_num_threads()
    try:
        # The threads are taken: without this, torch's own operations would start as many again in each of them.
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            futures = {i: pool.submit(work, tasks[i]) for i in order}
        return [futures[i].result() for i in range(len(tasks))]
    finally:
        torch.set_num_threads(before)  # what new threads start with; this one's number was never another
