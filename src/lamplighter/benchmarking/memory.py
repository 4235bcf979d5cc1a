"""Peak extra memory of one contender, measured in a fresh process of its own."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

from lamplighter.benchmarking import weights as weights_of
from lamplighter.benchmarking.contenders import CONTENDERS
from lamplighter.errors import LamplighterError


def peak_extra_bytes(contender: str, model: str, dtype: str, sparsity: float, device: str) -> int | None:
    """How far the process's peak rises above what it held with the weights alone, results included.

    Fresh, because memory that earlier work has freed would be used again unseen. None where the system does not tell.
    """
    command = [sys.executable, "-m", __name__, contender, model, dtype, str(sparsity), device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LamplighterError(
            f"the memory of {contender!r} could not be measured: {last}",
            hint="it may have run out of memory; --no-memory leaves this part out",
        )
    found: int | None = json.loads(done.stdout)
    return found


def measure(contender: str, model: str, dtype: str, sparsity: float, device: str) -> int | None:
    """What the fresh process does: weights, baseline, one run, peak."""
    kind = getattr(torch, dtype)
    # Once on something small, so that code and threads that are loaded on first use do not count.
    _run(contender, weights_of.fill(weights_of.MODELS["resnet50-small"](), kind, device), sparsity)
    weights = weights_of.fill(weights_of.MODELS[model](), kind, device)
    before = _begin(device)
    kept = _run(contender, weights, sparsity)
    after = _peak(device)
    del kept
    return None if before is None or after is None else max(0, after - before)


def _run(contender: str, weights: dict[str, torch.Tensor], sparsity: float) -> object:
    return CONTENDERS[contender](weights, sparsity)()


def _begin(device: str) -> int | None:
    """Bytes in use now; from here on the peak is counted anew."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # sets VmHWM to VmRSS
    except OSError:
        return None
    return _status("VmRSS")


def _peak(device: str) -> int | None:
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM")


def _status(field: str) -> int | None:
    """A line of /proc/self/status in bytes; only Linux has it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


def main() -> None:
    """Print the bytes, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("contender", "model", "dtype"):
        parser.add_argument(name)
    parser.add_argument("sparsity", type=float)
    parser.add_argument("device")
    print(json.dumps(measure(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
