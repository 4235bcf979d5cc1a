"""Bitmask and values: every bit comes back, whatever the dtype, and only +0.0 counts as zero."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lamplighter import bits
from lamplighter.checkpoint.packed_codec import CHUNK, CHUNK_BYTES, WORDS, count, counts, decode, encode, words_of

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
]


def random_words(width, size, density, seed=0):
    """Random bit patterns, every other entry zero, by the share that is not."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (size, width), np.uint8)
    noise[rng.random(size) >= density] = 0
    return torch.from_numpy(noise).view(-1).view(WORDS[width])


def round_trip(words):
    mask, values = encode(words)
    out = torch.full_like(words, 1)
    decode(mask, values, out)
    return mask, values, out


@pytest.mark.parametrize("width", WORDS)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000, CHUNK])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.5, 1.0])
def test_every_bit_comes_back(width, size, density):
    words = random_words(width, size, density)
    mask, values, out = round_trip(words)
    assert torch.equal(out, words)
    assert mask.dtype == torch.uint8
    assert mask.numel() == math.ceil(size / 8)
    assert values.numel() == count(words) == int((words != 0).sum())
    assert torch.equal(values, words[words != 0])
    assert torch.equal(bits.unpack(mask, (size,)), words != 0)


@given(st.lists(st.one_of(st.just(0), st.integers(-(2**15), 2**15 - 1)), max_size=200))
@settings(max_examples=50, deadline=None)
def test_any_words_come_back(words):
    words = torch.tensor(words, dtype=torch.int16)
    assert torch.equal(round_trip(words)[2], words)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_entries_of_every_dtype_are_words_in_the_same_memory(dtype):
    entries = torch.zeros(2, 3, dtype=dtype)
    words = words_of(entries)
    words[4] = 1
    assert words.shape == (6,)
    assert words.element_size() == entries.element_size()
    assert entries.view(torch.uint8).count_nonzero() == 1
    assert count(words_of(entries)) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_negative_zeros_and_the_payloads_of_nans_are_values(dtype):
    entries = torch.tensor([0.0, -0.0, math.nan, 1.0, 0.0], dtype=dtype)
    words = words_of(entries)
    words[2] += 3  # another NaN than the usual one
    mask, values, out = round_trip(words)
    assert mask.tolist() == [0b01110]
    assert values.numel() == 3
    assert torch.equal(out, words)
    assert out.view(dtype)[1].signbit()


def test_the_smallest_subnormal_is_a_value_even_where_the_processor_flushes_it():
    entries = torch.tensor([0.0, 1e-45, 0.0])
    torch.set_flush_denormal(True)
    try:
        mask, _, out = round_trip(words_of(entries))
    finally:
        torch.set_flush_denormal(False)
    assert mask.tolist() == [0b010]
    assert out.tolist() == [0, 1, 0]


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 5])
def test_bits_are_counted_chunk_by_chunk(size):
    mask = torch.from_numpy(np.random.default_rng(0).integers(0, 256, size, np.uint8))
    expected = [bits.count(mask[begin : begin + CHUNK_BYTES]) for begin in range(0, size, CHUNK_BYTES)]
    assert counts(mask) == expected
    assert counts(mask[1:]) == [bits.count(part) for part in mask[1:].split(CHUNK_BYTES) if len(part)]


def test_unused_bits_are_zero():
    mask, _ = encode(torch.ones(11, dtype=torch.int16))
    assert mask.tolist() == [255, 0b111]
