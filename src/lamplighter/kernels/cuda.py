"""The readings on NVIDIA GPUs, of many runs at once: kernels in CUDA C++ (readings.cu), compiled when first used.

What they need comes with PyTorch's CUDA builds: the compiler for kernels (NVRTC) and the bindings to it. Where they
cannot be compiled, `anywhere` does their work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from lamplighter.formats import Ints
from lamplighter.kernels import Run, anywhere
from lamplighter.kernels.cuda_build import Launch, module_for
from lamplighter.spectrum import Spectrum, compact

# Whether these are used: not before they have passed tests/kernels/test_cuda.py on a GPU.
USED = False
# As in readings.cu.
KEYS, UNIT, TILE = 1 << 15, 8, 16384
# Runs counted at once: each has its own counters on the device meanwhile, 128 KB.
TOGETHER = 256
# Entries that a window may collect: of each run a part, or so many if that is more.
SHARE, LEAST = 32, 1 << 16


def suits(run: Run) -> bool:
    """Whether a run can be read by these kernels."""
    entries = run.entries
    if not USED or entries.device.type != "cuda" or run.form.width > 32 or not entries.numel():
        return False
    return module_for(entries.device, run.form.width, run.form.shift) is not None


@dataclass(frozen=True, eq=False)
class Line:
    """Runs of one width on one device, one behind the other, as the kernels take them."""

    runs: Sequence[Run]
    device: torch.device
    table: Tensor
    first: Tensor

    @property
    def launch(self) -> Launch:
        """The compiled kernels."""
        form = self.runs[0].form
        found = module_for(self.device, form.width, form.shift)
        assert found is not None
        return found


def line_of(runs: Sequence[Run]) -> Line:
    """The tables of some runs, on their device."""
    device = runs[0].entries.device
    rows = [
        (run.entries.data_ptr(), 0 if run.alive is None else run.alive.data_ptr(), run.entries.numel()) for run in runs
    ]
    sizes = (-(-run.entries.numel() // UNIT) * UNIT for run in runs)
    return Line(runs, device, _table(rows, device), _table([0, *accumulate(sizes)], device))


def count_many(runs: Sequence[Run]) -> list[Spectrum]:
    """The spectra of runs of one format on one device, at the resolution of its first reading."""
    found = []
    for begin in range(0, len(runs), TOGETHER):
        found += _count(line_of(runs[begin : begin + TOGETHER]))
    return found


def _count(line: Line) -> list[Spectrum]:
    number, form = len(line.runs), line.runs[0].form
    counts = torch.zeros(number * KEYS, dtype=torch.int32, device=line.device)
    zeros = torch.zeros(number, dtype=torch.int64, device=line.device)
    line.launch(
        "count_runs", line.launch.multiprocessors, 1024, 4 * KEYS, line.table, line.first, number, counts, zeros
    )
    filled = counts.nonzero().view(-1)
    # Of every counter that is not 0 its place and its value, in one number: one copy to the host.
    told = torch.cat((zeros, (filled << 32) | counts[filled].long())).cpu().numpy()
    places = told[number:] >> 32
    ends = np.searchsorted(places, np.arange(number + 1) * KEYS)
    return [
        compact(
            form.dtype,
            form.shift,
            int(told[r]),
            places[ends[r] : ends[r + 1]] - r * KEYS,
            told[number + ends[r] : number + ends[r + 1]] & 0xFFFFFFFF,
        )
        for r in range(number)
    ]


def window_many(runs: Sequence[Run], codes: Sequence[tuple[int, int]]) -> list[tuple[Spectrum, float] | None]:
    """The exact spectra of 32-bit runs between two codes, and about the energy above; None where there are too many."""
    line, number = line_of(runs), len(runs)
    capacities = [min(run.entries.numel(), max(LEAST, run.entries.numel() // SHARE)) for run in runs]
    rooms = [0, *accumulate(capacities)]
    rows = [
        (low | high << 32, room, capacity)
        for (low, high), room, capacity in zip(codes, rooms, capacities, strict=False)
    ]
    windows = _table(rows, line.device)
    found = torch.empty(rooms[-1], dtype=torch.int32, device=line.device)
    taken = torch.zeros(number, dtype=torch.int64, device=line.device)
    energy = torch.zeros(number, dtype=torch.float64, device=line.device)
    grid = 2 * line.launch.multiprocessors
    line.launch("search_windows", grid, 512, 0, line.table, line.first, number, windows, found, taken, energy)
    sizes, energies = taken.tolist(), energy.tolist()
    kept = [found[room : room + size] for room, size, c in zip(rooms, sizes, capacities, strict=False) if size <= c]
    spectra = iter(_unique(kept, runs[0].form.dtype))
    return [
        (next(spectra), above) if size <= capacity else None
        for size, capacity, above in zip(sizes, capacities, energies, strict=True)
    ]


def _unique(parts: Sequence[Tensor], dtype: torch.dtype) -> list[Spectrum]:
    """A spectrum of each part's codes, sorted and counted together."""
    if not parts:
        return []
    owners = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(part) for part in parts]))
    keys, counts = torch.unique((owners.to(parts[0].device) << 32) | torch.cat(list(parts)).long(), return_counts=True)
    told = torch.stack((keys, counts)).cpu().numpy()
    ends = np.searchsorted(told[0] >> 32, np.arange(len(parts) + 1))
    return [
        compact(dtype, 0, 0, told[0, begin:end] & 0xFFFFFFFF, told[1, begin:end])
        for begin, end in pairwise(ends.tolist())
    ]


