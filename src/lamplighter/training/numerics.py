"""Precision and randomness for the length of a block, then as they were before."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def numerics(precision: str, device: torch.device) -> Iterator[None]:
    """Allow or forbid TF32 on CUDA, and let cuDNN choose its kernels by trying them."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=precision != "fp32"):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Autocast to bf16 if that is the precision."""
    # Casts are not kept from one use to the next: a recorded graph would read them after they are gone.
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed what layers such as dropout draw from; the state before returns afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
