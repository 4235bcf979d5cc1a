"""Bit-packed booleans: entry 8k + i of the flattened tensor is bit i of byte k."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# Multiplying eight bytes of 0/1, read as one little-endian integer, by this constant gathers them in the top byte.
_GATHER = 0x0102040810204080


def pack(mask: Tensor) -> Tensor:
    """Pack a boolean tensor of any shape, in logical row-major order, into ceil(n / 8) bytes.

    >>> pack(torch.tensor([True, False, True]))
    tensor([5], dtype=torch.uint8)
    """
    flat = mask.contiguous().view(-1)
    if flat.device.type == "cpu":
        return torch.from_numpy(np.packbits(flat.numpy(), bitorder="little"))
    padded = torch.zeros(-(-flat.numel() // 8) * 8, dtype=torch.bool, device=flat.device)
    padded[: flat.numel()] = flat
    return ((padded.view(torch.int64) * _GATHER) >> 56).to(torch.uint8)


def unpack(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """The boolean tensor of `shape` that `pack` made `packed` of."""
    n = math.prod(shape)
    if packed.device.type == "cpu":
        flat = np.unpackbits(packed.numpy(), count=n, bitorder="little")
        return torch.from_numpy(flat).view(torch.bool).view(tuple(shape))
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    spread = (packed.unsqueeze(1) >> places) & 1
    return spread.view(-1)[:n].view(torch.bool).view(tuple(shape))


def count(packed: Tensor) -> int:
    """How many bits are set."""
    if packed.device.type == "cpu":
        return int(np.bitwise_count(packed.numpy()).sum(dtype=np.int64))
    # In steps, so that the expansion to eight bytes a byte stays small.
    parts: tuple[Tensor, ...] = torch.split(packed, 1 << 22)
    return sum(int(unpack(part, (8 * part.numel(),)).sum().item()) for part in parts)
