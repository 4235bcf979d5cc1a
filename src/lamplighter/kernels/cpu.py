"""The readings on a CPU, in chunks that stay in cache: no memory beyond a few chunks.

All but `count` are made of operations that torch shares out among its threads. A histogram is not such an operation:
callers count several runs at once, from threads of their own.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from lamplighter import bits
from lamplighter.formats import Format, Ints, magnitudes
from lamplighter.kernels import Run
from lamplighter.spectrum import Spectrum, add, from_codes, from_histogram

COUNT_CHUNK = 1 << 18  # a histogram is made and added for each, so they are larger
CHUNK = 1 << 17
COLLECT = 1 << 20  # so many codes are collected before they are counted: 4 MB
SORT = 1 << 15  # up to here sorting is cheaper than a histogram of all keys
EXACT = 1 << 16  # so many products of 12-bit numbers, of one exponent, add up in float64 without rounding


def count(run: Run) -> Spectrum:
    """The spectrum of a run at the resolution of its format's first reading."""
    form, size = run.form, run.entries.numel()
    if form.width == 64 or size <= SORT:
        codes = [codes.numpy() for codes, _ in _codes(run, max(size, 1))]
        spectrum = from_codes(codes[0] if codes else np.empty(0, form.ints), form.dtype, form.shift)
        return _without_dead(spectrum, run)
    bins = 1 << (form.width - 1 - form.shift)
    histogram, zeros = torch.zeros(0), 0
    for keys, entries in _keys(run):
        here = torch.bincount(torch.from_numpy(keys), minlength=bins)
        if int(here[0]):
            zeros += len(keys) - int(np.count_nonzero(entries & form.code_mask))
        histogram = histogram.add_(here) if len(histogram) else here
    counts = histogram.numpy()
    keys = np.flatnonzero(counts)
    return _without_dead(from_histogram(keys, counts[keys], zeros, form.dtype, form.shift), run)


def window(run: Run, low: int, high: int, *, energy: bool) -> tuple[Spectrum, float]:
    """The exact spectrum of the codes in [low, high), and about the energy of those from `high` up.

    The energy is a float64 sum of exact squares; its relative error is below 1e-10.
    """
    form, size = run.form, min(CHUNK, run.entries.numel())
    spectrum = from_codes(np.empty(0, form.ints), form.dtype)
    found: list[Ints] = []
    energies: list[float] = []
    inside, under = torch.empty(size, dtype=torch.bool), torch.empty(size, dtype=torch.bool)
    above, squares = torch.empty(size, dtype=form.dtype), torch.empty(size, dtype=torch.float64)
    below = float(magnitudes(np.array([high - 1]), form)[0])
    for codes, _ in _codes(run, CHUNK):
        n = len(codes)
        torch.ge(codes, low, out=inside[:n])
        inside[:n].logical_and_(torch.lt(codes, high, out=under[:n]))
        found.append(codes.numpy()[inside[:n].numpy()])
        if sum(map(len, found)) > COLLECT:
            spectrum, found = add([spectrum, from_codes(np.concatenate(found), form.dtype)]), []
        if energy:
            # One operation for "those from `high` up, 0 for the others"; integers would take three.
            torch.hardshrink(codes.view(form.dtype), below, out=above[:n])
            energies.append(float(torch.dot(squares[:n].copy_(above[:n]), squares[:n])))
    if found:
        spectrum = add([spectrum, from_codes(np.concatenate(found), form.dtype)])
    return spectrum, math.fsum(energies)


def energy(run: Run, code: int) -> int:
    """The energy of the entries whose code is `code` or more: exact, in units squared."""
    form, total = run.form, 0
    for codes, _ in _codes(run, EXACT):
        total += exact_energy(codes.numpy()[(codes >= code).numpy()].astype(np.int64), form)
    return total


def exact_energy(codes: Ints, form: Format) -> int:
    """Sum of squares of at most EXACT magnitudes, in units squared.

    Magnitudes of one exponent are whole numbers of up to 24 bits; cut into halves, the sums of the products of the
    halves stay below 2**53, so that float64 adds them without rounding.
    """
    exponents = codes >> form.mantissa
    fractions = (codes & ((1 << form.mantissa) - 1)) | ((exponents > 0).astype(np.int64) << form.mantissa)
    upper, lower = (fractions >> 12).astype(np.float64), (fractions & 0xFFF).astype(np.float64)
    sums = [np.bincount(exponents, weights=w) for w in (upper * upper, upper * lower, lower * lower)]
    total = 0
    for e in np.unique(exponents).tolist():
        uu, ul, ll = (int(s[e]) for s in sums)
        total += ((uu << 24) + (ul << 13) + ll) << (2 * max(e - 1, 0))
    return total


