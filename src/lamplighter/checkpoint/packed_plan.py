"""What a pruned checkpoint should look like, from what its metadata say and the original."""

import json
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lamplighter.checkpoint.discovery import Region, find_regions
from lamplighter.checkpoint.output import RECORD
from lamplighter.checkpoint.packed_format import words_in
from lamplighter.checkpoint.packed_reading import Packed
from lamplighter.checkpoint.planning import budgets_for, survey
from lamplighter.constraints import Constraints
from lamplighter.errors import LamplighterError


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor, or the stretch of it that is a layer.

    Args:
        name: the tensor's name, or the layer's.
        start: its first entry within the tensor.
        stop: behind its last.
        may_lose: whether entries may have become zero.
    """

    name: str
    start: int
    stop: int
    may_lose: bool = True


@dataclass(frozen=True)
class Plan:
    """What is known of how a checkpoint was pruned.

    Args:
        parts: of each tensor of the original, the parts that are counted by themselves, one behind the other.
        kept: how many weights each layer keeps, as far as the metadata tell how that was decided.
        total: how many all layers keep together, if the metadata tell.
        layers: the names of the layers.
    """

    parts: Mapping[str, list[Part]]
    kept: Mapping[str, int] = field(default_factory=dict)
    total: int | None = None
    layers: Collection[str] = ()


def read_plan(pruned: Packed, original: Packed, threads: int) -> Plan:
    """What the metadata of a pruned checkpoint say, carried out on the original; if nothing, all may lose."""
    record = next((found for shard in pruned.layouts.values() if (found := _record(shard.metadata))), None)
    sizes = {name: words_in(*about)[0] for name, about in original.tensors.items()}
    if record is None or original.is_packed:
        return Plan({name: [Part(name, 0, size)] for name, size in sizes.items()})
    include, exclude = record.get("include"), record.get("exclude")
    try:
        kept = _budgets(original, record, threads)
    except (LamplighterError, TypeError, KeyError):  # by a function that is not known here
        kept = {}
    try:
        regions = find_regions(original.checkpoint, include, exclude)[1]
    except LamplighterError:  # it was made of something else: then every tensor that lost entries is different
        regions = {}
    total = record.get("kept")
    return Plan(_parts(regions, sizes), kept, total if type(total) is int else None, regions)


def _record(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """How a file was pruned, if it was."""
    try:
        found = json.loads(metadata[RECORD])
    except (KeyError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "sparsity" in found else None


def _budgets(original: Packed, record: Mapping[str, Any], threads: int) -> dict[str, int]:
    """How many weights each layer keeps: decided again, as it was when the checkpoint was pruned."""
    bounds = Constraints(record.get("min_density"), record.get("max_density"), record.get("densities"))
    found = survey(original.checkpoint, record.get("include"), record.get("exclude"), threads=threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were given when it was pruned
        return budgets_for(found, record["sparsity"], record["method"], record.get("pattern"), bounds)


def _parts(regions: Mapping[str, Region], sizes: Mapping[str, int]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for layer, region in regions.items():
        for place, tensor in enumerate(region.tensors):
            # The same weights under another name are counted under that, and may lose the same entries.
            name = layer if place == 0 else f"{tensor}@{region.start}" if region.start else tensor
            found.setdefault(tensor, []).append(Part(name, region.start, region.start + region.size))
    for parts in found.values():
        parts.sort(key=lambda part: part.start)
    return {name: found.get(name, [Part(name, 0, size, may_lose=False)]) for name, size in sizes.items()}
