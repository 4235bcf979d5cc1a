"""Which files make up a checkpoint: its shards, its index, its config, and what is carried over beside them.

A checkpoint is a `.safetensors` file, a `.pt`, `.pth` or `.bin` file of torch, or a folder of either, with an index
(`*.safetensors.index.json`, `*.bin.index.json`) where there are several.
"""

import itertools
import json
import re
import stat
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from lamplighter.checkpoint.links import carried, inside, regular
from lamplighter.errors import LamplighterError
from lamplighter.naming import listed

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
LARGEST_JSON = 100_000_000
_KINDS = "a .safetensors file, a file of torch (.pt, .pth, .bin, .ckpt), or a folder of either"
# What holds the same weights once more: carried over, it would hold them unpruned.
_OTHER_WEIGHTS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model*.bin.index.json",
    "consolidated*.pt*",
    "tf_model*.h5",
    "flax_model*.msgpack",
    "rust_model.ot",
    "*.gguf",
    "*.onnx",
    "*.onnx_data",
)


# Weights that are no copy of the shards': a module's, in a folder of its own, or those of an adapter.
_MODULES = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.bin.index.json")
_ADAPTERS = ("adapter_*.safetensors", "adapter_*.bin")
_NUMBERED = re.compile(r"(.+)-(\d+)-of-(\d+)(\.[a-z]+)")


@dataclass(frozen=True)
class Files:
    """The files of a checkpoint, by their names within `root`.

    Args:
        root: the folder that they are in.
        shards: the files that hold tensors, in order.
        folder: whether the folder is the checkpoint, or just the file's place.
        index: the file that says which shard holds which tensor.
        places: what it says.
        others: files to carry over unchanged.
        left_out: files and folders that are not carried over.
        config: what `config.json` holds.
        unpruned: those of the others that hold weights.
    """

    root: Path
    shards: list[str]
    folder: bool = False
    index: str | None = None
    places: dict[str, str] = field(default_factory=dict)
    others: list[Path] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    unpruned: list[Path] = field(default_factory=list)


