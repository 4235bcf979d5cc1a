"""Which folders `--force` may replace: those that hold a checkpoint, and nothing that none would have beside it."""

import os
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path

from lamplighter.checkpoint.header import read_header
from lamplighter.errors import LamplighterError
from lamplighter.naming import listed

# The metadata that we write (`output.RECORD`, `packed_format.KEY`) begin with our name.
_OURS = "lamplighter"
_CHECKPOINTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "*.ckpt")
_COMPANIONS = (
    *_CHECKPOINTS,
    *("*.json", "*.model", "*.txt", "*.tiktoken", "*.jinja", "*.h5", "*.msgpack", "*.ot", "*.gguf", "*.onnx"),
    *("*.onnx_data", "README.md", "USE_POLICY.md", "LICENSE*", "NOTICE*", ".gitattributes"),
)


def check_replaceable(dst: Path, names: Collection[str]) -> None:
    """An error if a folder holds no checkpoint, or something that is not known to belong to one.

    Its entries have to be files that checkpoints come with, or files that the result has, too. Beside weights that we
    wrote there may be more, since we carry everything over; hidden entries, such as `.git`, are nobody's to replace.

    Args:
        dst: the folder.
        names: the files of the result, by their paths within it.
    """
    entries = sorted(dst.iterdir())
    if not entries:
        return
    if not any(fnmatch(path.name, glob) for path in entries for glob in _CHECKPOINTS):
        raise LamplighterError(f"{dst} is a folder without a checkpoint, and is not replaced", "choose another name")
    odd = [path for path in entries if not _known(path, dst, names)]
    if odd and _is_ours(entries):
        odd = [path for path in odd if path.name.startswith(".")] or [
            path for each in odd for path in _hidden(each) if path.relative_to(dst).as_posix() not in names
        ]
    if odd:
        found = listed([path.relative_to(dst).as_posix() + "/" * path.is_dir() for path in odd])
        raise LamplighterError(
            f"{dst} is not replaced: it holds more than a checkpoint ({found})",
            "choose another name, or move these elsewhere",
        )


def _known(path: Path, root: Path, names: Collection[str]) -> bool:
    """Whether an entry of the folder belongs to a checkpoint, by its name or since the result has it, too."""
    if path.is_symlink() or not path.is_dir():
        return path.name in names or any(fnmatch(path.name, glob) for glob in _COMPANIONS)
    if not any(name.startswith(f"{path.name}/") for name in names):
        return False
    files = [Path(folder, file) for folder, _, found in os.walk(path) for file in found]
    return all(file.relative_to(root).as_posix() in names for file in files)


def _hidden(path: Path) -> list[Path]:
    """What is hidden in a folder, at any depth."""
    found = [Path(folder, name) for folder, folders, files in os.walk(path) for name in (*folders, *files)]
    return [each for each in found if each.name.startswith(".")]


def _is_ours(entries: Collection[Path]) -> bool:
    """Whether we wrote a folder's weights, and as a folder: one file of ours may lie anywhere."""
    weights = [path for path in entries if path.suffix == ".safetensors" and not path.name.startswith("adapter_")]
    if not any(path.name == "config.json" or path.name.endswith(".safetensors.index.json") for path in entries):
        return False
    try:
        return bool(weights) and all(any(key.startswith(_OURS) for key in read_header(w).metadata) for w in weights)
    except LamplighterError:
        return False
