"""The spectra of all layers, and the closer looks at the weights that settle what the first reading leaves open."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lamplighter.formats import Ints, whole
from lamplighter.spectrum import Spectrum


class Source(Protocol):
    """Whatever can read the weights: tensors in memory, a file, the ranks of a cluster. Each call is one reading."""

    def count(self) -> Mapping[str, Spectrum]:
        """The first reading: the spectrum of every layer."""

    def window(self, codes: Mapping[str, tuple[int, int]], *, energy: bool) -> dict[str, tuple[Spectrum, float]]:
        """The second reading: exact spectra between two codes, and about the energy above."""

    def energy(self, codes: Mapping[str, int]) -> dict[str, int]:
        """The exact energy of the entries from a code up, in units squared; asked only to tell near ties apart."""


@dataclass(frozen=True, eq=False)
class Window:
    """A stretch of a layer's spectrum, known exactly.

    Args:
        above: how many entries lie above the stretch.
        energy: about their energy.
        top: the code where the stretch ends.
        spectrum: the exact spectrum of the stretch.
    """

    above: int
    energy: float
    top: int
    spectrum: Spectrum


@dataclass(frozen=True)
class Cut:
    """Where a layer is cut: entries above `code` stay, and of those that equal it all but the first `drop`."""

    code: int
    drop: int


class Spectra(Mapping[str, Spectrum]):
    """The spectra of all layers, by name in layer order, and closer looks at them.

    This is what an allocation method is given. As a mapping it holds what the first reading tells: counts per bin. For
    float32 a bin is a range of magnitudes; `refine` reads the weights again to know some bins to the last bit.

    `bounds` says how few and how many entries each layer may keep: by default none and all that are alive.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._spectra = source.count()
        self._windows: dict[str, Window] = {}
        self.bounds = {name: (0, spectrum.size) for name, spectrum in self._spectra.items()}

    def __getitem__(self, name: str) -> Spectrum:
        return self._spectra[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spectra)

    def __len__(self) -> int:
        return len(self._spectra)

    def refine(self, bins: Mapping[str, tuple[int, int]], *, energy: bool = False) -> dict[str, Window]:
        """Know some bins exactly: for each named layer those from the first index to the second, both included.

        Where the first reading was exact already, nothing is read.
        """
        windows, asked = {}, {}
        for name, (first, last) in bins.items():
            spectrum = self[name]
            low, high = int(spectrum.keys[first]), int(spectrum.keys[last]) + 1
            above = int(spectrum.counts[last + 1 :].sum(dtype=np.int64))
            if spectrum.shift == 0:
                part = slice(first, last + 1)
                # Copies: a view would keep all bins of the layer, which may not be in memory otherwise.
                inside = Spectrum(spectrum.dtype, 0, 0, spectrum.keys[part].copy(), spectrum.counts[part].copy())
                windows[name] = Window(above, _energy_above(spectrum, last) if energy else 0.0, high, inside)
            else:
                asked[name] = (max(low << spectrum.shift, 1), high << spectrum.shift)
                windows[name] = Window(above, 0.0, high << spectrum.shift, spectrum)
        for name, (inside, above_energy) in (self._source.window(asked, energy=energy) if asked else {}).items():
            windows[name] = Window(windows[name].above, above_energy, windows[name].top, inside)
        self._windows.update(windows)
        return windows

    def exact(self, name: str) -> tuple[Ints, Ints, int]:
        """What is known exactly of a layer: codes and counts from the largest down, and how many entries lie above."""
        spectrum, above = self[name], 0
        if spectrum.shift:
            spectrum, above = self._windows[name].spectrum, self._windows[name].above
        return spectrum.keys[::-1].astype(np.int64), spectrum.counts[::-1].astype(np.int64), above

    def exact_energy(self, codes: Mapping[str, int]) -> dict[str, int]:
        """The exact energy of each named layer's entries from a code up, in units squared."""
        exact = {n: _exact_energy_above(self[n], code) for n, code in codes.items() if self[n].shift == 0}
        rest = {n: code for n, code in codes.items() if n not in exact}
        return exact | (self._source.energy(rest) if rest else {})

    def cuts(self, budgets: Mapping[str, int]) -> dict[str, Cut]:
        """Where to cut each layer so that it keeps its budget."""
        cuts: dict[str, Cut] = {}
        unknown: dict[str, tuple[int, int]] = {}
        for name, budget in budgets.items():
            spectrum = self[name]
            if budget == 0:
                cuts[name] = Cut(spectrum.form.infinity, 0)
            elif budget >= spectrum.nonzero:
                cuts[name] = Cut(0, spectrum.size - budget)
            elif name in self._windows and (cut := _cut(self._windows[name], budget)):
                cuts[name] = cut
            else:
                place = _place(spectrum, budget)
                unknown[name] = (place, place)
        for name, window in self.refine(unknown).items():
            cut = _cut(window, budgets[name])
            assert cut is not None
            cuts[name] = cut
        return cuts


def _place(spectrum: Spectrum, rank: int) -> int:
    """The bin of the entry of this rank, counted from the largest."""
    cumulative = np.cumsum(spectrum.counts[::-1], dtype=np.int64)
    return len(cumulative) - 1 - int(np.searchsorted(cumulative, rank))


def _cut(window: Window, budget: int) -> Cut | None:
    """The cut that keeps `budget` entries, if it lies in the window."""
    rank = budget - window.above
    if rank == 0:
        return Cut(window.top, 0)  # what lies above the stretch, and nothing of it
    if not 0 < rank <= window.spectrum.nonzero:
        return None
    place = _place(window.spectrum, rank)
    from_here = int(window.spectrum.counts[place:].sum(dtype=np.int64))
    return Cut(int(window.spectrum.keys[place]), from_here - rank)


def _energy_above(spectrum: Spectrum, place: int) -> float:
    above = spectrum.low[place + 1 :]
    return float(np.dot(above * above, spectrum.counts[place + 1 :].astype(np.float64)))


def _exact_energy_above(spectrum: Spectrum, code: int) -> int:
    """From an exact spectrum: the energy from a code up, in units squared."""
    form = spectrum.form
    first = int(np.searchsorted(spectrum.keys, code))
    keys, counts = spectrum.keys[first:].astype(np.int64), spectrum.counts[first:].astype(np.int64)
    if form.width > 16 or len(keys) == 0:
        return sum(n * whole(key, form) ** 2 for key, n in zip(keys.tolist(), counts.tolist(), strict=True))
    exponents = keys >> form.mantissa
    squares = ((keys & ((1 << form.mantissa) - 1)) | ((exponents > 0).astype(np.int64) << form.mantissa)) ** 2
    starts = np.flatnonzero(np.diff(exponents, prepend=-1))
    # Squares have up to 22 bits and an exponent up to 1,024 keys: with counts cut at 20 bits, 64-bit sums are exact.
    lower = np.add.reduceat(squares * (counts & 0xFFFFF), starts).tolist()
    upper = np.add.reduceat(squares * (counts >> 20), starts).tolist()
    places = exponents[starts].tolist()
    return sum((lo + (up << 20)) << (2 * max(e - 1, 0)) for lo, up, e in zip(lower, upper, places, strict=True))
