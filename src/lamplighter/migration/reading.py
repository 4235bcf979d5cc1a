"""Reading what other tools have pruned: files, folders and state dicts."""

import os
import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lamplighter import bits
from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.errors import LamplighterError
from lamplighter.formats import FORMATS
from lamplighter.masks import Masks
from lamplighter.migration.forms import BITMASK, BITMASK_24, PLAIN, Form, recognise
from lamplighter.naming import is_expert_stack, is_prunable_name, listed

_UNSAFE = re.compile(r"GLOBAL ([\w.]+)")
_UNREADABLE = ("marlin-24",)


def read_sparse(src: str | os.PathLike[str] | Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Masks]:
    """The weights, dense, and the masks of a checkpoint that another tool has pruned. Not a bit is lost.

    Masks are what the checkpoint says they are: `NAME_orig` and `NAME_mask` of `torch.nn.utils.prune`, the bitmasks of
    compressed-tensors. Where it does not say, what is not zero is kept, of the layers that count by default.

    Args:
        src: a state dict, or a checkpoint: safetensors, a file of torch or Lightning's, or a folder of either.

    >>> weights = {"fc.weight_orig": torch.tensor([[1.0, -2.0]]), "fc.weight_mask": torch.tensor([[1.0, 0.0]])}
    >>> state, masks = read_sparse(weights)
    >>> state, masks["fc.weight"]
    ({'fc.weight': tensor([[1., 0.]])}, tensor([[ True, False]]))
    """
    source = _tensors_of(src) if isinstance(src, Mapping) else open_checkpoint(src)
    dense: dict[str, Tensor] = {}
    packed: dict[str, Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for form in recognise(list(source)):
        dense[form.name], kept = form.decode(source.__getitem__)
        add_masks(packed, shapes, form, dense[form.name], kept)
    return dense, found_masks(packed, shapes, "the state dict" if isinstance(src, Mapping) else os.fspath(src))


def _tensors_of(state: Mapping[str, object]) -> Mapping[str, Tensor]:
    """The tensors of a state dict, which may hold counts and the like beside them."""
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def describe(path: str | os.PathLike[str]) -> str | None:
    """Who wrote a checkpoint so that it says what is pruned, or None if it is an ordinary one. Reads no weights."""
    checkpoint = open_checkpoint(path, refuse=False)
    counts = Counter(form.kind for form in recognise(list(checkpoint)))
    said = [f"{kind}: {_counted(count)}" for kind, count in counts.items() if kind != PLAIN]
    unreadable = quantisation(checkpoint).get("format")
    if unreadable in _UNREADABLE:
        said.append(f"compressed-tensors {unreadable}, which is written for one kernel and not read back")
    version = _lightning_version(checkpoint)
    if version:
        said.insert(0, f"a checkpoint of Lightning {version}")
    return "; ".join(said) or None


def _counted(count: int) -> str:
    return f"{count:,} tensor{'s' if count != 1 else ''}"


def open_checkpoint(path: str | os.PathLike[str], *, refuse: bool = True) -> Checkpoint:
    """The checkpoint at a path; an error that says so where only running its own code could read it."""
    try:
        checkpoint = Checkpoint(path)
    except LamplighterError as error:
        unsafe = _UNSAFE.findall(str(error.__cause__))
        if not unsafe:
            raise
        raise LamplighterError(
            f"{os.fspath(path)} holds objects beside its tensors ({listed(sorted(set(unsafe)))}), and reading those "
            "could run any code",
            "where you trust it, write its weights alone: torch.save({'state_dict': torch.load(path, "
            "weights_only=False)['state_dict']}, 'weights.ckpt')",
        ) from error
    found = quantisation(checkpoint).get("format")
    if refuse and found in _UNREADABLE:
        raise LamplighterError(
            f"{checkpoint.path} is stored as {found}, for one kernel; not even its own package reads it back",
            "start from the checkpoint that it was made of",
        )
    return checkpoint


def quantisation(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the config says of compressed-tensors, under the names that it has had."""
    config = checkpoint.files.config
    found = config.get("quantization_config") or config.get("compression_config") or {}
    return found if isinstance(found, dict) else {}


def add_masks(
    packed: dict[str, Tensor], shapes: dict[str, tuple[int, ...]], form: Form, weight: Tensor, kept: Tensor | None
) -> None:
    """Add the masks of a tensor: its own, or where it has none what is not zero, if it counts by default.

    Of bitmasks, some have all bits set, of norms and the like: those say nothing.
    """
    counts = counts_by_default(form.name, weight)
    said = kept is not None and (form.kind not in (BITMASK, BITMASK_24) or not bool(kept.all()))
    if not counts and not said:
        return
    kept = weight != 0 if kept is None else kept
    if is_expert_stack(form.name, weight.shape):
        layers = {f"{form.name}[{expert}]": part for expert, part in enumerate(kept)}
    else:
        layers = {form.name: kept}
    packed |= {name: bits.pack(part) for name, part in layers.items()}
    shapes |= {name: tuple(part.shape) for name, part in layers.items()}


def counts_by_default(name: str, weight: Tensor) -> bool:
    """Whether a tensor counts by its name, shape and dtype."""
    return weight.dtype in FORMATS and is_prunable_name(name, weight.shape, weight.dtype)


def found_masks(packed: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], where: str) -> Masks:
    """The masks, of which there must be some."""
    if not packed:
        raise LamplighterError(
            f"there are no masks in {where}, and no layers that could have them",
            "expected weights of linear layers or convolutions, with or without masks",
        )
    return Masks.from_packed(packed, shapes)


def _lightning_version(checkpoint: Checkpoint) -> str | None:
    """The version of Lightning that wrote a file of torch."""
    path = checkpoint.files.root / checkpoint.shards[0].file
    if path.suffix != ".ckpt":
        return None
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    version = content.get("pytorch-lightning_version") if isinstance(content, dict) else None
    return version if isinstance(version, str) else None
