"""Masks in a safetensors file: one tensor of packed bits for each layer, names and shapes in the metadata.

Entry 8k + i of a layer, in logical row-major order, is bit i of byte k of the tensor of the layer's name; unused bits
of the last byte are 0. The metadata has one entry, `lamplighter-masks`: a JSON object with the `version`, 1, and
`shapes`, an object of layer names and shapes. One, since safetensors writes several in no fixed order, and the same
masks should give the same bytes.
"""

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lamplighter.errors import LamplighterError

KEY = "lamplighter-masks"
VERSION = 1


def write_masks(path: Path, packed: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> None:
    """Write packed masks to a file."""
    with replacing(path) as temporary:
        tensors = {name: bits.cpu().contiguous() for name, bits in packed.items()}
        save_file(tensors, temporary, metadata=metadata_of(shapes))


def metadata_of(shapes: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """What stands in the file beside the bits."""
    return {KEY: json.dumps({"version": VERSION, "shapes": {n: list(s) for n, s in shapes.items()}})}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file to write to, renamed when it is complete, so that the file is never half-written."""
    handle, temporary = -1, ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        yield Path(temporary)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except (OSError, SafetensorError) as error:
        raise LamplighterError(
            f"the masks could not be written to {path}: {error}", "is the folder there, writable, with room?"
        ) from error
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def read_masks(path: Path) -> tuple[dict[str, Tensor], dict[str, tuple[int, ...]]]:
    """Packed masks and their shapes, checked."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = (file.metadata() or {}).get(KEY)
            if metadata is None:
                raise LamplighterError(f"{path} is not a file of masks", "masks are written by Masks.save")
            packed = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except FileNotFoundError as error:
        raise LamplighterError(f"there is no file {path}", "check the path") from error
    except (OSError, SafetensorError) as error:
        raise LamplighterError(
            f"{path} cannot be read as masks: {error}", "write it again: masks.save(path)"
        ) from error
    shapes = _shapes(path, metadata)
    if shapes.keys() != packed.keys():
        raise LamplighterError(f"{path} is damaged: its shapes are of other layers than its masks", "write it again")
    for name, shape in shapes.items():
        _check(path, name, packed[name], shape)
    return packed, shapes


def _shapes(path: Path, metadata: str) -> dict[str, tuple[int, ...]]:
    try:
        described = json.loads(metadata)
        version, listed = described["version"], described["shapes"]
        shapes = {name: tuple(shape) for name, shape in listed.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LamplighterError(f"{path} is damaged: its shapes cannot be read", "write it again") from error
    if version != VERSION:
        raise LamplighterError(f"{path} has version {version!r}, expected {VERSION}", "update lamplighter")
    if not all(isinstance(d, int) and d >= 0 for shape in shapes.values() for d in shape):
        raise LamplighterError(f"{path} is damaged: its shapes are not whole numbers", "write it again")
    return shapes


def _check(path: Path, name: str, packed: Tensor, shape: Sequence[int]) -> None:
    size = math.prod(shape)
    fits = packed.dtype == torch.uint8 and packed.dim() == 1 and packed.numel() == (size + 7) // 8
    if not fits or (size % 8 and int(packed[-1]) >> (size % 8)):
        raise LamplighterError(
            f"{path} is damaged: the mask of {name} does not fit its shape {tuple(shape)}", "write it again"
        )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