def select_many(runs: Sequence[Run], cuts: Sequence[tuple[int, int]], masks: Sequence[Tensor], *, erase: bool) -> None:
    """Keep of each run what lies above its cut's code, and of what equals it all but the first `drop` entries.

    Args:
        runs: of one width on one device.
        cuts: (code, drop) of each.
        masks: where the packed bits of each go.
        erase: whether the rest is set to zero.
    """
    line = line_of(runs)
    rows = [(code, drop, packed.data_ptr()) for (code, drop), packed in zip(cuts, masks, strict=True)]
    tiles = [0, *accumulate(-(-run.entries.numel() // TILE) for run in runs)]
    first_tile = torch.tensor(tiles, dtype=torch.int32).to(line.device)
    states = torch.zeros(tiles[-1], dtype=torch.int64, device=line.device)
    ticket = torch.zeros(1, dtype=torch.int32, device=line.device)
    table = _table(rows, line.device)
    grid = min(tiles[-1], 4 * line.launch.multiprocessors)
    line.launch("select_runs", grid, 512, 0, line.table, table, first_tile, len(runs), states, ticket, int(erase))


def count(run: Run) -> Spectrum:
    """The spectrum of one run."""
    return count_many([run])[0]


def window(run: Run, low: int, high: int, *, energy: bool) -> tuple[Spectrum, float]:
    """The exact spectrum of the codes in [low, high), and about the energy of those from `high` up."""
    found = window_many([run], [(low, high)])[0] if run.form.width == 32 else None
    return anywhere.window(run, low, high, energy=energy) if found is None else found


def select(run: Run, code: int, drop: int, packed: Tensor, *, erase: bool) -> None:
    """Keep what lies above `code`, and of what equals it all but the first `drop` entries."""
    select_many([run], [(code, drop)], [packed], erase=erase)


# Asked seldom, or of few entries.
energy, erase = anywhere.energy, anywhere.erase


def _table(rows: Sequence[tuple[int, ...]] | Sequence[int], device: torch.device) -> Tensor:
    """Rows of 64-bit numbers on the device; addresses may be negative there, which is the same bits."""
    array: Ints = np.array(rows, dtype=np.uint64).view(np.int64)
    return torch.from_numpy(array).to(device)


def by_kind(runs: Mapping[str, Run]) -> list[dict[str, Run]]:
    """Named runs in groups that can be read together: of one device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], dict[str, Run]] = {}
    for name, run in runs.items():
        groups.setdefault((run.entries.device, run.entries.dtype), {})[name] = run
    return list(groups.values())
