"""What the measurements were made on."""

import ctypes
import gc
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch


def describe(device: str) -> dict[str, Any]:
    """Processor, threads and versions, to be printed beside every measurement."""
    machine = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if torch.device(device).type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
    return machine


def disturbance() -> str | None:
    """Why times measured now would mislead, or None. To be asked before measuring: our own work counts as load too.

    Threads that wait for each other wait for the scheduler when others want the cores. That costs most where work is
    split into many short pieces, so it distorts ratios, and taking turns does not cancel it.
    """
    cores, load = os.cpu_count() or 1, load_average()
    if load is None or load < 0.5 * cores:
        return None
    return f"this machine is busy (load {load:.1f} on {cores} cores): times and ratios will mislead"


def load_average() -> float | None:
    """Processes that wanted to run, averaged over the last minute; None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


@contextmanager
def limited_to(threads: int | None) -> Iterator[None]:
    """Let torch use that many threads meanwhile; as many as it likes if None."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def settle() -> None:
    """Give back to the system what earlier work has left: whoever frees something next would be charged for it."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def processor() -> str:
    """The processor's name as its maker gives it, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
