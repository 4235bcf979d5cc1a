"""The spectrum of a layer: how many of its entries have which magnitude; exact, additive, small."""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lamplighter.formats import FORMATS, Floats, Format, Ints, magnitudes


@dataclass(frozen=True, eq=False)
class Spectrum:
    """How many entries of a layer lie at each magnitude.

    Keys are the bit patterns of |w| without their `shift` lowest bits (see `formats`), ascending, each with a count;
    zeros are counted apart. With `shift` 0 the spectrum says everything there is to know of the magnitudes. Spectra of
    parts add up to the spectrum of the whole, in any order, to the same integers.

    >>> a, b = spectrum_of(torch.tensor([1.0, -1.0, 0.0])), spectrum_of(torch.tensor([2.0]))
    >>> a + b
    Spectrum(float32, 4 entries, 1 zero, 2 bins from 1 to 2.016)
    """

    dtype: torch.dtype
    shift: int
    zeros: int
    keys: Ints
    counts: Ints

    @property
    def form(self) -> Format:
        """The format of the entries."""
        return FORMATS[self.dtype]

    @property
    def nonzero(self) -> int:
        """How many entries are not zero."""
        return int(self.counts.sum(dtype=np.int64))

    @property
    def size(self) -> int:
        """How many entries there are."""
        return self.zeros + self.nonzero

    @property
    def low(self) -> Floats:
        """The smallest magnitude that an entry of each bin can have."""
        codes = self.keys.astype(np.int64) << self.shift
        return magnitudes(np.maximum(codes, 1), self.form)

    @property
    def high(self) -> Floats:
        """The largest magnitude that an entry of each bin can have."""
        return magnitudes((self.keys.astype(np.int64) << self.shift) + ((1 << self.shift) - 1), self.form)

    @property
    def nonfinite(self) -> int:
        """How many entries are NaN or infinite."""
        first = np.searchsorted(self.keys, self.form.infinity >> self.shift)
        return int(self.counts[first:].sum(dtype=np.int64))

    def __add__(self, other: "Spectrum") -> "Spectrum":
        return add([self, other])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spectrum):
            return NotImplemented
        same = (self.dtype, self.shift, self.zeros) == (other.dtype, other.shift, other.zeros)
        return same and np.array_equal(self.keys, other.keys) and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        zeros = f"{self.zeros:,} zero{'' if self.zeros == 1 else 's'}"
        bins = f"{len(self.keys):,} bin{'' if len(self.keys) == 1 else 's'}"
        span = f" from {self.low[0]:.4g} to {self.high[-1]:.4g}" if len(self.keys) else ""
        name = str(self.dtype).removeprefix("torch.")
        return f"Spectrum({name}, {self.size:,} entries, {zeros}, {bins}{span})"

    def to_bytes(self) -> bytes:
        """The spectrum as bytes, for a file or another process; `from_bytes` reads them."""
        buffer = io.BytesIO()
        name = np.array(str(self.dtype).removeprefix("torch."))
        head = np.array([self.shift, self.zeros], dtype=np.int64)
        np.savez_compressed(buffer, dtype=name, head=head, keys=self.keys, counts=self.counts)
        return buffer.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> "Spectrum":
        """The spectrum that `to_bytes` wrote."""
        with np.load(io.BytesIO(data), allow_pickle=False) as parts:
            dtype = getattr(torch, str(parts["dtype"]))
            shift, zeros = (int(v) for v in parts["head"])
            return Spectrum(dtype, shift, zeros, parts["keys"], parts["counts"])


def compact(dtype: torch.dtype, shift: int, zeros: int, keys: Ints, counts: Ints) -> Spectrum:
    """A spectrum that stores its keys and counts in the narrowest integers that hold them."""
    if len(keys):
        keys = keys.astype(_narrowest(int(keys[-1])), copy=False)
        counts = counts.astype(_narrowest(int(counts.max())), copy=False)
    return Spectrum(dtype, shift, zeros, keys, counts)


def _narrowest(largest: int) -> np.dtype[np.integer[Any]]:
    # Never uint64: beside a Python int numpy would turn it into float64.
    return np.dtype(np.int64) if largest >> 32 else np.min_scalar_type(largest)


def from_codes(codes: Ints, dtype: torch.dtype, shift: int = 0) -> Spectrum:
    """The spectrum of a few codes, by sorting them."""
    ordered = np.sort(codes >> shift if shift else codes)
    firsts = np.flatnonzero(np.diff(ordered, prepend=ordered.dtype.type(-1)) != 0)  # no code is negative
    keys, counts = ordered[firsts], np.diff(firsts, append=len(ordered))
    zeros = int(np.count_nonzero(codes == 0)) if len(keys) and keys[0] == 0 else 0
    return from_histogram(keys, counts, zeros, dtype, shift)


def from_histogram(keys: Ints, counts: Ints, zeros: int, dtype: torch.dtype, shift: int) -> Spectrum:
    """The spectrum of a histogram whose first bin, if it is key 0, still holds `zeros` zeros."""
    if zeros:
        counts = counts.copy()
        counts[0] -= zeros
        if counts[0] == 0:
            keys, counts = keys[1:], counts[1:]
    return compact(dtype, shift, zeros, keys, counts)


def spectrum_of(tensor: torch.Tensor) -> Spectrum:
    """The spectrum of a small tensor, by the definition.

    >>> spectrum_of(torch.tensor([3.0, 0.0, -3.0], dtype=torch.bfloat16))
    Spectrum(bfloat16, 3 entries, 1 zero, 1 bin from 3 to 3)
    """
    form = FORMATS[tensor.dtype]
    codes = tensor.detach().reshape(-1).cpu().view(form.bits).numpy() & form.code_mask
    return from_codes(codes.astype(np.int64), tensor.dtype, form.shift)


def add(parts: Iterable[Spectrum]) -> Spectrum:
    """The spectrum of all parts together."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    kinds = {(p.dtype, p.shift) for p in parts}
    if len(kinds) != 1:
        raise TypeError(f"spectra of different kinds cannot be added: {sorted(map(str, kinds))}")
    (dtype, shift) = kinds.pop()
    keys, places = np.unique(np.concatenate([p.keys.astype(np.int64) for p in parts]), return_inverse=True)
    counts = np.zeros(len(keys), dtype=np.int64)
    np.add.at(counts, places, np.concatenate([p.counts.astype(np.int64) for p in parts]))
    return compact(dtype, shift, sum(p.zeros for p in parts), keys, counts)
