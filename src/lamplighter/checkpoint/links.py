"""Names and links in a checkpoint's folder: none leads out of it.

One exception: the Hugging Face cache keeps a model's files in `blobs/` and links to them from `snapshots/REVISION/`.
Links from such a snapshot into the blobs beside it are followed, for reading; they are what users of the hub have.
"""

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath

from lamplighter.errors import LamplighterError

_UNCARRIED_FOLDERS = frozenset({".git", ".cache"})


def inside(root: Path, name: str) -> None:
    """An error for a name of a file that is not one inside the folder."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise LamplighterError(f"{root} names the file {name[:200]!r}, which is no text", "rename it") from None
    path = PurePosixPath(name)
    odd = not name or "\\" in name or "\0" in name or path.is_absolute() or ".." in path.parts
    if odd or path.as_posix() != name or name == "." or path.drive:
        raise LamplighterError(
            f"{root} names the file {name[:200]!r}, which is not inside it",
            "files of a checkpoint are named by their paths within its folder",
        )


def regular(root: Path, path: Path) -> bool:
    """Whether there is a file; an error where links on the way to it lead out of the folder."""
    try:
        base, target = Path(os.path.realpath(root)), Path(os.path.realpath(path, strict=True))
    except FileNotFoundError:
        if path.is_symlink():
            raise LamplighterError(f"{path} is a link to nothing", "fetch the checkpoint again") from None
        return False
    except OSError as error:
        raise LamplighterError(f"{path} cannot be read: {error.strerror}", "check the links on the way") from error
    if not target.is_relative_to(base) and target.parent != _blobs(base):
        raise LamplighterError(
            f"{path} is a link that leads out of the folder, to {target}", "put the file itself in its place"
        )
    return target.is_file()


def _blobs(base: Path) -> Path | None:
    """Where the Hugging Face cache keeps the files of a snapshot."""
    return base.parent.parent / "blobs" if base.parent.name == "snapshots" else None


def carried(root: Path, taken: Collection[str], unwanted: Callable[[Path], bool]) -> tuple[list[Path], list[Path]]:
    """The files of a folder that are carried over, and those that are left out, by their paths within it.

    Args:
        root: the folder.
        taken: files that are dealt with elsewhere.
        unwanted: whether to leave out a file, by its path within the folder.
    """
    kept: list[Path] = []
    left: list[Path] = []
    for path, is_file in _walk(root, Path()):
        if path.as_posix() not in taken:
            (kept if is_file and not unwanted(path) else left).append(path)
    return kept, left


def _walk(root: Path, within: Path) -> Iterator[tuple[Path, bool]]:
    """What is in a folder, and whether it is a file: folders that are not looked into, and oddities, are not."""
    for path in sorted((root / within).iterdir()):
        part = within / path.name
        if path.is_dir() and not path.is_symlink():
            if path.name in _UNCARRIED_FOLDERS:
                yield part, False
            else:
                yield from _walk(root, part)
        else:
            yield part, regular(root, path)
