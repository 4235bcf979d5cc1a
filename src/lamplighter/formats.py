"""Floating-point formats as integers: the bits of |w| sort like |w|; every |w| is a whole number of units."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]

EXACT = 1 << 16  # so many products of 12-bit numbers, of one exponent, add up in float64 without rounding


@dataclass(frozen=True)
class Format:
    """How one dtype's magnitudes are read.

    A *code* is the bit pattern of |w|, an integer that sorts like |w|. A *key* is a code without its `shift` lowest
    bits: what the first reading of a layer counts.
    """

    dtype: torch.dtype
    bits: torch.dtype  # the integer dtype of the same width
    width: int
    mantissa: int  # stored bits of the mantissa
    bias: int
    shift: int  # low bits that the first reading leaves out

    @property
    def code_mask(self) -> int:
        """All bits but the sign."""
        return (1 << (self.width - 1)) - 1

    @property
    def infinity(self) -> int:
        """The code of infinity; NaNs lie above it."""
        return (self.code_mask >> self.mantissa) << self.mantissa

    @property
    def unit(self) -> int:
        """Every magnitude is a whole number times 2**unit."""
        return 1 - self.bias - self.mantissa

    @property
    def ints(self) -> np.dtype[np.signedinteger[Any]]:
        """The numpy dtype of a code."""
        return np.dtype(f"i{self.width // 8}")


FORMATS = {
    f.dtype: f
    for f in (
        Format(torch.float16, torch.int16, 16, 10, 15, 0),
        Format(torch.bfloat16, torch.int16, 16, 7, 127, 0),
        Format(torch.float32, torch.int32, 32, 23, 127, 16),
        Format(torch.float64, torch.int64, 64, 52, 1023, 0),
    )
}


def magnitudes(codes: Ints, form: Format) -> Floats:
    """The magnitudes that codes stand for, exactly, as float64.

    >>> magnitudes(np.array([0x3F80, 0x4000]), FORMATS[torch.bfloat16])
    array([1., 2.])
    """
    if form.dtype == torch.bfloat16:
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    floats = codes.astype(form.ints).view(f"f{form.width // 8}")
    return floats.astype(np.float64)


def whole(code: int, form: Format) -> int:
    """The magnitude of a code as a whole number of units (2**unit), exactly.

    >>> form = FORMATS[torch.float16]
    >>> whole(0x3C00, form) * 2.0**form.unit
    1.0
    """
    exponent, fraction = code >> form.mantissa, code & ((1 << form.mantissa) - 1)
    return fraction if exponent == 0 else (fraction | (1 << form.mantissa)) << (exponent - 1)


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
