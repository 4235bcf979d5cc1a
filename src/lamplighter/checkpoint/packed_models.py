"""A packed checkpoint into a model's own parameters, with the masks of what it prunes."""

import os
from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from lamplighter import bits
from lamplighter.checkpoint.dtypes import TORCH
from lamplighter.checkpoint.header import shown
from lamplighter.checkpoint.packed_codec import CHUNK, words_of
from lamplighter.checkpoint.packed_conversion import Watch, ignore
from lamplighter.checkpoint.packed_reading import Packed, Piece
from lamplighter.checkpoint.packed_sources import check_tensor, states
from lamplighter.checkpoint.threads import Workers, thread_count
from lamplighter.errors import LamplighterError
from lamplighter.masks import Masks
from lamplighter.naming import closest, listed
from lamplighter.targets import Layer, find_layers

Globs = str | Iterable[str] | None


def load_packed(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    strict: bool = True,
    include: Globs = None,
    exclude: Globs = None,
    threads: int | None = None,
    watch: Watch = ignore,
) -> Masks:
    """Fill a model's parameters and buffers in place from a packed file or folder; the masks of its prunable weights.

    Names, shapes, dtypes and bitmasks are checked before the first of them changes. The masks are of the layers that
    `ll.prune` would find, with what is not zero kept, so that training can go on: `masks.hold(optimizer)`, or a later
    round `ll.prune(model, ..., masks=masks)`. A weight that pruning kept although it was +0.0 counts as pruned.

    Args:
        model: a Module on any device, of the same dtypes as the file.
        path: a packed file, or a folder of them.
        strict: whether model and file must have the same names; otherwise what only one of them has stays as it is.
        include: as for `ll.prune`: globs on names of layers to give masks of, in place of the default choice.
        exclude: globs on names of layers to give no masks of.
        threads: how many to use; about as many as there are processors if None.
        watch: is told how many bytes of tensors are filled, by any thread.

    >>> import tempfile
    >>> from lamplighter import pack, prune
    >>> model, again = nn.Linear(100, 10), nn.Linear(100, 10)
    >>> masks = prune(model, 0.9)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = pack(model, f"{folder}/packed.safetensors")
    ...     loaded = load_packed(again, f"{folder}/packed.safetensors")
    >>> loaded == masks, torch.equal(again.weight, model.weight)
    (True, True)
    """
    packed, workers = Packed(path), thread_count(threads)
    packed.check_packed()
    targets = _matched(packed, states(model), path, strict=strict)
    layers = _layers(model, include, exclude)
    counted = {name: packed.count(name) for name in targets}
    at_once = {name: tensor for name, tensor in targets.items() if _is_plain_memory(tensor)}
    with torch.no_grad():
        work = partial(_fill, packed, {name: words_of(tensor.detach()) for name, tensor in at_once.items()}, watch)
        Workers(workers, work).run(piece for name in at_once for piece in packed.pieces(name, counted[name]))
        for name in targets.keys() - at_once.keys():  # through a buffer, one by one
            room = torch.empty(targets[name].shape, dtype=targets[name].dtype, device="cpu")
            fill = partial(_fill, packed, {name: words_of(room)}, watch)
            Workers(workers, fill).run(packed.pieces(name, counted[name]))
            targets[name].copy_(room)
    return _masks_of(layers)


def _matched(
    packed: Packed, own: Mapping[str, Tensor], path: str | os.PathLike[str], *, strict: bool
) -> dict[str, Tensor]:
    """The model's tensors by their names in the file; an error unless they fit."""
    there = packed.tensors
    given = {id(own[name]) for name in own if name in there}  # of tied tensors, one name is enough
    missing = [name for name in own if name not in there and id(own[name]) not in given]
    extra = [name for name in there if name not in own]
    if strict and extra:
        raise LamplighterError(f"{path} holds {listed(extra)}, which the model does not have", closest(extra[0], own))
    if strict and missing:
        raise LamplighterError(f"{path} does not hold {listed(missing)}", closest(missing[0], there))
    last = {id(own[name]): name for name in own if name in there}  # of names of one tensor the last, as torch does it
    found = {name: own[name] for name in last.values()}
    for name, tensor in found.items():
        check_tensor(name, tensor)
        dtype, shape = there[name]
        if tuple(tensor.shape) != shape or tensor.dtype != TORCH.get(dtype):
            raise LamplighterError(
                f"{shown(name)} is {dtype} of shape {list(shape)} in {path}, but {tensor.dtype} of shape "
                f"{list(tensor.shape)} in the model",
                "make the model as it was packed; model.to(dtype) changes dtypes",
            )
    return found


def _layers(model: nn.Module, include: Globs, exclude: Globs) -> list[Layer]:
    """The layers to give masks of: none if nothing is prunable and nothing in particular was asked for."""
    try:
        return find_layers(model, include, exclude)
    except LamplighterError:
        if include is None and exclude is None:
            return []
        raise


def _is_plain_memory(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def _fill(packed: Packed, rooms: Mapping[str, Tensor], watch: Watch, piece: Piece) -> None:
    room = rooms[piece.name][piece.start : piece.stop]
    packed.read(piece, room)
    watch(room.nbytes)


def _masks_of(layers: Iterable[Layer]) -> Masks:
    """Masks of what is not zero, which belong to these layers."""
    by_name = {layer.name: layer for layer in layers}
    shapes = {name: tuple(layer.weight.shape) for name, layer in by_name.items()}
    masks = Masks.from_packed({name: _not_zero(layer.weight) for name, layer in by_name.items()}, shapes)
    masks.bind(by_name)
    return masks


def _not_zero(weight: Tensor) -> Tensor:
    """Which entries are not zero, bit-packed: made in chunks, since a boolean takes eight times as much."""
    parts = [bits.pack(chunk != 0) for chunk in torch.split(words_of(weight.contiguous()), CHUNK)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device=weight.device)
