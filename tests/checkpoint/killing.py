"""A process that prunes in children and kills them at random moments; run by test_killed.py, which judges.

Children are forked from here, where everything is imported but nothing computed yet: that is quick, and safe.
Arguments: folder, "file" or "folder", "new" or "force", how many moments, seed. Prints one JSON object for each moment.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from lamplighter.checkpoint import prune  # noqa: F401  (imported before the first fork)
from lamplighter.checkpoint.prune import prune_checkpoint


def run(source: Path, target: Path, sparsity: float, *, force: bool) -> int:
    """Prune in a child; its process number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        prune_checkpoint(source, target, sparsity=sparsity, force=force, chunk=1 << 16)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def finished(child: int) -> int:
    """The exit code of a child, negative if it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def state(path: Path) -> str | None:
    """What is at a path: a number that stands for all names and bytes, or None."""
    if not path.exists():
        return None
    sums = hashlib.sha256()
    for each in [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]:
        sums.update(str(each.relative_to(path.parent)).encode())
        sums.update(each.read_bytes() if each.is_file() else b"")
    return sums.hexdigest()


def main() -> None:
    """All moments, one after the other."""
    folder, kind, mode, moments, seed = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    chance = random.Random(seed)
    ending = ".safetensors" if kind == "file" else ""
    source, target = folder / f"in{ending}", folder / f"out{ending}"
    assert finished(run(source, target, 0.2, force=True)) == 0
    old = state(target)
    begun = time.perf_counter()
    assert finished(run(source, target, 0.6, force=True)) == 0
    duration = time.perf_counter() - begun
    new, original, names = state(target), state(source), sorted(os.listdir(folder))  # noqa: PTH208
    for _ in range(moments):
        assert finished(run(source, target, 0.2, force=True)) == 0
        if mode == "new":
            target.unlink() if kind == "file" else [*map(Path.unlink, target.iterdir()), target.rmdir()]
        child = run(source, target, 0.6, force=mode == "force")
        time.sleep(chance.uniform(0, 1.1 * duration))
        os.kill(child, signal.SIGKILL)
        code, found = finished(child), state(target)
        known = {None: "absent", old: "old", new: "new"}.get(found, "broken")
        unchanged = state(source) == original
        again = finished(run(source, target, 0.6, force=True))
        clean = sorted(os.listdir(folder)) == names and state(target) == new  # noqa: PTH208
        print(
            json.dumps({"killed": code < 0, "out": known, "in": unchanged, "again": again, "clean": clean}), flush=True
        )


if __name__ == "__main__":
    main()
