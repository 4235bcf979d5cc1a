"""Weights that try an allocator: every dtype, forced ties, extreme ranges, odd shapes and memory layouts."""

from math import prod

import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
METHODS = ("lamp", "global", "uniform", "uniform+", "er", "erk")
NAMES = ("block.10.weight", "block.2.weight", "block.2.conv.weight", "head.weight", "a", "Z.weight", "stem.weight")
LAYOUTS = ("plain", "transposed", "channels_last", "strided", "offset")


def bits(tensor: Tensor) -> Tensor:
    """The bit patterns of a floating-point tensor, as integers."""
    return tensor.detach().contiguous().view(DTYPES[tensor.dtype])


def from_bits(patterns: list[int], dtype: torch.dtype) -> Tensor:
    """The floating-point numbers with these unsigned bit patterns; what is not finite loses its top exponent bit."""
    width = torch.finfo(dtype).bits
    signed = [pattern - (1 << width) if pattern >> (width - 1) else pattern for pattern in patterns]
    integers = torch.tensor(signed, dtype=DTYPES[dtype])
    return torch.where(integers.view(dtype).isfinite(), integers, integers ^ (1 << (width - 2))).view(dtype)


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values in another memory format."""
    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "strided":
        room = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), 7, dtype=tensor.dtype)
        room[..., ::2] = tensor
        return room[..., ::2]
    if layout == "offset":
        room = torch.full((tensor.numel() + 3,), 7, dtype=tensor.dtype)
        room[3:] = tensor.flatten()
        return room[3:].view(tensor.shape)
    return tensor


@st.composite
def entries(draw: st.DrawFn, count: int, dtype: torch.dtype) -> Tensor:
    """`count` finite numbers of one kind: any bits, ties, a constant, neighbours in the last bits, far apart, zeros."""
    width = torch.finfo(dtype).bits
    small = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5])
    far = 2.0 ** draw(st.sampled_from({64: [30, 500], 32: [30, 60, 100], 16: [7, 14]}[width]))
    kind = draw(st.sampled_from(["bits", "ties", "constant", "neighbours", "far", "zeros", "plain"]))
    if kind == "bits":
        return from_bits(draw(st.lists(st.integers(0, 2**width - 1), min_size=count, max_size=count)), dtype)
    if kind == "constant":
        return torch.full((count,), draw(small), dtype=dtype)
    if kind == "neighbours":
        start = int(bits(torch.tensor([draw(st.sampled_from([1.0, 0.1, 3.0, 2.0**-14]))], dtype=dtype)))
        steps = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        return from_bits([start + step for step in steps], dtype)
    pool = {
        "ties": small,
        "far": st.sampled_from([far, 1.0, -1.0, 1 / far, 0.0]),
        "zeros": st.sampled_from([0.0, -0.0]),
        "plain": st.floats(-2, 2, width=16),
    }[kind]
    return torch.tensor(draw(st.lists(pool, min_size=count, max_size=count)), dtype=dtype)


shapes = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 3)),
    st.sampled_from([(1, 1), (0, 3), (2, 0), (1, 1, 1, 1)]),
)


@st.composite
def models(draw: st.DrawFn) -> dict[str, Tensor]:
    """One to five layers, not all empty; some are copies of an earlier one, in their own dtype and layout."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    one_dtype = draw(st.sampled_from([None, *DTYPES]))
    weights: dict[str, Tensor] = {}
    for name in names:
        if weights and draw(st.integers(0, 3)) == 0:
            weights[name] = weights[draw(st.sampled_from(list(weights)))].clone()
            continue
        shape = draw(shapes)
        dtype = one_dtype or draw(st.sampled_from(list(DTYPES)))
        values = draw(entries(prod(shape), dtype)).view(shape)
        weights[name] = lay_out(values, draw(st.sampled_from(LAYOUTS)))
    if not any(value.numel() for value in weights.values()):
        weights[names[0]] = draw(entries(1, torch.float32)).view(1, 1)
    return weights


def keeps(total: int) -> st.SearchStrategy[int]:
    """How many weights stay; the ends more often than chance would have it."""
    return st.one_of(st.sampled_from(sorted({0, 1, total - 1, total})), st.integers(0, total))
