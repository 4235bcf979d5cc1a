"""An open file that is read at any place, and what tells whether it is still the same."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from lamplighter.errors import LamplighterError


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes when a file does."""

    device: int
    inode: int
    size: int
    modified: int


def stamp_of(path: Path) -> Stamp:
    """The stamp of a file; an error if it cannot be had."""
    try:
        return _stamp(path.stat())
    except OSError as error:
        raise _unreadable(path, error) from error


class Opened:
    """A file, open for reading until it is forgotten."""

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self._descriptor)
        except OSError as error:
            raise _unreadable(path, error) from error
        if not stat.S_ISREG(status.st_mode):
            raise LamplighterError(f"{path} is no file", "put a file in its place")
        self.stamp = _stamp(status)

    def read_into(self, room: memoryview, offset: int) -> None:
        """Fill `room` with the bytes from `offset` on."""
        done = 0
        while done < len(room):
            try:
                count = os.preadv(self._descriptor, [room[done:]], offset + done)
            except OSError as error:
                raise _unreadable(self.path, error) from error
            if count == 0:
                raise LamplighterError(f"{self.path} became shorter while it was read", "fetch or write it again")
            done += count

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _unreadable(path: Path, error: OSError) -> LamplighterError:
    return LamplighterError(f"{path} cannot be read: {error.strerror}", "check the path, and that you may read it")
