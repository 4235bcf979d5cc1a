"""What packing or unpacking did."""

from collections.abc import Callable
from dataclasses import dataclass

Watch = Callable[[int], None]


def ignore(nbytes: int) -> None:
    """Tell nobody how many bytes are done with."""


@dataclass(frozen=True)
class Conversion:
    """What packing or unpacking did.

    Args:
        tensors: how many tensors the original has.
        sparse: how many of them are stored as bitmask and values.
        dense_bytes: what the original's tensors take, with their files' headers.
        packed_bytes: what the packed ones take.
        seconds: how long it took.
        left_out: files and folders of the source that were not carried over, as they may hold weights.
    """

    tensors: int
    sparse: int
    dense_bytes: int
    packed_bytes: int
    seconds: float
    left_out: tuple[str, ...] = ()
