"""The readings on a CPU, in chunks that stay in cache: no memory beyond a few chunks.

All but `count` are made of operations that torch shares out among its threads. A histogram is not such an operation:
callers count several runs at once, from threads of their own. Comparisons give integers, which torch computes many at a
time, and are then copied to booleans: a comparison that gives booleans takes three times as long.
"""

import math
import threading
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from lamplighter import bits
from lamplighter.formats import EXACT, Format, Ints, exact_energy, magnitudes
from lamplighter.kernels import Run, anywhere
from lamplighter.spectrum import Spectrum, add, from_codes, from_histogram

CHUNK = 1 << 18
COUNT_CHUNK = 1 << 20  # a histogram is made and added for each, so they are larger
COLLECT = 1 << 20  # so many codes are collected before they are counted: 4 MB
SORT = 1 << 15  # up to here sorting is cheaper than a histogram of all keys


def count(run: Run) -> Spectrum:
    """The spectrum of a run at the resolution of its format's first reading."""
    form, size = run.form, run.entries.numel()
    if form.width == 64 or size <= SORT:
        codes = [codes.numpy() for codes, _ in _codes(run, max(size, 1))]
        spectrum = from_codes(codes[0] if codes else np.empty(0, form.ints), form.dtype, form.shift)
        return _without_dead(spectrum, run)
    bottom, zeros, histogram = 0, 0, torch.zeros(0, dtype=torch.int64, device="cpu")
    for keys, entries in _keys(run):
        # From the smallest key there is: a histogram of all keys would take longer to clear and to add than to fill.
        low = int(keys.min())
        if low == 0:
            zeros += len(keys) - int(np.count_nonzero(entries.numpy() & form.code_mask))
        bottom, histogram = _add_histogram(bottom, histogram, low, torch.bincount(keys.sub_(low)))
    counts: Ints = histogram.numpy()
    filled = np.flatnonzero(counts != 0)  # eight times as fast as that of the counts themselves
    return _without_dead(from_histogram(filled + bottom, counts[filled], zeros, form.dtype, form.shift), run)


def _add_histogram(bottom: int, histogram: Tensor, low: int, more: Tensor) -> tuple[int, Tensor]:
    """The sum of two histograms, the one of keys from `bottom` up, the other from `low` up; where it begins."""
    if len(histogram) == 0:
        return low, more
    start, stop = min(bottom, low), max(bottom + len(histogram), low + len(more))
    if (start, stop) != (bottom, bottom + len(histogram)):
        wider = torch.zeros(stop - start, dtype=torch.int64, device="cpu")
        wider[bottom - start : bottom - start + len(histogram)] = histogram
        histogram = wider
    histogram[low - start : low - start + len(more)] += more
    return start, histogram


def window(run: Run, low: int, high: int, *, energy: bool) -> tuple[Spectrum, float]:
    """The exact spectrum of the codes in [low, high), and about the energy of those from `high` up.

    The energy is a float64 sum of exact squares; its relative error is below 1e-10.
    """
    form, size = run.form, min(CHUNK, run.entries.numel())
    if low >> form.mantissa == 0:  # subnormal numbers: a program may have told the processor to take them for zeros
        return anywhere.window(run, low, high, energy=energy)
    under, below = magnitudes(np.array([low - 1, high - 1]), form).tolist()
    collected = Collected(form)
    energies: list[Tensor] = []
    reached, above = _room("reached", form.dtype, size), _room("above", form.dtype, size)
    inside, beyond = _room("inside", torch.bool, size), _room("beyond", torch.bool, size)
    squares = _room("squares", torch.float64, size)
    for integers in _live_integers(run, CHUNK):
        n, entries = len(integers), integers.view(form.dtype)
        # "Those from `low` up, 0 for the others": one operation, where integers would take three.
        torch.hardshrink(entries, under, out=reached[:n])
        torch.hardshrink(reached[:n], below, out=above[:n])
        inside[:n].copy_(reached[:n]).view(torch.int8).sub_(beyond[:n].copy_(above[:n]).view(torch.int8))
        collected.take(integers.numpy().take(np.flatnonzero(inside[:n].numpy())) & form.code_mask)
        if energy:
            squares[:n].copy_(above[:n])
            energies.append(torch.dot(squares[:n], squares[:n]))
    return collected.spectrum(), math.fsum(map(float, energies))


class Collected:
    """Codes of which a spectrum is to be made, counted whenever there are many of them."""

    def __init__(self, form: Format) -> None:
        self.form = form
        self.parts: list[Spectrum] = []
        self.waiting: list[Ints] = []
        self.count = 0

    def take(self, codes: Ints) -> None:
        """Some more codes."""
        self.waiting.append(codes)
        self.count += len(codes)
        if self.count > COLLECT:
            self.parts = [self.spectrum()]
            self.waiting, self.count = [], 0

    def spectrum(self) -> Spectrum:
        """The spectrum of all there were."""
        codes = np.concatenate(self.waiting) if self.waiting else np.empty(0, self.form.ints)
        return add([*self.parts, from_codes(codes, self.form.dtype)])


