"""Spectra are exact, additive and small."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.formats import FORMATS, magnitudes, whole
from lamplighter.spectrum import Spectrum, add, from_codes, spectrum_of

DTYPES = list(FORMATS)


def values(dtype: torch.dtype, *, seed: int, size: int = 500) -> torch.Tensor:
    """Floats of all kinds but NaN and infinity: any bit pattern below them, either sign, some zeros."""
    form = FORMATS[dtype]
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, form.infinity, size) * (generator.random(size) < 0.9)
    signs = generator.integers(0, 2, size).astype(np.int64) << (form.width - 1)
    raw = (codes.astype(np.uint64) | signs.astype(np.uint64)).astype(f"u{form.width // 8}")
    return torch.from_numpy(raw.view(form.ints)).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_stand_for_the_magnitudes_they_were_taken_from(dtype):
    tensor = values(dtype, seed=1)
    form = FORMATS[dtype]
    codes = tensor.view(form.bits).numpy() & form.code_mask
    assert np.array_equal(magnitudes(codes, form), tensor.double().abs().numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_units_are_exact(dtype):
    from fractions import Fraction

    form = FORMATS[dtype]
    for code in [0, 1, 2, (1 << form.mantissa) - 1, 1 << form.mantissa, form.infinity - 1]:
        value = Fraction(float(magnitudes(np.array([code]), form)[0]))
        assert whole(code, form) * Fraction(2) ** form.unit == value


@pytest.mark.parametrize("dtype", DTYPES)
@given(cuts=st.lists(st.integers(0, 500), max_size=6), seed=st.integers(0, 5))
def test_spectra_of_parts_add_up_in_any_order(dtype, cuts, seed):
    tensor = values(dtype, seed=seed)
    edges = [0, *sorted(cuts), 500]
    parts = [spectrum_of(tensor[a:b]) for a, b in itertools.pairwise(edges)]
    whole_spectrum = spectrum_of(tensor)
    assert add(parts) == add(parts[::-1]) == whole_spectrum
    assert sum(parts[1:], start=parts[0]) == whole_spectrum
    assert whole_spectrum.size == 500
    assert whole_spectrum.zeros == int((tensor == 0).sum())


@pytest.mark.parametrize("dtype", DTYPES)
def test_bins_hold_their_entries(dtype):
    tensor = values(dtype, seed=3)
    spectrum = spectrum_of(tensor)
    sizes = np.sort(tensor[tensor != 0].double().abs().numpy())
    lows, highs = np.repeat(spectrum.low, spectrum.counts), np.repeat(spectrum.high, spectrum.counts)
    assert np.all(lows <= sizes)
    assert np.all(sizes <= highs)
    if spectrum.shift == 0:
        assert np.array_equal(lows, highs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_bring_a_spectrum_back(dtype):
    spectrum = spectrum_of(values(dtype, seed=4))
    assert Spectrum.from_bytes(spectrum.to_bytes()) == spectrum


def test_spectra_of_different_kinds_do_not_add():
    with pytest.raises(TypeError, match="different kinds"):
        spectrum_of(torch.ones(2)) + spectrum_of(torch.ones(2).half())
    assert spectrum_of(torch.ones(2)) != "a spectrum"


def test_an_empty_layer_has_an_empty_spectrum():
    spectrum = spectrum_of(torch.empty(0))
    assert (spectrum.size, spectrum.zeros, spectrum.nonzero, spectrum.nonfinite) == (0, 0, 0, 0)
    assert repr(spectrum) == "Spectrum(float32, 0 entries, 0 zeros, 0 bins)"


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_counted(dtype):
    spectrum = spectrum_of(torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 0.0], dtype=dtype))
    assert spectrum.nonfinite == 3


def test_keys_are_never_unsigned_64_bit():
    # numpy would compare them with Python integers as float64, and lose the last bits.
    spectrum = from_codes(np.array([2**62 + 1]), torch.float64)
    assert spectrum.keys.dtype == np.int64
