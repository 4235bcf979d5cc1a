"""The files of a conversion: those of tensors, the index, and what is carried over; all of them or none."""

import json
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lamplighter.checkpoint.files import Files, read_json
from lamplighter.checkpoint.output import content_of, safetensors_name, write_file
from lamplighter.checkpoint.packed_format import KEY, Described
from lamplighter.checkpoint.staging import check_place
from lamplighter.checkpoint.writing import ShardWriter, nbytes, size_of, staged
from lamplighter.errors import LamplighterError

SUFFIX = ".safetensors"
WAITING = 8  # so many files at most are complete, but still open until the disk has them


@dataclass(frozen=True)
class NewFile:
    """A file of tensors that is to be written: its name in the folder, its tensors in order, its metadata."""

    name: str
    tensors: Mapping[str, Described]
    metadata: Mapping[str, str]

    @property
    def entries(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """The tensors as a writer takes them."""
        return [(name, dtype, shape) for name, (dtype, shape) in self.tensors.items()]

    @property
    def nbytes(self) -> int:
        """How large it will be."""
        return size_of(self.entries, self.metadata)


def check_target(dst: Path, files: Files | None, *, force: bool) -> None:
    """An error, before any work, if the result cannot stand there: in the place of what it is made from, above all."""
    target, folder = Path(os.path.realpath(dst)), files is not None and files.folder
    if not folder and dst.suffix != SUFFIX:
        raise LamplighterError(f"{dst} would be a safetensors file", f"let its name end in {SUFFIX}")
    if files is not None:
        _check_apart(dst, target, files)
    check_place(target, folder=folder, force=force)


def _check_apart(dst: Path, target: Path, files: Files) -> None:
    source = Path(os.path.realpath(files.root))
    places = [source] if files.folder else [source / name for name in files.shards]
    if files.folder and (source.is_relative_to(target) or target.is_relative_to(source)):
        raise LamplighterError(f"one of {dst} and {files.root} lies in the other", "write to a folder beside it")
    if any(target == Path(os.path.realpath(place)) or _same(target, place) for place in places):
        raise LamplighterError(f"{dst} is what is read", "write to another place: nothing is done in place")
    names = [safetensors_name(file) for file in files.shards]
    if len(set(names)) < len(names):
        raise LamplighterError(
            f"files of {files.root} would get the same name in {dst}", "keep one checkpoint to a folder"
        )


def _same(target: Path, place: Path) -> bool:
    """Whether both are one file, as they are through a hard link."""
    return target.exists() and place.exists() and target.samefile(place)


def left_out(files: Files) -> tuple[str, ...]:
    """What is in a checkpoint's folder and is not carried over."""
    return tuple(str(path) for path in files.left_out) if files.folder else ()


def write_files(
    dst: Path,
    files: Files | None,
    new: Sequence[NewFile],
    fill: Callable[[str, ShardWriter], None],
    *,
    index: str | None,
    force: bool,
) -> None:
    """Write a checkpoint's files beside their place and move them there at the end.

    Args:
        dst: the file, or the folder if `files` are of one.
        files: what the checkpoint is made from.
        new: the files of tensors.
        fill: writes all bytes of one of them, given its name.
        index: the text of the folder's index, if it has one.
        force: replace what is there.
    """
    folder = files is not None and files.folder
    with staged(dst, folder=folder, force=force, needed=_needed(new, files, index)) as stage:
        # Writing to the disk what is complete goes on while the next file is made.
        with ThreadPoolExecutor(1) as flushing:
            flushed: deque[Future[None]] = deque()
            for each in new:
                if len(flushed) == WAITING:
                    flushed.popleft().result()
                path = stage / each.name if folder else stage
                path.parent.mkdir(parents=True, exist_ok=True)
                flushed.append(flushing.submit(_filled(path, each, fill).close))
            for done in flushed:
                done.result()
        if files is not None and files.folder:
            _carry_over(files, stage)
            if index is not None:
                write_file(stage / _index_name(files), [index.encode()])


def _filled(path: Path, new: NewFile, fill: Callable[[str, ShardWriter], None]) -> ShardWriter:
    """A file with all its bytes, not closed yet."""
    writer = ShardWriter(path, new.entries, new.metadata)
    try:
        fill(new.name, writer)
    except BaseException:
        writer.abandon()
        raise
    return writer


def packed_index(new: Sequence[NewFile], original: str) -> str:
    """The index of packed files: where their own tensors are, and, word for word, the index of the original."""
    return _index_text(new, {KEY: original})


def original_index(files: Files, layouts: Mapping[str, Mapping[str, Described]]) -> str | None:
    """The text of the index of the original, where its files have one, or take one: where there are several.

    Args:
        files: those of the original.
        layouts: the tensors of each of them.
    """
    if files.index is None:
        return None
    if not files.index.endswith(f"{SUFFIX}.index.json"):
        return _index_text([NewFile(safetensors_name(file), tensors, {}) for file, tensors in layouts.items()], {})
    return (files.root / files.index).read_bytes().decode("utf-8")


def restored_index(files: Files, layouts: Mapping[str, Mapping[str, Described]]) -> str | None:
    """The text of the original's index, from that of the packed files; an error if it says otherwise than they do."""
    if files.index is None:
        return None
    path = files.root / files.index
    metadata = read_json(path).get("metadata")
    text = metadata.get(KEY) if isinstance(metadata, dict) else None
    places = {name: file for file, tensors in layouts.items() for name in tensors}
    try:
        found = json.loads(text)["weight_map"] if isinstance(text, str) and text.encode() else None
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(text, str) or not isinstance(found, dict) or not found.items() <= places.items():
        raise LamplighterError(f"{path} is damaged: it does not hold the original's index", "pack the original again")
    return text


def _index_text(new: Sequence[NewFile], about: Mapping[str, str]) -> str:
    places = {name: file.name for file in new for name in file.tensors}
    total = sum(nbytes(dtype, shape) for file in new for dtype, shape in file.tensors.values())
    found = {"metadata": {"total_size": total, **about}, "weight_map": dict(sorted(places.items()))}
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _index_name(files: Files) -> str:
    ending = ".index.json"
    return safetensors_name((files.index or f"model{SUFFIX}{ending}").removesuffix(ending)) + ending


def _needed(new: Sequence[NewFile], files: Files | None, index: str | None) -> int:
    """How many bytes will be written."""
    carried = files.others if files is not None and files.folder else []
    others = sum((files.root / other).stat().st_size for other in carried) if files is not None else 0
    return sum(file.nbytes for file in new) + others + len((index or "").encode())


def _carry_over(files: Files, stage: Path) -> None:
    for other in files.others:
        target = stage / other
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, content_of(files.root / other))
