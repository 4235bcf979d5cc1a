"""The readings on a CPU: numpy and torch on chunks that stay in cache, one thread, no memory beyond the chunk's.

The callers run several at once. numpy where it serves, since a torch operation would start threads of its own.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch

from lamplighter.formats import Format, Ints
from lamplighter.formats import magnitudes as decode
from lamplighter.kernels import Run
from lamplighter.spectrum import Spectrum, add, from_codes, from_histogram

COUNT_CHUNK = 1 << 18  # a histogram is made and added for each, so they are larger
CHUNK = 1 << 16  # also the bound that keeps the sums in `energy` exact
COLLECT = 1 << 20  # so many codes are collected before they are counted: 4 MB
SORT = 1 << 15  # up to here sorting is cheaper than a histogram of all keys


def count(run: Run) -> Spectrum:
    """The spectrum of a run at the resolution of its format's first reading."""
    form, size = run.form, run.entries.numel()
    if form.width == 64 or size <= SORT:
        codes = [codes.copy() for codes, _ in _codes(run, max(size, 1))]
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

    The energy is a float64 sum of exact squares; its relative error is below 1e-11.
    """
    form = run.form
    spectrum = from_codes(np.empty(0, form.ints), form.dtype)
    found: list[Ints] = []
    waiting = 0
    energies: list[float] = []
    size = min(CHUNK, run.entries.numel())
    room, bits = np.empty(size, form.ints), np.empty(size, bool)
    above, squares = torch.from_numpy(room).view(form.dtype), torch.empty(size, dtype=torch.float64)
    below = float(decode(np.array([high - 1]), form)[0])
    for codes, _ in _codes(run, CHUNK):
        n = len(codes)
        np.subtract(codes, low, out=room[:n])
        np.less(room[:n].view(f"u{form.width // 8}"), high - low, out=bits[:n])
        found.append(codes[bits[:n]])
        waiting += len(found[-1])
        if waiting > COLLECT:
            spectrum, found, waiting = add([spectrum, from_codes(np.concatenate(found), form.dtype)]), [], 0
        if energy:
            # One operation for "those from `high` up, 0 for the others"; integers or numpy would take three.
            torch.hardshrink(torch.from_numpy(codes).view(form.dtype), below, out=above[:n])
            energies.append(float(torch.dot(squares[:n].copy_(above[:n]), squares[:n])))
    if found:
        spectrum = add([spectrum, from_codes(np.concatenate(found), form.dtype)])
    return spectrum, math.fsum(energies)


def energy(run: Run, code: int) -> int:
    """The energy of the entries whose code is `code` or more: exact, in units squared."""
    form, total = run.form, 0
    for codes, _ in _codes(run, CHUNK):
        total += exact_energy(codes[codes >= code].astype(np.int64), form)
    return total


def exact_energy(codes: Ints, form: Format) -> int:
    """Sum of squares of at most CHUNK magnitudes, in units squared.

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


def tied(run: Run, code: int) -> int:
    """How many live entries have exactly this code."""
    return sum(_tied(codes, code, alive) for codes, alive in _codes(run, CHUNK))


def select(run: Run, code: int, drop: int, packed: torch.Tensor, *, erase: bool) -> None:
    """Keep what lies above `code`, and of what equals it all but the first `drop` entries.

    `packed` receives the mask, bit-packed; what is not kept becomes +0.0 in place if `erase`.
    """
    mask, entries = packed.numpy(), _integers(run)
    bits, start = np.empty(min(CHUNK, run.entries.numel()), bool), 0
    for codes, alive in _codes(run, CHUNK):
        n = len(codes)
        keep = bits[:n]
        drop = _keep(codes, code, drop, alive, keep)
        mask[start // 8 : (start + n + 7) // 8] = np.packbits(keep, bitorder="little")
        if erase:
            np.multiply(entries[start : start + n], keep, out=entries[start : start + n])
        start += n


def erase(run: Run) -> None:
    """Set the dead entries of a run to +0.0."""
    entries = _integers(run)
    for start in range(0, len(entries), CHUNK):
        chunk = entries[start : start + CHUNK]
        alive = _alive(run, start, start + len(chunk))
        if alive is not None:
            np.multiply(chunk, alive, out=chunk)


def _keep(codes: Ints, code: int, drop: int, alive: Ints | None, out: Ints) -> int:
    """Mark in `out` what of a chunk is kept; how many equal entries are left to drop."""
    if drop == 0:
        np.greater_equal(codes, code, out=out)
    elif (equal := _tied(codes, code, alive)) <= drop:
        np.greater(codes, code, out=out)
        drop -= equal
    else:
        np.greater_equal(codes, code, out=out)
        places = np.flatnonzero(codes == code if alive is None else (codes == code) & alive)
        out[places[:drop]] = False
        drop = 0
    if alive is not None:
        np.logical_and(out, alive, out=out)
    return drop


def _tied(codes: Ints, code: int, alive: Ints | None) -> int:
    equal = codes == code
    return int(np.count_nonzero(equal if alive is None else equal & alive))


def _without_dead(spectrum: Spectrum, run: Run) -> Spectrum:
    """Dead entries were read as zeros: take them out."""
    if run.alive is None:
        return spectrum
    dead = run.entries.numel() - int(np.bitwise_count(run.alive.numpy()).sum(dtype=np.int64))
    return Spectrum(spectrum.dtype, spectrum.shift, spectrum.zeros - dead, spectrum.keys, spectrum.counts)


def _integers(run: Run) -> Ints:
    integers: Ints = run.entries.view(run.form.bits).numpy()
    return integers


def _alive(run: Run, start: int, stop: int) -> Ints | None:
    if run.alive is None:
        return None
    packed = run.alive.numpy()[start // 8 : (stop + 7) // 8]
    alive: Ints = np.unpackbits(packed, count=stop - start, bitorder="little").view(bool)
    return alive


def _codes(run: Run, size: int) -> Iterator[tuple[Ints, Ints | None]]:
    """The codes of a run, chunk by chunk in one buffer, dead entries as 0, with the chunk's live entries."""
    integers, room = _integers(run), np.empty(min(size, run.entries.numel()), run.form.ints)
    for start in range(0, len(integers), size):
        chunk = integers[start : start + size]
        codes = room[: len(chunk)]
        np.bitwise_and(chunk, run.form.code_mask, out=codes)
        alive = _alive(run, start, start + len(chunk))
        if alive is not None:
            np.multiply(codes, alive, out=codes)
        yield codes, alive


def _keys(run: Run) -> Iterator[tuple[Ints, Ints]]:
    """The keys of a run, chunk by chunk in one buffer, with the integers they were taken from."""
    form = run.form
    if form.shift == 0:
        yield from ((codes, codes) for codes, _ in _codes(run, COUNT_CHUNK))
        return
    room = np.empty(min(COUNT_CHUNK, run.entries.numel()), np.int16)
    chunks = _codes(run, COUNT_CHUNK) if run.alive is not None else _chunks(run, COUNT_CHUNK)
    for integers, _ in chunks:
        keys = np.right_shift(integers, form.shift, out=room[: len(integers)], casting="unsafe")
        yield np.bitwise_and(keys, form.code_mask >> form.shift, out=keys), integers


def _chunks(run: Run, size: int) -> Iterator[tuple[Ints, None]]:
    """The integers of a run, signs and all, chunk by chunk where they lie."""
    integers = _integers(run)
    for start in range(0, len(integers), size):
        yield integers[start : start + size], None
