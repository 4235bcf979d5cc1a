"""Checkpoints of random weights, written chunk by chunk, to measure on."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from lamplighter.checkpoint.dtypes import CODES
from lamplighter.checkpoint.writing import Described, ShardWriter

_POOL = 1 << 22  # random numbers, of which each tensor takes a stretch of its own
_WIDE, _HIDDEN, _INNER = 8192, 4096, 14336
_EXPERT = (256, 128)


@dataclass(frozen=True)
class Content:
    """What a checkpoint is to hold.

    Args:
        nbytes: about how many bytes.
        dtype: of all tensors.
        largest: bytes of the largest tensor.
        experts: if not 0, a mixture of so many experts of three matrices each, whatever the size.
    """

    nbytes: int
    dtype: torch.dtype
    largest: int = 500_000_000
    experts: int = 0


def make(path: Path, content: Content) -> None:
    """Write a checkpoint of random weights."""
    width = content.dtype.itemsize
    entries = _experts(content) if content.experts else _blocks(content)
    generator = torch.Generator().manual_seed(0)
    pool = (0.02 * torch.randn(2 * _POOL, generator=generator)).to(content.dtype).view(torch.uint8).numpy().data
    start = 0
    with ShardWriter(path, entries, {"format": "pt"}) as writer:
        for name, _, shape in entries:
            left = prod(shape) * width
            while left:
                count = min(left, _POOL * width)
                writer.write(name, pool[start : start + count])
                left -= count
                start = (start + 7919 * width) % (_POOL * width)


def _blocks(content: Content) -> list[Described]:
    """An embedding, a very large matrix, and blocks of two matrices and a norm."""
    code, width = CODES[content.dtype], content.dtype.itemsize
    rows = max(content.largest // width // _WIDE, 1)
    small = content.nbytes < 2 * content.largest  # for trying it out: everything a tenth as wide
    hidden, inner = (_HIDDEN // 8, _INNER // 8) if small else (_HIDDEN, _INNER)
    entries: list[Described] = [("embed_tokens.weight", code, (hidden, hidden))]
    if not small:
        entries.append(("stem.weight", code, (rows, _WIDE)))
    total = sum(prod(shape) for *_, shape in entries) * width
    while total < content.nbytes:
        block = f"layers.{len(entries)}"
        entries += [
            (f"{block}.attn.weight", code, (hidden, hidden)),
            (f"{block}.mlp.weight", code, (hidden, inner)),
            (f"{block}.norm.weight", code, (hidden,)),
        ]
        total += (hidden * hidden + hidden * inner + hidden) * width
    return entries


def _experts(content: Content) -> list[Described]:
    code, (inner, hidden) = CODES[content.dtype], _EXPERT
    parts = (("gate_proj", (inner, hidden)), ("up_proj", (inner, hidden)), ("down_proj", (hidden, inner)))
    return [
        (f"layers.{expert // 256}.experts.{expert % 256}.{name}.weight", code, shape)
        for expert in range(content.experts)
        for name, shape in parts
    ]
