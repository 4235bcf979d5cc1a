"""Packing booleans into bytes and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lamplighter import bits


@given(st.lists(st.booleans(), max_size=70))
def test_unpack_undoes_pack(flags):
    mask = torch.tensor(flags, dtype=torch.bool)
    packed = bits.pack(mask)
    assert packed.dtype == torch.uint8
    assert packed.numel() == -(-len(flags) // 8)
    assert bits.unpack(packed, mask.shape).tolist() == flags
    assert bits.count(packed) == sum(flags)


@given(st.lists(st.booleans(), max_size=70))
def test_bit_i_of_byte_k_is_entry_8k_plus_i(flags):
    expected = [sum(flag << place for place, flag in enumerate(flags[k : k + 8])) for k in range(0, len(flags), 8)]
    assert bits.pack(torch.tensor(flags, dtype=torch.bool)).tolist() == expected


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 7), (2, 3, 3, 3)])
def test_shapes_come_back(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.equal(bits.unpack(bits.pack(mask), shape), mask)


def test_the_order_is_logical_whatever_the_memory_format():
    mask = torch.rand(4, 6, 5, 3, generator=torch.Generator().manual_seed(0)) < 0.5
    packed = bits.pack(mask)
    assert torch.equal(bits.pack(mask.to(memory_format=torch.channels_last)), packed)
    assert torch.equal(bits.pack(mask.transpose(0, 3).contiguous().transpose(0, 3)), packed)


def test_a_large_mask_is_counted_exactly():
    mask = torch.rand(1_000_003, generator=torch.Generator().manual_seed(0)) < 0.3
    assert bits.count(bits.pack(mask)) == int(mask.sum())


@pytest.mark.gpu
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1_000_003])
def test_cuda_packs_and_counts_the_same(count):
    mask = torch.rand(count, generator=torch.Generator().manual_seed(0)) < 0.5
    packed = bits.pack(mask.cuda())
    assert torch.equal(packed.cpu(), bits.pack(mask))
    assert torch.equal(bits.unpack(packed, mask.shape).cpu(), mask)
    assert bits.count(packed) == int(mask.sum())