def select(run: Run, code: int, drop: int, packed: Tensor, *, erase: bool) -> None:
    """Keep what lies above `code`, and of what equals it all but the first `drop` entries.

    `packed` receives the mask, bit-packed; what is not kept becomes +0.0 in place if `erase`.
    """
    mask, entries = packed.numpy(), torch.from_numpy(_integers(run))
    room, start = torch.empty(min(CHUNK, len(entries)), dtype=torch.bool), 0
    for codes, alive in _codes(run, CHUNK):
        n = len(codes)
        keep = torch.ge(codes, code, out=room[:n])
        if drop:
            drop -= _drop_equals(codes, code, drop, alive, keep)
        if alive is not None:
            keep.logical_and_(alive)
        mask[start // 8 : (start + n + 7) // 8] = np.packbits(keep.numpy(), bitorder="little")
        if erase:
            entries[start : start + n].mul_(keep)
        start += n


def erase(run: Run) -> None:
    """Set the dead entries of a run to +0.0."""
    entries = torch.from_numpy(_integers(run))
    for start in range(0, len(entries), CHUNK):
        chunk = entries[start : start + CHUNK]
        alive = _alive(run, start, start + len(chunk))
        if alive is not None:
            chunk.mul_(alive)


def _drop_equals(codes: Tensor, code: int, drop: int, alive: Tensor | None, keep: Tensor) -> int:
    """Take the first `drop` live entries that equal `code` out of `keep`; how many there were to take."""
    equal = codes == code
    places = np.flatnonzero(equal.numpy() if alive is None else equal.logical_and_(alive).numpy())[:drop]
    keep.numpy()[places] = False
    return len(places)


def _without_dead(spectrum: Spectrum, run: Run) -> Spectrum:
    """Dead entries were read as zeros: take them out."""
    if run.alive is None:
        return spectrum
    dead = run.entries.numel() - bits.count(run.alive)
    return Spectrum(spectrum.dtype, spectrum.shift, spectrum.zeros - dead, spectrum.keys, spectrum.counts)


def _integers(run: Run) -> Ints:
    integers: Ints = run.entries.view(run.form.bits).numpy()
    return integers


def _alive(run: Run, start: int, stop: int) -> Tensor | None:
    if run.alive is None:
        return None
    return bits.unpack(run.alive[start // 8 : (stop + 7) // 8], (stop - start,))


def _codes(run: Run, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The codes of a run, chunk by chunk in one buffer, dead entries as 0, with the chunk's live entries."""
    integers = torch.from_numpy(_integers(run))
    room = torch.empty(min(size, len(integers)), dtype=run.form.bits)
    for start in range(0, len(integers), size):
        chunk = integers[start : start + size]
        codes = torch.bitwise_and(chunk, run.form.code_mask, out=room[: len(chunk)])
        alive = _alive(run, start, start + len(chunk))
        if alive is not None:
            codes.mul_(alive)
        yield codes, alive


def _keys(run: Run) -> Iterator[tuple[Ints, Ints]]:
    """The keys of a run, chunk by chunk in one buffer, with the integers they were taken from."""
    form = run.form
    if form.shift == 0:
        yield from ((codes.numpy(), codes.numpy()) for codes, _ in _codes(run, COUNT_CHUNK))
        return
    room = np.empty(min(COUNT_CHUNK, run.entries.numel()), np.int16)
    for integers in _live_integers(run):
        keys = np.right_shift(integers, form.shift, out=room[: len(integers)], casting="unsafe")
        yield np.bitwise_and(keys, form.code_mask >> form.shift, out=keys), integers


def _live_integers(run: Run) -> Iterator[Ints]:
    """The integers of a run, chunk by chunk: where they lie, signs and all, or codes if some entries are dead."""
    if run.alive is not None:
        yield from (codes.numpy() for codes, _ in _codes(run, COUNT_CHUNK))
        return
    integers = _integers(run)
    for start in range(0, len(integers), COUNT_CHUNK):
        yield integers[start : start + COUNT_CHUNK]
