"""Entries as a bitmask and the values that are not zero, and back: a chunk at a time, bit for bit.

An entry is a zero if all its bits are zero: -0.0 is a value like any other. So entries are words, integers of the
dtype's width, and floating-point rules never come into it.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# So many entries are worked on at once. Their positions, 2 MB, stay in a core's own cache; more of them take up to
# three times as long. A multiple of 8, so that every chunk's bits begin with a byte.
CHUNK = 1 << 18
CHUNK_BYTES = CHUNK // 8

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def words_of(entries: Tensor) -> Tensor:
    """Contiguous entries of any dtype, flat, as integers of the same width in the same memory."""
    return entries.view(-1).view(WORDS[entries.element_size()])


def raw(words: Tensor) -> memoryview:
    """The bytes of words, in the same memory."""
    return words.view(torch.uint8).numpy().data


def count(words: Tensor) -> int:
    """How many words are not zero.

    >>> count(words_of(torch.tensor([0.0, -0.0, 1.0, float("nan")])))
    3
    """
    return int(np.count_nonzero(words.numpy()))


def encode(words: Tensor) -> tuple[Tensor, Tensor]:
    """The bitmask of at most a chunk of words (see `bits.pack`), and those that are not zero.

    >>> encode(torch.tensor([0, 7, 0, 9], dtype=torch.int16))
    (tensor([10], dtype=torch.uint8), tensor([7, 9], dtype=torch.int16))
    """
    array = words.numpy()
    flags = array != 0
    # Positions first: to copy what a mask marks, entry by entry, takes up to seven times as long.
    values = array.take(np.flatnonzero(flags))
    return torch.from_numpy(np.packbits(flags, bitorder="little")), torch.from_numpy(values)


def decode(mask: Tensor, values: Tensor, out: Tensor) -> bool:
    """Put the words back that `encode` took apart; False, and nothing done, unless a bit is set for each value.

    >>> out = torch.empty(4, dtype=torch.int16)
    >>> decode(torch.tensor([10], dtype=torch.uint8), torch.tensor([7, 9], dtype=torch.int16), out)
    True
    >>> out
    tensor([0, 7, 0, 9], dtype=torch.int16)
    """
    flags = np.unpackbits(mask.numpy(), count=out.numel(), bitorder="little")
    places = np.flatnonzero(flags.view(np.bool_))
    if len(places) != values.numel():
        return False
    out.numpy().fill(0)
    # torch puts values in their places twice as fast as numpy does; numpy finds the places twice as fast.
    out.scatter_(0, torch.from_numpy(places), values)
    return True


def counts(mask: Tensor) -> list[int]:
    """How many bits are set in the bitmask of each chunk, one after the other.

    >>> counts(torch.tensor([3, 255], dtype=torch.uint8))
    [10]
    """
    chunks = (mask.numpy()[begin : begin + CHUNK_BYTES] for begin in range(0, mask.numel(), CHUNK_BYTES))
    return [int(np.bitwise_count(_wide(chunk)).sum(dtype=np.int64)) for chunk in chunks]


def _wide(chunk: NDArray[np.uint8]) -> NDArray[np.uint8] | NDArray[np.uint64]:
    """The same bits, eight bytes at a time where possible: counted three times as fast."""
    return chunk.view(np.uint64) if len(chunk) % 8 == 0 and chunk.ctypes.data % 8 == 0 else chunk
