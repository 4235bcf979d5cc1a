"""Which tensors of a checkpoint are prunable: the discovery rule on names, shapes, dtypes, and the config."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from lamplighter.candidates import Candidate
from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.config import says_tied, stores_inputs_first
from lamplighter.checkpoint.header import shown
from lamplighter.errors import LamplighterError
from lamplighter.formats import FORMATS
from lamplighter.modules import stack_output_axis
from lamplighter.naming import is_embedding_name, is_expert_stack, is_prunable_name, natural_key
from lamplighter.targets import Layer, choose_layers

_COMPARED = 1 << 22  # bytes at a time


@dataclass(frozen=True, slots=True)
class Region:
    """Where a layer's weights stand in a checkpoint.

    Args:
        tensors: the names that the tensor has; all mean the same weights.
        dtype: its dtype.
        shape: the layer's shape.
        start: where in the flat tensor the layer begins, as its experts stand one behind the other.
        output_axis: the axis of the layer that indexes outputs.
    """

    tensors: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int = 0
    output_axis: int = 0

    @property
    def size(self) -> int:
        """How many weights it has."""
        return prod(self.shape)


def find_regions(
    checkpoint: Checkpoint, include: str | Iterable[str] | None = None, exclude: str | Iterable[str] | None = None
) -> tuple[list[Layer], dict[str, Region]]:
    """The layers of a checkpoint that count, in layer order, and where their weights stand.

    A layer's tensor has a shape and a dtype, but no values.
    """
    candidates = survey_checkpoint(checkpoint)
    names = {id(candidate.parameter): tuple(candidate.names) for candidate in candidates}

    def check(layer: Layer, packed_in: str) -> None:  # noqa: ARG001
        _check_usable(layer, checkpoint)

    layers = choose_layers(candidates, include, exclude, str(checkpoint.path), check)
    return layers, {layer.name: _region(layer, names[id(layer.parameter)]) for layer in layers}


def _region(layer: Layer, names: tuple[str, ...]) -> Region:
    whole = layer.parameter
    if layer.expert is None:
        return Region(names, whole.dtype, tuple(whole.shape), 0, layer.output_axis)
    shape = tuple(whole.shape[1:])
    return Region(names, whole.dtype, shape, layer.expert * prod(shape), layer.output_axis)


def survey_checkpoint(checkpoint: Checkpoint) -> list[Candidate]:
    """Everything in a checkpoint that could be pruned, with what its name, shape and dtype say it is."""
    outlines = {name: _outline(checkpoint, name) for name in checkpoint.entries}
    found: dict[object, Candidate] = {}
    for name in sorted(outlines, key=natural_key):
        outline = outlines[name]
        candidate = found.setdefault(checkpoint.memory_of(name), Candidate(outline))
        candidate.names.append(name)
        kind = _kind(name, outline)
        if not candidate.kinds & {"matrix", "stack"}:
            first = stores_inputs_first(checkpoint.files.config, name)
            candidate.output_axis = stack_output_axis(name, outlines) if kind == "stack" else int(first)
        candidate.kinds.add(kind)
    candidates = list(found.values())
    for head in _tied_heads(checkpoint, candidates):
        head.kinds.add("embedding")
    return candidates


def _outline(checkpoint: Checkpoint, name: str) -> Tensor:
    """A tensor of the right shape and dtype without values; of dtypes that torch does not know, of bytes."""
    entry = checkpoint.entries[name]
    return torch.empty(entry.shape, dtype=entry.torch_dtype or torch.uint8, device="meta")


def _kind(name: str, outline: Tensor) -> str:
    if is_expert_stack(name, outline.shape):
        return "stack"
    if is_embedding_name(name):
        return "embedding"
    return "matrix" if is_prunable_name(name, outline.shape, outline.dtype) else "other"


def _tied_heads(checkpoint: Checkpoint, candidates: list[Candidate]) -> list[Candidate]:
    """The heads that are tied to an embedding, though the checkpoint stores both.

    The config says whether they are; where it does not, they are if their bytes are the same.
    """
    tied = says_tied(checkpoint.files.config)
    tables = [each for each in candidates if "embedding" in each.kinds and each.parameter.dim() == 2]
    shapes = {table.parameter.shape for table in tables}
    return [
        head
        for head in candidates
        if head.kinds == {"matrix"} and head.parameter.shape in shapes and not any(map(_numbered, head.names))
        if tied or (tied is None and any(_same(checkpoint, head, table) for table in tables))
    ]


def _numbered(name: str) -> bool:
    """Whether a tensor belongs to one of several like blocks, as heads do not."""
    return any(part.isdigit() for part in name.split("."))


def _same(checkpoint: Checkpoint, one: Candidate, other: Candidate) -> bool:
    first, second = one.parameter, other.parameter
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    size = checkpoint.entries[one.names[0]].nbytes
    for begin in range(0, size, _COMPARED):
        end = min(begin + _COMPARED, size)
        parts = (checkpoint.read_bytes(each.names[0], begin, end) for each in (one, other))
        if next(parts) != next(parts):
            return False
    return True


def _check_usable(layer: Layer, checkpoint: Checkpoint) -> None:
    entry = checkpoint.entries[layer.parameter_name]
    if layer.parameter.dtype in FORMATS and layer.parameter.dim() > 0:
        return
    what = f"stored as {entry.dtype}, quantised or packed" if entry.shape else "a single number without dimensions"
    raise LamplighterError(
        f"layer {shown(layer.name)} in {checkpoint.files.root / entry.file} is {what}; expected F64, F32, F16 or BF16",
        f"convert it first, or leave it out: exclude={layer.parameter_name[:200]!r}",
    )
