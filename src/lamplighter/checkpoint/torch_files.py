"""Files of torch: `.pt`, `.pth` and `.bin`, read by torch's restricted loader and mapped into memory."""

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lamplighter.checkpoint.dtypes import CODES
from lamplighter.checkpoint.header import METADATA, shown
from lamplighter.errors import LamplighterError
from lamplighter.naming import listed

_EXPANDED, _SMALL = 8, 1 << 24  # an expanded tensor is written out: that much larger, or of so many bytes, it may be
# Under these names training scripts keep the weights beside an optimizer's state.
_NESTS = ("state_dict", "model_state_dict", "model")


def load_torch(path: Path) -> dict[str, Tensor]:
    """The tensors of a file of torch by name; nothing in it is executed."""
    return read_torch(path)[0]


def read_torch(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of a file of torch by name, and the names of what else it holds; nothing in it is executed."""
    content = _load(path)
    found, aside = content, list[str]()
    for nest in _NESTS:
        if isinstance(content, Mapping) and isinstance(content.get(nest), Mapping):
            found = content[nest]
            aside = [str(name) for name in content if name != nest]
            break
    if not isinstance(found, Mapping):
        raise LamplighterError(
            f"{path} holds a {type(found).__name__}, expected a mapping of names to tensors",
            "write it anew: torch.save(model.state_dict(), path)",
        )
    _check_some(found, path)
    tensors = {name: _checked(name, value, path) for name, value in found.items() if not _aside(name, value)}
    return tensors, aside + [str(name) for name, value in found.items() if _aside(name, value)]


def _check_some(found: Mapping[Any, Any], path: Path) -> None:
    """An error for a file that holds much, but no tensor where they are looked for."""
    if not found or any(isinstance(value, Tensor) for value in found.values()):
        return
    nests = [name for name, value in found.items() if isinstance(value, Mapping)]
    if nests:
        raise LamplighterError(
            f"{path} holds a mapping {shown(str(nests[0]))}, not tensors",
            f"write the weights to a file of their own: torch.save(torch.load(path)[{shown(str(nests[0]))}], new_path)",
        )
    raise LamplighterError(
        f"{path} holds no tensors, but {listed([shown(str(name)) for name in found])}",
        "write it anew: torch.save(model.state_dict(), path)",
    )


def _load(path: Path) -> Any:  # noqa: ANN401
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):
                raise
            return torch.load(path, map_location="cpu", weights_only=True)  # written before torch 1.6: read as a whole
    except OSError as error:
        raise LamplighterError(
            f"{path} cannot be read: {error.strerror or error}", "check the path, and that you may read it"
        ) from error
    except Exception as error:  # what a damaged pickle can raise has no end
        why = str(error).partition("\n")[0][:200]
        raise LamplighterError(
            f"{path} cannot be read as a file of torch: {why}",
            "it is damaged, or holds more than tensors; write it anew as safetensors",
        ) from error


def _aside(name: object, value: object) -> bool:
    """Whether this is something else that a state dict may hold, such as `_extra_state` or a count."""
    return not isinstance(value, Tensor) and not (isinstance(name, str) and name.endswith(("weight", "bias")))


def _checked(name: object, value: object, path: Path) -> Tensor:
    if not isinstance(name, str) or not isinstance(value, Tensor):
        raise LamplighterError(
            f"{path}: entry {str(name)[:100]!r} holds a {type(value).__name__}, expected a name and a tensor",
            "write it anew: torch.save(model.state_dict(), path)",
        )
    check_name(name, path)
    if value.is_meta:
        raise LamplighterError(
            f"{path}: tensor {shown(name)} is on the meta device: it has a shape, but no values",
            "load the weights before saving them",
        )
    if value.layout != torch.strided or value.is_quantized or value.dtype not in CODES:
        kind = "a quantised tensor" if value.is_quantized else f"{value.dtype} with layout {value.layout}"
        raise LamplighterError(f"{path}: tensor {shown(name)} is {kind}", "make it a dense tensor of a usual dtype")
    stored = value.untyped_storage().nbytes()
    if value.nbytes > max(_EXPANDED * stored, _SMALL):
        raise LamplighterError(
            f"{path}: tensor {shown(name)} of {value.nbytes:,} bytes shows the same {stored:,} bytes over and over",
            "if that is meant, save it as a tensor of its own: tensor.clone()",
        )
    return value.detach()


def check_name(name: str, path: Path) -> None:
    """An error for a name that no safetensors file can hold."""
    if name == METADATA:
        raise LamplighterError(
            f"{path}: a tensor is named {name!r}, which in safetensors files means the metadata", "give it another name"
        )
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise LamplighterError(f"{path}: a tensor is named {shown(name)}, which is no text", "rename it") from None


def in_order(tensor: Tensor) -> Tensor:
    """The bytes of a tensor in row-major order: a copy, if that is not how they lie in memory."""
    if not tensor.is_contiguous() or tensor.numel() == 1:  # of one entry, any stride counts as contiguous
        tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)
    return tensor.reshape(-1).view(torch.uint8)


def offsets_in_file(tensors: Mapping[str, Tensor], path: Path) -> dict[str, int]:
    """Where in the file the bytes of each tensor stand, as far as it is mapped from there and contiguous.

    Bytes read from the file take memory only as long as they are looked at; pages of a mapping count as the process's
    own until memory is short.
    """
    regions = [] if _other_byte_order(path) else _mapped(path)
    found = {}
    for name, tensor in tensors.items():
        start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        for low, high, offset in regions if tensor.is_contiguous() else []:
            if low <= start and stop <= high:
                found[name] = start - low + offset
                break
    return found


def _mapped(path: Path) -> list[tuple[int, int, int]]:
    """The stretches of memory that are mapped from a file, with their offsets in it; only Linux tells."""
    inode = str(path.stat().st_ino)
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    fields = [line.split(maxsplit=5) for line in lines]
    regions = []
    for addresses, _, offset, _, number, *_ in fields:
        if number == inode:
            low, _, high = addresses.partition("-")
            regions.append((int(low, 16), int(high, 16), int(offset, 16)))
    return regions


def _other_byte_order(path: Path) -> bool:
    """Whether the loader turned the bytes of each number around: then those in the file are not what was meant."""
    if not zipfile.is_zipfile(path):
        return True
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith("/byteorder")]
        return any(archive.read(name).decode() != sys.byteorder for name in names)
