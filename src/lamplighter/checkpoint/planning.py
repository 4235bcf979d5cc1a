"""Budgets for a checkpoint's layers, from one reading, or two of 32-bit weights; nothing is written."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lamplighter.allocation import Method
from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.cluster import Cluster
from lamplighter.checkpoint.cluster_reading import Spread
from lamplighter.checkpoint.discovery import Region, find_regions
from lamplighter.checkpoint.packed_format import KEY
from lamplighter.checkpoint.progress import Tell, silent
from lamplighter.checkpoint.stream import CHUNK, Stream
from lamplighter.checkpoint.threads import thread_count
from lamplighter.constraints import Constraints, checked_fraction
from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.naming import listed
from lamplighter.patterns import parse_pattern
from lamplighter.problem import Problem
from lamplighter.pruning import budgets_of, find_method, said_of_emptied
from lamplighter.reading import Tensors
from lamplighter.spectra import Spectra
from lamplighter.targets import Layer

Globs = str | Iterable[str] | None


@dataclass(frozen=True, eq=False)
class Survey:
    """A checkpoint's layers after their first reading.

    Args:
        checkpoint: where they are.
        layers: the layers that count, in their order.
        regions: where in the checkpoint each of them stands.
        source: what reads them.
        spectra: what the first reading told.
    """

    checkpoint: Checkpoint
    layers: list[Layer]
    regions: dict[str, Region]
    source: Stream | Spread
    spectra: Spectra

    @property
    def total(self) -> int:
        """How many weights count."""
        return sum(region.size for region in self.regions.values())


def survey(
    checkpoint: Checkpoint,
    include: Globs = None,
    exclude: Globs = None,
    *,
    threads: int | None = None,
    chunk: int = CHUNK,
    tell: Tell = silent,
    cluster: Cluster | None = None,
) -> Survey:
    """Find a checkpoint's layers and read them once: here, or on a cluster."""
    layers, regions = find_regions(checkpoint, include, exclude)
    source: Stream | Spread
    if cluster is None:
        source = Stream(checkpoint, regions, thread_count(threads), chunk, tell)
    else:
        source = Spread(checkpoint, regions, cluster, chunk, tell)
    return Survey(checkpoint, layers, regions, source, Spectra(source))


def check_unpacked(checkpoint: Checkpoint) -> None:
    """An error for packed files: their tensors are bitmasks and values, not weights."""
    packed = [shard.file for shard in checkpoint.shards if KEY in shard.metadata]
    if packed:
        raise LamplighterError(
            f"{checkpoint.path} is packed ({listed(packed)}): its tensors are bitmasks and values, not weights",
            f"unpack it first: lamp unpack {checkpoint.path} -o OUT",
        )


def check_request(sparsity: float, method: str | Method, pattern: str | None) -> None:
    """An error for what cannot be asked for, before anything is read."""
    checked_fraction(sparsity, "sparsity")
    find_method(method)
    if pattern is not None:
        parse_pattern(pattern)


def budgets_for(
    found: Survey,
    sparsity: float,
    method: str | Method = "lamp",
    pattern: str | None = None,
    constraints: Constraints | None = None,
) -> dict[str, int]:
    """How many weights each layer of a checkpoint keeps; a warning for layers that lose their last."""
    removed = checked_fraction(sparsity, "sparsity")
    keep = found.total - round(removed * found.total)
    weights = [(layer, layer.weight) for layer in found.layers]
    source = Tensors({layer.name: weight for layer, weight in weights}, {})  # for shapes: they have no values
    problem = Problem(weights, source, found.spectra, keep)
    budgets = budgets_of(problem, method, pattern, constraints or Constraints(None, None, None))
    if keep:
        _warn_of_emptied(found.spectra, budgets, method_name(method))
    return budgets


def _warn_of_emptied(spectra: Spectra, budgets: Mapping[str, int], method: str) -> None:
    emptied = [name for name, budget in budgets.items() if budget == 0 and spectra[name].nonzero]
    if emptied:
        warnings.warn(f"{method}: {said_of_emptied(emptied, len(budgets))}", LamplighterWarning, stacklevel=2)


def method_name(method: str | Method) -> str:
    """What a method is called where it is recorded."""
    return method if isinstance(method, str) else getattr(method, "__qualname__", type(method).__name__)


def check_chunk(chunk: int) -> int:
    """The chunk, if it is a number of bytes that can be read at once."""
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 8:
        raise LamplighterError(
            f"chunk is {chunk!r}, expected a number of bytes from 8 up", "leave it out for our choice"
        )
    return chunk
