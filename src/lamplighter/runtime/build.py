"""The kernels as a shared library: compiled by the system's C compiler when first needed, and kept in a cache."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from lamplighter.errors import LamplighterError
from lamplighter.runtime.operation import Operation

SOURCES = ("kernels.c", "kernels.h", "kernels_lanes.h")
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-fno-trapping-math")
PREBUILT = "kernels.so"
ISAS = {"plain": 0, "avx2": 1, "avx512": 2}


class Kernels:
    """The compiled kernels.

    Args:
        path: the shared library.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = library = ctypes.CDLL(str(path))
        library.lamp_op_size.restype = ctypes.c_int64
        library.lamp_team_new.restype = ctypes.c_void_p
        library.lamp_team_free.argtypes = [ctypes.c_void_p]
        library.lamp_run.argtypes = [
            *(ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(Operation), ctypes.c_int32),
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32),
        ]
        if library.lamp_op_size() != ctypes.sizeof(Operation):
            raise LamplighterError(f"{path} belongs to another version", "remove it, and it is built again")
        self.best: int = library.lamp_best()

    def isa(self, name: str | None = None) -> int:
        """The instruction set of that name, or the best this processor has."""
        if name is None:
            return self.best
        if name not in ISAS or ISAS[name] > self.best:
            have = ", ".join(each for each, isa in ISAS.items() if isa <= self.best)
            raise LamplighterError(f"this processor has no instruction set {name!r}", f"it has {have}")
        return ISAS[name]

    def has(self, isa: int, lanes: int) -> bool:
        """Whether there are kernels for vectors of that many floats."""
        return bool(self._library.lamp_has(isa, lanes))

    def team(self, threads: int) -> "Team":
        """Threads that work together, the calling one included."""
        return Team(self._library, threads)


class Team:
    """Threads that work together; they end when this is no longer used."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self._library = library
        self._process = os.getpid()
        self.threads = threads
        self._team: int | None = library.lamp_team_new(threads)
        if not self._team:
            raise LamplighterError(f"the system gives no {threads} threads", "ask for fewer")

    def run(
        self, isa: int, operations: "ctypes.Array[Operation]", ends: tuple[int, int], images: int, batch: int
    ) -> None:
        """Carry out operations.

        Args:
            isa: the instruction set.
            operations: in order.
            ends: the addresses of the input and of the output.
            images: how many the input has.
            batch: how many of them lie side by side.
        """
        if self._process != os.getpid():  # a forked process has none of the threads
            self._process = os.getpid()
            self._team = self._library.lamp_team_new(self.threads)
        failed = self._library.lamp_run(self._team, isa, operations, len(operations), *ends, images, batch)
        if failed:
            raise MemoryError

    def __del__(self) -> None:
        if getattr(self, "_team", None) and self._process == os.getpid():
            self._library.lamp_team_free(self._team)


@functools.cache
def kernels() -> Kernels:
    """The kernels for this machine, compiled if they are not there yet."""
    prebuilt = Path(__file__).with_name(PREBUILT)
    if prebuilt.exists() and not _extra():
        return Kernels(prebuilt)
    path = cache_folder() / f"kernels-{_fingerprint()}.so"
    if not path.exists():
        compile_to(path)
    return Kernels(path)


def available() -> str | None:
    """Why the kernels cannot be had here, or None if they can."""
    try:
        kernels()
    except (LamplighterError, OSError) as error:
        return getattr(error, "message", str(error))
    return None


def cache_folder() -> Path:
    """Where compiled kernels are kept: LAMPLIGHTER_CACHE, or the user's cache folder."""
    given = os.environ.get("LAMPLIGHTER_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lamplighter"


def compiler() -> str | None:
    """The C compiler: what CC names, else cc, gcc or clang."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((found for name in names if (found := shutil.which(name)) is not None), None)


def compile_to(path: Path, *more: str) -> None:
    """Compile the kernels into the shared library `path`, complete or not at all.

    Args:
        path: the library.
        more: further options of the compiler.
    """
    command = compiler()
    if command is None:
        raise LamplighterError(
            "there is no C compiler here, and the sparse kernels are not built yet",
            "install gcc or clang, or name a compiler in the environment variable CC",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent) as folder:
        target = Path(folder) / path.name
        source = Path(__file__).with_name("kernels.c")
        done = subprocess.run(  # noqa: S603 - the user's own compiler, on our own file
            [command, *FLAGS, *_extra(), *more, "-o", str(target), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise LamplighterError(f"{command} does not compile the sparse kernels: {done.stderr.strip()[-600:]}")
        target.replace(path)


def _extra() -> list[str]:
    """What the user adds to the compiler's options, in LAMPLIGHTER_CFLAGS."""
    return os.environ.get("LAMPLIGHTER_CFLAGS", "").split()


def _fingerprint() -> str:
    """Changes with everything the compiled kernels depend on."""
    digest = hashlib.sha256(
        " ".join((*FLAGS, *_extra(), platform.machine(), platform.system(), compiler() or "")).encode()
    )
    for name in SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()[:16]
