"""The readings in plain torch operations, for any device that torch knows: right everywhere, fast nowhere."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from lamplighter import bits
from lamplighter.formats import EXACT, Ints, exact_energy
from lamplighter.kernels import Run
from lamplighter.spectrum import Spectrum, add, compact

CHUNK = 1 << 24


def count(run: Run) -> Spectrum:
    """The spectrum of a run at the resolution of its format's first reading."""
    form = run.form
    parts = [compact(form.dtype, form.shift, 0, *_empty())]
    for codes, alive in _codes(run):
        keys, counts = torch.unique(codes >> form.shift, return_counts=True)
        dead = 0 if alive is None else int((~alive).sum())
        zeros = int((codes == 0).sum())
        if zeros:
            counts[0] -= zeros
        filled = counts > 0
        parts.append(compact(form.dtype, form.shift, zeros - dead, _host(keys[filled]), _host(counts[filled])))
    return add(parts)


def window(run: Run, low: int, high: int, *, energy: bool) -> tuple[Spectrum, float]:
    """The exact spectrum of the codes in [low, high), and about the energy of those from `high` up."""
    parts, energies = [compact(run.form.dtype, 0, 0, *_empty())], []
    for codes, _ in _codes(run):
        inside = codes[(codes >= low) & (codes < high)]
        keys, counts = torch.unique(inside, return_counts=True)
        parts.append(compact(run.form.dtype, 0, 0, _host(keys), _host(counts)))
        if energy:
            above = torch.where(codes >= high, codes, 0).view(run.entries.dtype).to(torch.float64)
            energies.append(float((above * above).sum()))
    return add(parts), math.fsum(energies)


def energy(run: Run, code: int) -> int:
    """The energy of the entries whose code is `code` or more: exact, in units squared."""
    total = 0
    for codes, _ in _codes(run):
        for part in torch.split(codes[codes >= code].to(torch.int64).cpu(), EXACT):
            total += exact_energy(part.numpy(), run.form)
    return total


def select(run: Run, code: int, drop: int, packed: Tensor, *, erase: bool) -> None:
    """Keep what lies above `code`, and of what equals it all but the first `drop` entries."""
    start = 0
    for codes, alive in _codes(run):
        n = codes.numel()
        keep = codes >= code
        if drop:
            rank = _equal(codes, code, alive).cumsum(0, dtype=torch.int64)
            keep &= (codes != code) | (rank > drop)
            drop -= min(drop, int(rank[-1]))
        if alive is not None:
            keep &= alive
        packed[start // 8 : (start + n + 7) // 8] = bits.pack(keep)
        if erase:
            run.entries.view(run.form.bits)[start : start + n].mul_(keep)
        start += n


def erase(run: Run) -> None:
    """Set the dead entries of a run to +0.0."""
    entries = run.entries.view(run.form.bits)
    if run.alive is not None:
        for start in range(0, entries.numel(), CHUNK):
            chunk = entries[start : start + CHUNK]
            chunk.mul_(bits.unpack(run.alive[start // 8 : (start + chunk.numel() + 7) // 8], chunk.shape))


def _equal(codes: Tensor, code: int, alive: Tensor | None) -> Tensor:
    equal = codes == code
    return equal if alive is None else equal & alive


def _codes(run: Run) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The codes of a run, chunk by chunk, dead entries as 0, with the chunk's live entries."""
    integers = run.entries.view(run.form.bits)
    for start in range(0, integers.numel(), CHUNK):
        codes = integers[start : start + CHUNK] & run.form.code_mask
        alive = None
        if run.alive is not None:
            alive = bits.unpack(run.alive[start // 8 : (start + codes.numel() + 7) // 8], codes.shape)
            codes *= alive
        yield codes, alive


def _host(values: Tensor) -> Ints:
    array: Ints = values.to(torch.int64).cpu().numpy()
    return array


def _empty() -> tuple[Ints, Ints]:
    nothing = np.empty(0, np.int64)
    return nothing, nothing
