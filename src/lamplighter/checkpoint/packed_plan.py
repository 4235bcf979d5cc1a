"""What a pruned checkpoint should look like, from what its metadata say and the original."""

import contextlib
import json
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lamplighter.allocation import METHODS
from lamplighter.checkpoint.discovery import Region, find_regions
from lamplighter.checkpoint.header import shown
from lamplighter.checkpoint.output import RECORD
from lamplighter.checkpoint.packed_format import words_in
from lamplighter.checkpoint.packed_reading import Packed
from lamplighter.checkpoint.planning import budgets_for, survey
from lamplighter.constraints import Constraints
from lamplighter.errors import LamplighterError

# What comes of a record with values of other kinds than are written there.
_UNSUITABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


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
        unchecked: why it is not known how many weights each layer keeps, if it is not.
    """

    parts: Mapping[str, list[Part]]
    kept: Mapping[str, int] = field(default_factory=dict)
    total: int | None = None
    layers: Collection[str] = ()
    unchecked: str | None = None


def read_plan(pruned: Packed, original: Packed, threads: int) -> Plan:
    """What the metadata of a pruned checkpoint say, carried out on the original; if nothing, all may lose.

    The metadata may be anybody's: nothing that they name is imported or called but the built-in methods.
    """
    record = next((each for each in _records(pruned) if "sparsity" in each), None)
    sizes = {name: words_in(*about)[0] for name, about in original.tensors.items()}
    if record is None or original.is_packed:
        why = "the checkpoint does not say how it was pruned" if record is None else "the original is packed"
        return Plan({name: [Part(name, 0, size)] for name, size in sizes.items()}, unchecked=why)
    regions, total, earlier = _regions(original, record), record.get("kept"), _earlier_since(record, original)
    if earlier:
        why = "what was pruned had been pruned before, so the original does not tell them"
        if not all(isinstance(each, dict) and "sparsity" in each for each in earlier):
            return Plan({name: [Part(name, 0, size)] for name, size in sizes.items()}, unchecked=why)
        for each in earlier:
            regions |= _regions(original, each)
        return Plan(_parts(regions, sizes), unchecked=why)
    kept, unchecked = _budgets(original, record, threads)
    return Plan(_parts(regions, sizes), kept, total if type(total) is int else None, regions, unchecked)


def _records(packed: Packed) -> Iterator[dict[str, Any]]:
    """How its files were made, as far as they say."""
    for layout in packed.layouts.values():
        with contextlib.suppress(KeyError, ValueError, RecursionError):
            found = json.loads(layout.metadata[RECORD])
            if isinstance(found, dict):
                yield found


def _earlier_since(record: Mapping[str, Any], original: Packed) -> list[Any]:
    """The records of the times that a checkpoint was pruned before the last, but after it was the original."""
    before = next(_records(original), None)
    return _earlier(record)[0 if before is None else 1 + len(_earlier(before)) :]


def _earlier(record: Mapping[str, Any]) -> list[Any]:
    """What a record says of the times before, the first of them first."""
    found = record.get("earlier")
    return found if isinstance(found, list) else []


def _regions(original: Packed, record: Mapping[str, Any]) -> dict[str, Region]:
    """The layers that were chosen; none if the record does not fit: then whatever lost entries is different."""
    try:
        return find_regions(original.checkpoint, record.get("include"), record.get("exclude"))[1]
    except _UNSUITABLE:
        return {}


def _budgets(original: Packed, record: Mapping[str, Any], threads: int) -> tuple[dict[str, int], str | None]:
    """How many weights each layer keeps, decided again as when the checkpoint was pruned; or else why not."""
    method = record.get("method")
    if not isinstance(method, str) or method not in METHODS:
        name = shown(method) if isinstance(method, str) else "that is named"
        return {}, f"the method {name} is none of {', '.join(METHODS)}"
    try:
        bounds = Constraints(record.get("min_density"), record.get("max_density"), record.get("densities"))
        found = survey(original.checkpoint, record.get("include"), record.get("exclude"), threads=threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were given when it was pruned
            return budgets_for(found, record["sparsity"], method, record.get("pattern"), bounds), None
    except LamplighterError as error:
        return {}, error.message
    except _UNSUITABLE:
        return {}, "what the checkpoint says of how it was pruned cannot be read"


def _parts(regions: Mapping[str, Region], sizes: Mapping[str, int]) -> dict[str, list[Part]]:
    found: dict[str, dict[int, Part]] = {}
    for layer, region in regions.items():
        for place, tensor in enumerate(region.tensors):
            # The same weights under another name are counted under that, and may lose the same entries.
            name = layer if place == 0 else f"{tensor}@{region.start}" if region.start else tensor
            part = Part(name, region.start, region.start + region.size)
            found.setdefault(tensor, {}).setdefault(region.start, part)
    whole = {name: {0: Part(name, 0, size, may_lose=False)} for name, size in sizes.items()}
    return {name: [part for _, part in sorted(found.get(name, whole[name]).items())] for name in sizes}
