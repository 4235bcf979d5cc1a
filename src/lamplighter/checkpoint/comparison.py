"""Budgets of several methods side by side, for one checkpoint read once."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.cluster import joined
from lamplighter.checkpoint.planning import Globs, budgets_for, check_request, check_unpacked, survey
from lamplighter.checkpoint.progress import Tell, silent
from lamplighter.checkpoint.threads import thread_count
from lamplighter.errors import LamplighterError


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """A layer, and how many weights each method keeps of it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    kept: dict[str, int]


@dataclass(frozen=True)
class Plan:
    """What each method would keep of each layer.

    Args:
        source: the checkpoint.
        sparsity: the fraction to remove.
        pattern: the pattern, if one was asked for.
        methods: their names.
        layers: the layers that count, in their order.
        passed_over: how many tensors do not count.
    """

    source: str
    sparsity: float
    pattern: str | None
    methods: tuple[str, ...]
    layers: tuple[PlannedLayer, ...]
    passed_over: int

    @property
    def total(self) -> int:
        """How many weights count."""
        return sum(layer.size for layer in self.layers)

    def as_data(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        kept = {method: sum(layer.kept[method] for layer in self.layers) for method in self.methods}
        return {**asdict(self), "total": self.total, "kept": kept}


def compare(
    src: str | os.PathLike[str],
    *,
    sparsity: float,
    methods: Sequence[str] = ("lamp",),
    pattern: str | None = None,
    include: Globs = None,
    exclude: Globs = None,
    threads: int | None = None,
    tell: Tell = silent,
    ray: str | None = None,
) -> Plan:
    """What methods would keep of a checkpoint's layers; nothing is written. The arguments are `prune_checkpoint`'s."""
    if len(set(methods)) < len(methods):
        raise LamplighterError(f"a method is named twice: {', '.join(methods)}", "name each once")
    for method in methods:
        check_request(sparsity, method, pattern)
    checkpoint = Checkpoint(Path(src))
    check_unpacked(checkpoint)
    with joined(ray, thread_count(threads, spread=ray is not None)) as cluster:
        found = survey(checkpoint, include, exclude, threads=threads, tell=tell, cluster=cluster)
        budgets = {method: budgets_for(found, sparsity, method, pattern) for method in methods}
    layers = tuple(
        PlannedLayer(
            name,
            region.shape,
            checkpoint.entries[region.tensors[0]].dtype,
            region.size,
            {method: budgets[method][name] for method in methods},
        )
        for name, region in found.regions.items()
    )
    passed_over = len(checkpoint) - len({tensor for region in found.regions.values() for tensor in region.tensors})
    return Plan(str(checkpoint.path), float(sparsity), pattern, tuple(methods), layers, passed_over)