def energy(run: Run, code: int) -> int:
    """The energy of the entries whose code is `code` or more: exact, in units squared."""
    form, total = run.form, 0
    for codes, _ in _codes(run, EXACT):
        total += exact_energy(codes.numpy()[(codes >= code).numpy()].astype(np.int64), form)
    return total


def select(run: Run, code: int, drop: int, packed: Tensor, *, erase: bool) -> None:
    """Keep what lies above `code`, and of what equals it all but the first `drop` entries.

    `packed` receives the mask, bit-packed; what is not kept becomes +0.0 in place if `erase`.
    """
    mask, entries, size = packed.numpy(), _integers(run), min(CHUNK, run.entries.numel())
    reached, room, start = _room("reached", run.form.bits, size), _room("inside", torch.bool, size), 0
    for codes, alive in _codes(run, CHUNK):
        n = len(codes)
        keep = room[:n].copy_(torch.ge(codes, code, out=reached[:n]))
        changed = drop > 0 or alive is not None
        if drop:
            drop -= _drop_equals(codes, code, drop, alive, keep)
        if alive is not None:
            keep.logical_and_(alive)
        mask[start // 8 : (start + n + 7) // 8] = np.packbits(keep.numpy(), bitorder="little")
        if erase:
            # By integers: torch would make some of booleans, in memory of their own.
            entries[start : start + n].mul_(reached[:n].copy_(keep) if changed else reached[:n])
        start += n


def erase(run: Run) -> None:
    """Set the dead entries of a run to +0.0."""
    entries = _integers(run)
    for start in range(0, len(entries), CHUNK):
        chunk = entries[start : start + CHUNK]
        alive = _alive(run, start, start + len(chunk))
        if alive is not None:
            chunk.mul_(alive)


def _drop_equals(codes: Tensor, code: int, drop: int, alive: Tensor | None, keep: Tensor) -> int:
    """Take the first `drop` live entries that equal `code` out of `keep`; how many there were to take."""
    equal = _room("equal", torch.bool, len(codes)).copy_(codes.eq_(code))
    places = np.flatnonzero(equal.numpy() if alive is None else equal.logical_and_(alive).numpy())[:drop]
    keep.numpy()[places] = False
    return len(places)


def _without_dead(spectrum: Spectrum, run: Run) -> Spectrum:
    """Dead entries were read as zeros: take them out."""
    if run.alive is None:
        return spectrum
    dead = run.entries.numel() - bits.count(run.alive)
    return Spectrum(spectrum.dtype, spectrum.shift, spectrum.zeros - dead, spectrum.keys, spectrum.counts)


def _integers(run: Run) -> Tensor:
    return run.entries.detach().view(run.form.bits)


def _alive(run: Run, start: int, stop: int) -> Tensor | None:
    if run.alive is None:
        return None
    return bits.unpack(run.alive[start // 8 : (stop + 7) // 8], (stop - start,))


def _codes(run: Run, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The codes of a run, chunk by chunk in one buffer, dead entries as 0, with the chunk's live entries."""
    integers = _integers(run)
    room = _room("codes", run.form.bits, min(size, len(integers)))
    for start in range(0, len(integers), size):
        chunk = integers[start : start + size]
        codes = torch.bitwise_and(chunk, run.form.code_mask, out=room[: len(chunk)])
        alive = _alive(run, start, start + len(chunk))
        if alive is not None:
            codes.mul_(alive)
        yield codes, alive


def _keys(run: Run) -> Iterator[tuple[Tensor, Tensor]]:
    """The keys of a run, chunk by chunk in one buffer, with the integers they were taken from."""
    form = run.form
    if form.shift == 0:
        yield from ((codes, codes) for codes, _ in _codes(run, COUNT_CHUNK))
        return
    room = _room("keys", torch.int16, min(COUNT_CHUNK, run.entries.numel()))
    for integers in _live_integers(run, COUNT_CHUNK):
        keys = room[: len(integers)]
        for part, found in zip(torch.split(integers, CHUNK), torch.split(keys, CHUNK), strict=True):
            shifted = _room("reached", form.bits, len(part))
            found.copy_(torch.bitwise_right_shift(part, form.shift, out=shifted))
        yield keys.bitwise_and_(form.code_mask >> form.shift), integers


def _live_integers(run: Run, size: int) -> Iterator[Tensor]:
    """The integers of a run, chunk by chunk: where they lie, signs and all, or codes if some entries are dead."""
    if run.alive is not None:
        yield from (codes for codes, _ in _codes(run, size))
        return
    yield from torch.split(_integers(run), size)


class _Rooms(threading.local):
    """Each thread's buffers, used again from run to run: fresh memory costs more than what is done in it."""

    def __init__(self) -> None:
        self.by_use: dict[tuple[str, torch.dtype], Tensor] = {}


_rooms = _Rooms()


def _room(use: str, dtype: torch.dtype, size: int) -> Tensor:
    """A buffer of `size` entries, whatever was in it; the same memory for the same use."""
    room = _rooms.by_use.get((use, dtype))
    if room is None or len(room) < size:
        with torch.inference_mode(False):  # it outlives the caller's mode and default device
            room = _rooms.by_use[use, dtype] = torch.empty(size, dtype=dtype, device="cpu")
    return room[:size]
