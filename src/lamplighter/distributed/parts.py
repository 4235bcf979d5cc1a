"""Which entries of a distributed tensor lie in this process: placements turned into indices along each axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from lamplighter import bits
from lamplighter.distributed.collectives import summed
from lamplighter.errors import LamplighterError
from lamplighter.formats import Ints
from lamplighter.parts import memory_of
from lamplighter.targets import Layer


@dataclass(frozen=True, eq=False)
class Part:
    """What lies here of a layer.

    Args:
        whole: the shape of the whole layer.
        places: along each axis, the indices that lie here, ascending.
        groups: the processes that hold the other parts, for each dimension of the mesh that divides the layer.
        mesh: the processes of the parameter.
        placements: how the parameter lies in them.
        expert: where the layer stands in what lies here of a stack; -1 if elsewhere, None if it is no expert.
    """

    whole: tuple[int, ...]
    places: tuple[Ints, ...]
    groups: tuple[ProcessGroup, ...]
    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    expert: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what lies here."""
        return tuple(map(len, self.places))

    def __deepcopy__(self, memo: object) -> "Part":
        """The same: it says where things are, and does not change; process groups could not be copied."""
        return self

    def take(self, parameter: Tensor) -> Tensor:
        """What lies here of the layer, in the memory of what lies here of its parameter."""
        return self.place_in(memory_of(parameter))

    def place_in(self, stack: Tensor) -> Tensor:
        """The same within a tensor shaped as what lies here of the parameter."""
        if self.expert is None:
            return stack
        return stack.new_empty(self.shape) if self.expert < 0 else stack[self.expert]

    def pick(self, whole: Tensor) -> Tensor:
        """What lies here of a tensor that has the shape of the whole layer."""
        for axis, places in enumerate(self.places):
            if len(places) == self.whole[axis]:
                continue
            if _consecutive(places):
                whole = whole.narrow(axis, int(places[0]) if len(places) else 0, len(places))
            else:
                whole = whole.index_select(axis, torch.from_numpy(places).to(whole.device))
        return whole

    def pick_bits(self, packed: Tensor) -> Tensor:
        """What lies here of the whole layer's packed mask, packed: only the rows that lie here are expanded."""
        if not math.prod(self.shape):
            return packed.new_empty(0)
        width = math.prod(self.whole[1:])
        first, last = int(self.places[0][0]), int(self.places[0][-1]) + 1
        begin = first * width // 8
        flat = bits.unpack(packed[begin : (last * width + 7) // 8].contiguous(), (last * width - 8 * begin,))
        rows = flat[first * width - 8 * begin :].view(last - first, *self.whole[1:])
        inner = replace(self, whole=tuple(rows.shape), places=(self.places[0] - first, *self.places[1:]))
        return bits.pack(inner.pick(rows))

    def wrap(self, here: Tensor, name: str) -> DTensor:
        """A distributed tensor, laid out as the layer, of which this lies here."""
        placements = self.placements
        if self.expert is not None:
            placements = tuple(self._beside_stack(each, name) for each in placements)
        stride = torch.empty(self.whole, device="meta").stride()
        return DTensor.from_local(
            here, self.mesh, placements, run_check=False, shape=torch.Size(self.whole), stride=stride
        )

    def _beside_stack(self, placement: Placement, name: str) -> Placement:
        if isinstance(placement, _StridedShard) and placement.dim > 0:
            return _StridedShard(placement.dim - 1, split_factor=placement.split_factor)
        if not isinstance(placement, Shard | _StridedShard):
            return placement
        if placement.dim > 0:
            return Shard(placement.dim - 1)
        raise LamplighterError(
            f"{name} is an expert of a stack whose experts lie in different processes: no distributed tensor has its "
            "mask",
            "see masks.kept for how many of its weights are kept, or load a saved file of the masks",
        )

    def only_along(self, axis: int) -> bool:
        """Whether the layer is divided along this axis at most."""
        sizes = zip(self.places, self.whole, strict=True)
        return all(at == axis or len(places) == size for at, (places, size) in enumerate(sizes))

    def along(self, axis: int, counts: Sequence[int]) -> list[int]:
        """The counts at all indices along an axis, from those that lie in each process."""
        every = np.zeros(self.whole[axis], np.int64)
        every[self.places[axis]] = counts
        found: list[int] = summed(every, self.groups).tolist()
        return found

    def alike(self, other: object) -> bool:
        """Whether the same entries lie here of both."""
        return (
            isinstance(other, Part)
            and self.whole == other.whole
            and all(map(np.array_equal, self.places, other.places))
        )

    def before(self, index: Ints) -> Ints:
        """How many of the entries that lie here stand before an entry of the whole layer (by flat index)."""
        rank = np.zeros(len(index), np.int64)
        if not math.prod(self.shape):
            return rank
        left, going = index.astype(np.int64), np.ones(len(index), bool)
        for axis, places in enumerate(self.places):
            digit, left = np.divmod(left, math.prod(self.whole[axis + 1 :]))
            place = np.searchsorted(places, digit)
            rank += np.where(going, place * math.prod(self.shape[axis + 1 :]), 0)
            going &= (place < len(places)) & (places[np.minimum(place, len(places) - 1)] == digit)
        return rank

    def indices(self, start: int, stop: int) -> Ints:
        """The flat indices in the whole layer of some of the entries that lie here, from one to another."""
        left = np.arange(start, stop)
        found = np.zeros(stop - start, np.int64)
        for axis, places in enumerate(self.places):
            digit, left = np.divmod(left, math.prod(self.shape[axis + 1 :]))
            found += places[digit] * math.prod(self.whole[axis + 1 :])
        return found


def part_of(layer: Layer) -> Part:
    """What lies here of a layer whose parameter is a DTensor."""
    tensor, kind = layer.parameter, type(layer.parameter)
    if not isinstance(tensor, DTensor):
        raise LamplighterError(
            f"layer {layer.name!r} is a {kind.__module__}.{kind.__name__}, expected a Tensor or DTensor",
            f"leave it out with exclude={layer.parameter_name!r}",
        )
    mesh, placements = tensor.device_mesh, tuple(tensor.placements)
    coordinates = mesh.get_coordinate()
    if coordinates is None:
        raise LamplighterError(f"nothing of layer {layer.name!r} lies in this process", "prune where the model lies")
    for placement in placements:
        if not isinstance(placement, Replicate | Shard | _StridedShard):
            raise LamplighterError(
                f"layer {layer.name!r} is placed as {placement}, expected a shard or a replica",
                "redistribute it first: tensor.redistribute(placements=...)",
            )
    places = tuple(
        _places(size, axis, placements, tuple(mesh.shape), coordinates) for axis, size in enumerate(tensor.shape)
    )
    found = tuple(map(len, places))
    here: tuple[int, ...] = tuple(memory_of(tensor).shape)
    if found != here and not (0 in found and 0 in here):
        raise LamplighterError(
            f"of layer {layer.name!r} a part of shape {here} lies here, where {placements} make it {found}",
            "give it sizes that the mesh divides evenly",
        )
    dividing = [d for d, each in enumerate(placements) if not isinstance(each, Replicate) and mesh.size(d) > 1]
    part = Part(tuple(tensor.shape), places, tuple(mesh.get_group(d) for d in dividing), mesh, placements)
    return part if layer.expert is None else _of_expert(part, layer.expert)


def _of_expert(part: Part, expert: int) -> Part:
    """The part of one expert of a stack."""
    place = int(np.searchsorted(part.places[0], expert))
    here = place < len(part.places[0]) and int(part.places[0][place]) == expert
    inner = part.places[1:] if here else (np.empty(0, np.int64), *part.places[2:])
    return replace(part, whole=part.whole[1:], places=inner, expert=place if here else -1)


def _places(
    size: int, axis: int, placements: Sequence[Placement], mesh: Sequence[int], coordinates: Sequence[int]
) -> Ints:
    """The indices along an axis that lie at some coordinates of a mesh.

    Shards divide from the first dimension of the mesh to the last. A strided shard divides what `split_factor`
    processes of later dimensions have divided before: FSDP takes its shards of those of tensor parallelism.
    """
    dividing = [d for d, each in enumerate(placements) if not isinstance(each, Replicate) and each.dim == axis]  # type: ignore[attr-defined]
    order: list[int] = []
    for dimension in reversed(dividing):
        placement = placements[dimension]
        factor = int(placement.split_factor) if isinstance(placement, _StridedShard) else 1
        passed = 0
        while factor > 1 and passed < len(order) and factor % mesh[order[passed]] == 0:
            factor //= mesh[order[passed]]
            passed += 1
        if factor > 1:
            return _places_in_turn(size, dividing, placements, mesh, coordinates)
        order.insert(passed, dimension)
    places: Ints = np.arange(size)
    for dimension in order:
        places = _chunk(places, mesh[dimension], coordinates[dimension])
    return places


def _places_in_turn(
    size: int, dividing: Sequence[int], placements: Sequence[Placement], mesh: Sequence[int], coordinates: Sequence[int]
) -> Ints:
    """The same for strided shards that no other shards explain: the definition of `_StridedShard`, taken literally."""
    places: Ints = np.arange(size)
    for dimension in dividing:
        placement = placements[dimension]
        factor = int(placement.split_factor) if isinstance(placement, _StridedShard) else 1
        stretches = [_chunk(places, factor, number) for number in range(factor)]
        places = np.concatenate([_chunk(each, mesh[dimension], coordinates[dimension]) for each in stretches])
    return places


def _chunk(places: Ints, count: int, number: int) -> Ints:
    """One of the pieces that `torch.chunk` would make: all of the first size but the last, and empty ones after it."""
    step = -(-len(places) // count)
    return places[number * step : (number + 1) * step]


def _consecutive(places: Ints) -> bool:
    return len(places) == 0 or int(places[-1] - places[0]) == len(places) - 1
