"""Reading weights in memory: layer by layer, in parallel runs, with no copy of what is contiguous."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from lamplighter.errors import LamplighterError
from lamplighter.kernels import Run, batches, kernels_for
from lamplighter.naming import listed
from lamplighter.spectra import Cut
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
        spectra = self.read()
        refuse_nonfinite({name: s.nonfinite for name, s in spectra.items() if s.nonfinite})
        return spectra

    def read(self) -> dict[str, Spectrum]:
        """The spectrum of every layer, whatever is in it."""
        summed = self._count_batches()
        tasks = pieces({name: tensor for name, tensor in self.tensors.items() if name not in summed})

        def work(piece: Piece) -> Spectrum:
            run = run_of(self.tensors[piece.layer], self.alive.get(piece.layer), piece)
            return kernels_for(run).count(run)  # type: ignore[no-any-return]

        parts: dict[str, list[Spectrum]] = {name: [] for name in self.tensors if name not in summed}
        for piece, spectrum in zip(tasks, parallel(work, tasks), strict=True):
            parts[piece.layer].append(spectrum)
        summed |= {name: add(spectra) for name, spectra in parts.items()}
        return {name: summed[name] for name in self.tensors}

    def window(self, codes: Mapping[str, tuple[int, int]], *, energy: bool) -> dict[str, tuple[Spectrum, float]]:
        """Exact spectra between two codes, and about the energy above."""
        windows: dict[str, tuple[Spectrum, float]] = {}
        for batch in batches(self.in_place(codes)):
            found = kernels_for(next(iter(batch.values()))).window_many(list(batch.values()), [codes[n] for n in batch])
            windows |= {name: window for name, window in zip(batch, found, strict=True) if window is not None}
        for name, (low, high) in codes.items():
            if name not in windows:
                run = run_of(self.tensors[name], self.alive.get(name))
                windows[name] = kernels_for(run).window(run, low, high, energy=energy)
        return windows

    def energy(self, codes: Mapping[str, int]) -> dict[str, int]:
        """The exact energy of the entries from a code up, in units squared."""
        runs = {name: run_of(self.tensors[name], self.alive.get(name)) for name in codes}
        return {name: kernels_for(run).energy(run, codes[name]) for name, run in runs.items()}

    def cuts_here(self, cuts: Mapping[str, Cut]) -> dict[str, Cut]:
        """The same cuts, as they cut what lies in this process: everything."""
        return dict(cuts)

    def _count_batches(self) -> dict[str, Spectrum]:
        """The spectra of what can be read many layers at a time."""
        found: dict[str, Spectrum] = {}
        for batch in batches(self.in_place(self.tensors)):
            runs = list(batch.values())
            found |= zip(batch, kernels_for(runs[0]).count_many(runs), strict=True)
        return found

    def in_place(self, names: Iterable[str]) -> dict[str, Run]:
        """The runs of those layers that need no copy."""
        tensors = {name: self.tensors[name] for name in names}
        return {n: run_of(t, self.alive.get(n)) for n, t in tensors.items() if t.is_contiguous()}


def refuse_nonfinite(broken: Mapping[str, int]) -> None:
    """An error if some layers hold NaN or infinite weights, so many each."""
    if broken:
        counted = [f"{name} ({count:,})" for name, count in broken.items()]
        raise LamplighterError(
            f"NaN or infinite values in {listed(counted)}: they have no rank",
            "find out where they come from, or leave these layers out with exclude=[...]",
        )


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
