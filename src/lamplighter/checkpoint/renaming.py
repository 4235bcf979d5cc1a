"""Renaming in one step: exchange two paths, or move to a name that must be free."""

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2
# What a system or file system says that has no such step.
_LACKING = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM}


def exchange(one: Path, other: Path) -> bool:
    """Let two paths change places, in one step; False where that cannot be done."""
    return _renameat2(one, other, _EXCHANGE)


def move_new(source: Path, target: Path) -> bool:
    """Rename to a name that is free; False if it is not.

    Without a step that says so by itself it is looked up just before.
    """
    try:
        if _renameat2(source, target, _NOREPLACE):
            return True
    except FileExistsError:
        return False
    if os.path.lexists(target):
        return False
    source.rename(target)
    return True


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    """Linux's call of this name; False where there is none, or the file system has no such step."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in _LACKING:
        return False
    raise OSError(code, os.strerror(code), str(target))
