"""Where a run's numbers come from: code, versions, hardware, data."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from lamplighter.benchmarking.machine import processor
from lamplighter.version import __version__

# Says the commit where the code runs as a copy, outside its repository.
COMMIT = "LAMPLIGHTER_COMMIT"


def device_name(device: torch.device) -> str:
    """The hardware, as its maker calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def describe(device: torch.device, data: str | None) -> dict[str, Any]:
    """What a process computes with.

    Args:
        device: where networks train.
        data: the hash of the prepared data.
    """
    return {
        "lamplighter": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "data": data,
    }


def _commit() -> str | None:
    """The commit that the environment names, or of the checkout this file is in, with a + if files differ from it."""
    if named := os.environ.get(COMMIT):
        return named
    folder = Path(__file__).parent
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return commit + ("+" if _git(folder, "status", "--porcelain", "--", ".") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