def find_files(path: Path) -> Files:
    """The files that make up the checkpoint at `path`, a file or a folder."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _in_folder(path)
    except FileNotFoundError as error:
        raise LamplighterError(f"there is no file or folder {path}", "check the path") from error
    except OSError as error:
        raise LamplighterError(f"{path} cannot be read: {error.strerror}", "check that you may read it") from error
    if not stat.S_ISREG(mode):
        raise LamplighterError(f"{path} is neither a file nor a folder", f"a checkpoint is {_KINDS}")
    if path.suffix != ".safetensors" and path.suffix not in TORCH_SUFFIXES:
        raise LamplighterError(f"{path} is no checkpoint by its name", f"a checkpoint is {_KINDS}")
    return Files(path.parent, [path.name])


def _in_folder(root: Path) -> Files:
    here = sorted(each.name for each in root.iterdir())
    index, places = None, dict[str, str]()
    for kind in ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt"):
        index = _index(root, [name for name in here if fnmatch(name, f"{kind}.index.json")])
        if index is not None:
            places = _places(root, index)
            shards = sorted(set(places.values()))
            break
        shards = _loose(root, [name for name in here if fnmatch(name, kind)], kind)
        if shards:
            break
    if not shards:
        raise LamplighterError(f"there is no checkpoint in the folder {root}", f"a checkpoint is {_KINDS}")
    for name in shards:
        inside(root, name)
        if not regular(root, root / name):
            listing = f", which {index} names" if index else ""
            raise LamplighterError(f"{root / name}{listing}, is not there", "fetch the checkpoint again")
    others, left_out = carried(root, {*shards, *([index] if index else [])}, _is_copy)
    unpruned = [path for path in others if _is_module(path) and path.suffix != ".json"]
    return Files(root, shards, True, index, places, others, left_out, _config(root), unpruned)


def _is_copy(path: Path) -> bool:
    """Whether a file beside the shards holds the same weights once more, by its name."""
    return not _is_module(path) and any(fnmatch(path.name, glob) for glob in _OTHER_WEIGHTS)


def _is_module(path: Path) -> bool:
    globs = _ADAPTERS if path.parent == Path() else (*_MODULES, *_ADAPTERS)
    return any(fnmatch(path.name, glob) for glob in globs)


def _index(root: Path, found: list[str]) -> str | None:
    plain = [name for name in found if name.startswith(("model.", "pytorch_model."))]
    chosen = found if len(found) < 2 else plain  # beside the usual one there may be that of a variant, as `model.fp16.`
    plainest = [name for name in chosen if name.count(".") == 3] or chosen
    if len(found) > 1 and len(plainest) != 1:
        raise LamplighterError(f"{root} has several indexes: {listed(found)}", "keep one checkpoint to a folder")
    return plainest[0] if found else None


def _loose(root: Path, names: list[str], kind: str) -> list[str]:
    """The shards of a folder without an index: the one with the usual name, or else all of them."""
    usual = [name for name in names if name in ("model.safetensors", "pytorch_model.bin")]
    wanted = [name for name in names if not fnmatch(name, "adapter_model.*") and name not in _NO_WEIGHTS]
    if not usual:
        _check_complete(root, wanted)
    return usual or (wanted if kind != "*.bin" or len(wanted) == 1 else [])


def _check_complete(root: Path, names: list[str]) -> None:
    """An error where names such as `model-00002-of-00004.safetensors` say that there are more than these."""
    found: dict[tuple[str, str, str], set[int]] = {}
    for name in names:
        if numbered := _NUMBERED.fullmatch(name):
            stem, number, count, suffix = numbered.groups()
            found.setdefault((stem, count, suffix), set()).add(int(number))
    for (stem, count, suffix), numbers in found.items():
        first = 0 if 0 in numbers else 1
        if (missing := int(count) - len(numbers)) > 0:
            absent = itertools.islice((n for n in itertools.count(first) if n not in numbers), min(missing, 3))
            named = ", ".join(f"{stem}-{number:0{len(count)}}-of-{count}{suffix}" for number in absent)
            more = f" and {missing - 3:,} more" if missing > 3 else ""
            raise LamplighterError(
                f"{missing:,} of {int(count):,} files of {root} are missing: {named}{more}",
                "fetch the checkpoint again",
            )


_NO_WEIGHTS = frozenset({"training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin", "scheduler.bin"})


def _places(root: Path, index: str) -> dict[str, str]:
    """Which shard holds which tensor, as the index says; names that lead out of the folder are an error."""
    regular(root, root / index)
    found = read_json(root / index)
    places = found.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(each, str) for each in places.values()) or not places:
        raise LamplighterError(
            f"{root / index} names no shards: expected weight_map, an object of tensors and files",
            "fetch the checkpoint again",
        )
    suffix = Path(index.removesuffix(".index.json")).suffix
    for name in set(places.values()):
        inside(root, name)
        if not name.endswith(suffix):
            raise LamplighterError(
                f"{root / index} names the file {name[:200]!r}, expected {suffix} files", "fetch the checkpoint again"
            )
    return places


def _config(root: Path) -> dict[str, Any]:
    path = root / "config.json"
    return read_json(path) if regular(root, path) else {}


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of moderate size."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise LamplighterError(f"{path} has {path.stat().st_size:,} bytes", "it should be a small JSON file")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LamplighterError(f"{path} cannot be read: {error.strerror}", "check that you may read it") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, LamplighterError):
            raise
        raise LamplighterError(f"{path} is no JSON: {str(error)[:200]}", "fetch or write it again") from error
    if not isinstance(found, dict):
        raise LamplighterError(f"{path} holds a {type(found).__name__}, expected an object", "fetch or write it again")
    return found
