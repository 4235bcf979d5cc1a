"""What pruning a checkpoint came to: per layer and in total, asked and reached, sizes and time."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer: what it is, how many weights it had, how many it keeps."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    kept: int

    @property
    def density(self) -> float:
        """The fraction kept."""
        return self.kept / self.size if self.size else 1.0


@dataclass(frozen=True)
class Report:
    """What pruning a checkpoint came to.

    Args:
        source: the checkpoint that was read.
        destination: the one that was written; None if nothing was.
        method: how budgets were found.
        pattern: the pattern, if one was asked for.
        sparsity: the fraction to remove that was asked for.
        layers: the layers that count, in their order.
        passed_over: how many tensors do not count and were copied.
        bytes_read: the size of the checkpoint's tensors.
        bytes_written: how many bytes were written, files carried over included; that would be, if nothing was.
        seconds: how long it took.
        left_out: files of the folder that were not carried over.
        unpruned: files of the folder that hold other weights, and were carried over unchanged.
        dropped: entries of files of torch that are no weights, as FILE: NAME, and are not in the result.
    """

    source: str
    destination: str | None
    method: str
    pattern: str | None
    sparsity: float
    layers: tuple[LayerReport, ...]
    passed_over: int
    bytes_read: int
    bytes_written: int
    seconds: float
    left_out: tuple[str, ...] = field(default=())
    unpruned: tuple[str, ...] = field(default=())
    dropped: tuple[str, ...] = field(default=())

    @property
    def total(self) -> int:
        """How many weights count."""
        return sum(layer.size for layer in self.layers)

    @property
    def kept(self) -> int:
        """How many weights are kept."""
        return sum(layer.kept for layer in self.layers)

    @property
    def reached(self) -> float:
        """The fraction removed."""
        return 1.0 - self.kept / self.total if self.total else 0.0

    def as_data(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        layers = [{**asdict(layer), "density": layer.density} for layer in self.layers]
        return {**asdict(self), "layers": layers, "total": self.total, "kept": self.kept, "reached": self.reached}

    def __str__(self) -> str:
        return (
            f"{self.source}: {self.kept:,} of {self.total:,} weights in {len(self.layers):,} layers kept "
            f"(sparsity asked {self.sparsity:g}, reached {self.reached:.6g})"
        )
