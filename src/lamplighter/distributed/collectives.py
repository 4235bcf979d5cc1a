"""What the processes send each other, and how much of it."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from lamplighter.errors import LamplighterError

Numbers = NDArray[Any]


class LostProcessError(LamplighterError):
    """Another process did not answer: nothing more can be done together."""


@dataclass
class Traffic:
    """What one process has sent.

    Bytes as the usual ring algorithms send them: of n processes each sends 2 (n - 1) / n times what it adds to a sum,
    and n - 1 times what it shows to all others.
    """

    sent: int = 0
    calls: int = 0


_meters: ContextVar[tuple[Traffic, ...]] = ContextVar("meters", default=())


@contextmanager
def measured() -> Iterator[Traffic]:
    """Count what this process sends meanwhile."""
    traffic = Traffic()
    token = _meters.set((*_meters.get(), traffic))
    try:
        yield traffic
    finally:
        _meters.reset(token)


def digest(data: bytes) -> int:
    """A number that two texts share only by a chance of 2**-62."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 2


def device_of(group: ProcessGroup) -> torch.device:
    """Where tensors must lie that a group sends."""
    kinds = {device.type for device in group._device_types}
    if "cpu" in kinds or not kinds:
        return torch.device("cpu")
    kind = min(kinds)
    return torch.device(kind, torch.get_device_module(kind).current_device())


def summed(values: Numbers, groups: Sequence[ProcessGroup]) -> Numbers:
    """The sum of all processes' arrays, which have the same shape and dtype in all."""
    return _reduced(values, groups, ReduceOp.SUM)


def largest(values: Numbers, groups: Sequence[ProcessGroup]) -> Numbers:
    """The largest of all processes' values, place by place."""
    return _reduced(values, groups, ReduceOp.MAX)


def _reduced(values: Numbers, groups: Sequence[ProcessGroup], how: ReduceOp.RedOpType) -> Numbers:
    if not values.size:
        return values
    for group in groups:
        tensor = torch.from_numpy(np.array(values)).to(device_of(group))
        with _answered(group, 2 * _others(group) * values.nbytes // group.size()):
            dist.all_reduce(tensor, how, group=group)
            values = tensor.cpu().numpy()
    return values


def gathered(message: bytes, group: ProcessGroup) -> list[bytes]:
    """What every process of a group says, in their order."""
    mine = np.zeros(group.size(), np.int64)
    mine[group.rank()] = len(message)
    sizes = summed(mine, [group])
    padded = np.zeros(int(sizes.max()), np.uint8)
    if not padded.size:
        return [b""] * group.size()
    padded[: len(message)] = np.frombuffer(message, np.uint8)
    said = torch.from_numpy(padded).to(device_of(group))
    everyone = torch.empty(group.size() * len(said), dtype=torch.uint8, device=said.device)
    with _answered(group, _others(group) * len(padded)):
        dist.all_gather_into_tensor(everyone, said, group=group)
        rows = everyone.cpu().view(group.size(), -1).numpy()
    return [row[:size].tobytes() for row, size in zip(rows, sizes.tolist(), strict=True)]


def summed_at_first(values: Tensor, group: ProcessGroup) -> None:
    """Add up all processes' tensors in that of the group's first process, in place; what others have is lost."""
    if not values.numel():
        return
    with _answered(group, _others(group) * values.nbytes // group.size()):
        on_device = values.to(device_of(group))
        dist.reduce(on_device, dist.get_global_rank(group, 0), group=group)
        values.copy_(on_device)


def _others(group: ProcessGroup) -> int:
    return group.size() - 1


@contextmanager
def _answered(group: ProcessGroup, sent: int) -> Iterator[None]:
    """Count what is sent, and say it in our words if another process does not answer."""
    for traffic in _meters.get():
        traffic.sent += sent
        traffic.calls += 1
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise LostProcessError(
            f"process {dist.get_rank()} waited in vain for another of the {group.size()} that share the model: {error}",
            "see what the others say; one that ended or hung lets all wait until the process group's timeout, which is "
            "set with torch.distributed.init_process_group(timeout=...)",
        ) from error
