"""Spectra of very many layers: beyond some memory they are kept in a file, and read whenever they are looked at.

Each of ten thousand experts has a spectrum of some thousand bins: together more than the weights that are read at once.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np

from lamplighter.formats import Ints
from lamplighter.spectrum import Spectrum

Kind = np.dtype[np.integer[Any]]

IN_MEMORY = 1 << 25  # bytes of keys and counts


class Shelf(Mapping[str, Spectrum]):
    """Spectra by layer, in a given order.

    Args:
        layers: the layers' names, in their order.
        in_memory: how many bytes of spectra may stay in memory.
    """

    def __init__(self, layers: Iterable[str], in_memory: int = IN_MEMORY) -> None:
        self._spectra: dict[str, Spectrum | None] = dict.fromkeys(layers)
        self._room = in_memory
        self._file: IO[bytes] | None = None
        self._end = 0

    def put(self, layer: str, spectrum: Spectrum) -> None:
        """Keep the spectrum of a layer. Not to be called by several threads at once."""
        size = spectrum.keys.nbytes + spectrum.counts.nbytes
        if self._room >= size:
            self._room -= size
            self._spectra[layer] = spectrum
            return
        self._room = 0
        try:
            self._spectra[layer] = self._put_away(spectrum)
        except OSError:  # nowhere to put it: then it takes memory
            self._spectra[layer] = spectrum

    def __getitem__(self, layer: str) -> Spectrum:
        spectrum = self._spectra[layer]
        assert spectrum is not None, layer
        return spectrum

    def __iter__(self) -> Iterator[str]:
        return iter(self._spectra)

    def __len__(self) -> int:
        return len(self._spectra)

    def __del__(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _put_away(self, spectrum: Spectrum) -> Spectrum:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (open as long as this is)
        start = self._end
        keys, counts = spectrum.keys, spectrum.counts
        for part in (keys, counts):
            data = np.ascontiguousarray(part).tobytes()
            if os.pwrite(self._file.fileno(), data, self._end) != len(data):
                raise OSError("no room")
            self._end += len(data)
        return _Shelved(self, spectrum, start)

    def read(self, start: int, count: int, kind: Kind) -> Ints:
        """Integers that were put away."""
        assert self._file is not None
        data = os.pread(self._file.fileno(), count * kind.itemsize, start)
        return np.frombuffer(data, kind, count)


class _Shelved(Spectrum):
    """A spectrum whose keys and counts are in a file."""

    _place: tuple[Shelf, int, int, Kind, Kind]

    def __init__(self, shelf: Shelf, spectrum: Spectrum, start: int) -> None:
        place = (shelf, start, len(spectrum.keys), spectrum.keys.dtype, spectrum.counts.dtype)
        # Around the fields' own setters: the class is frozen, and two of its fields are computed here.
        given = {"dtype": spectrum.dtype, "shift": spectrum.shift, "zeros": spectrum.zeros, "_place": place}
        self.__dict__.update(given)

    @property
    def keys(self) -> Ints:
        """Read from the file."""
        shelf, start, bins, kind, _ = self._place
        return shelf.read(start, bins, kind)

    @property
    def counts(self) -> Ints:
        """Read from the file."""
        shelf, start, bins, keys, kind = self._place
        return shelf.read(start + bins * keys.itemsize, bins, kind)
