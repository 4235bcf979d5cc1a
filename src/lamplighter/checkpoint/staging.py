"""All or nothing: what is written lies under a temporary name beside its place, and is then renamed.

The temporary name is `.NAME.XXXXXXXX.lamp-part`. Whoever writes there holds a lock on it, which ends with the process
however that ends: what is found without a lock was left by a process that was killed, and is removed.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from lamplighter.checkpoint.renaming import exchange, move_new
from lamplighter.checkpoint.replacing import check_replaceable
from lamplighter.errors import LamplighterError

PART, OLD = ".lamp-part", ".lamp-old"


@contextmanager
def staged(
    dst: Path, *, folder: bool, force: bool, needed: int, names: Collection[str] = (), mode: int = 0o777
) -> Iterator[Path]:
    """A temporary path beside `dst` to write to, renamed to `dst` at the end; removed if anything goes wrong.

    With `force` what is at `dst` is exchanged for the new: on Linux by one step of the file system, so that a process
    killed at any moment leaves the old or the new. Where the system has no such step for folders, the old one is moved
    aside first; if the process is killed between the two steps, the next run with the same `dst` moves it back.

    Args:
        dst: where the result is to be.
        folder: whether it is a folder.
        force: whether what is there may be replaced: a file by a file, a checkpoint's folder by a folder.
        needed: how many bytes will be written; an error if the disk has less room.
        names: the files of the result, as far as they are known: a folder that has them may be replaced.
        mode: the permissions it gets, less those that the umask takes away; the owner may read and write it.
    """
    dst = Path(os.path.realpath(dst))
    remove_debris(dst)
    check_place(dst, folder=folder, force=force, names=names)
    check_room(dst, needed)
    with _refusals(dst):
        part, lock = _locked_part(dst, folder=folder, mode=mode)
    try:
        yield part
        with _refusals(dst):
            _commit(part, dst, folder=folder, force=force)
    except LamplighterError as error:  # the user knows the result by its own name
        raise LamplighterError(error.message.replace(str(part), str(dst)), error.hint) from error
    finally:
        # Still locked while it goes: nobody else begins to remove it, too. What an exchange put here is the old one.
        _remove(part)
        os.close(lock)


def check_place(dst: Path, *, folder: bool, force: bool, names: Collection[str] = ()) -> None:
    """An error if `dst` cannot be written: its folder is missing, or something is there that may not be replaced.

    `names` are the files of the result, by their paths within it.
    """
    if not dst.parent.is_dir():
        raise LamplighterError(f"there is no folder {dst.parent} to write {dst.name} in", "make the folder first")
    if not os.path.lexists(dst):
        return
    if not force:
        raise LamplighterError(f"{dst} exists", "choose another name, or overwrite it with --force (force=True)")
    if dst.is_dir() != folder or not (dst.is_dir() or dst.is_file()):
        kind, there = ("folder", "file") if folder else ("file", "folder")
        raise LamplighterError(f"the result is a {kind}, but {dst} is a {there}", "choose another name")
    if folder:
        with _refusals(dst):
            check_replaceable(dst, names)


def check_room(dst: Path, needed: int) -> None:
    """An error if the disk that `dst` is on has less room than is needed."""
    free = shutil.disk_usage(dst.parent).free
    if free < needed:
        raise LamplighterError(
            f"{dst} would take {needed:,} bytes, but {free:,} are free on its disk",
            "make room, or write to another disk",
        )


def remove_debris(dst: Path) -> None:
    """Remove what killed processes left beside `dst`, and put back what one had moved aside."""
    for path in _siblings(dst, OLD):
        twin = path.with_name(path.name.removesuffix(OLD) + PART)
        with _claimed(path) as claimed, _claimed(twin) as idle:
            if not idle and os.path.lexists(twin):
                continue  # someone is between the two steps just now
            if claimed and not os.path.lexists(dst):
                path.rename(dst)
            elif claimed:
                _remove(path)
    for path in _siblings(dst, PART):
        with _claimed(path) as claimed:
            if claimed:
                _remove(path)


def _siblings(dst: Path, ending: str) -> list[Path]:
    start, stop = f".{dst.name}.", ending
    with contextlib.suppress(OSError):
        names = [each.name for each in dst.parent.iterdir()]
        found = [name for name in names if name.startswith(start) and name.endswith(stop)]
        return [dst.parent / name for name in sorted(found) if len(name) == len(start) + 8 + len(stop)]
    return []


@contextmanager
def _claimed(path: Path) -> Iterator[bool]:
    """Whether nobody else writes there; nobody will as long as this is asked."""
    lock = -1
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        claimed = False
    else:
        claimed = True
    try:
        yield claimed
    finally:
        if lock >= 0:
            os.close(lock)


def _locked_part(dst: Path, *, folder: bool, mode: int) -> tuple[Path, int]:
    """A new temporary file or folder, with the descriptor that holds its lock."""
    while True:
        part = dst.parent / f".{dst.name}.{secrets.token_hex(4)}{PART}"
        if folder:
            part.mkdir(mode | 0o700)
            lock = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
        else:
            lock = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode & 0o666 | 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.lexists(part):  # else someone took it for debris before it was locked
                return part, lock
        except BlockingIOError:
            pass
        except OSError:  # a file system without locks: what is left there nobody takes for debris
            return part, lock
        os.close(lock)


def _commit(part: Path, dst: Path, *, folder: bool, force: bool) -> None:
    if folder:
        _flush_folders(part)
    if force and os.path.lexists(dst):
        names = {path.relative_to(part).as_posix() for path in part.rglob("*")} if folder else ()
        check_place(dst, folder=folder, force=force, names=names)
        if not folder:
            part.replace(dst)
        elif not exchange(part, dst):
            _replace_in_steps(part, dst)
    elif not move_new(part, dst):
        raise LamplighterError(f"{dst} has appeared meanwhile", "choose another name, or overwrite it with --force")
    _flush(dst.parent)


def _replace_in_steps(part: Path, dst: Path) -> None:
    """Without an exchange: the old one aside, the new one into its place, the old one away."""
    aside = part.with_name(part.name.removesuffix(PART) + OLD)
    try:
        dst.rename(aside)
        part.rename(dst)
    except BaseException:
        if os.path.lexists(aside) and not os.path.lexists(dst):
            aside.rename(dst)
        raise
    finally:
        if os.path.lexists(dst):
            _remove(aside)


def _flush_folders(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            _flush(path)


def _flush(folder: Path) -> None:
    """Have the system write a folder's names to the disk; where it cannot, it does so when it likes."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a file or folder, as far as that can be done."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


@contextmanager
def _refusals(dst: Path) -> Iterator[None]:
    """Say what the operating system refuses as an error about `dst`."""
    try:
        yield
    except OSError as error:
        raise LamplighterError(
            f"{dst} cannot be written: {error.strerror or error}", "check that you may write to its folder"
        ) from error
