"""Masks: which weights a model keeps. Bit-packed inside, boolean tensors when looked at."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lamplighter import bits, selection
from lamplighter.errors import LamplighterError
from lamplighter.holding import Hold
from lamplighter.mask_files import read_masks, write_masks
from lamplighter.mask_table import as_html, as_text
from lamplighter.memory import check_memory
from lamplighter.naming import listed
from lamplighter.parts import Part, Parts, gather_up, part_of, totals, weight_here, write_spread
from lamplighter.targets import Layer, find_named, natural_key


class Masks(Mapping[str, Tensor]):
    """Which weights of each layer are kept: a mapping of layer names to boolean tensors, True where kept.

    Masks that `prune` returned, and masks that were applied to a model, know the weights they belong to: `hold` keeps
    those at zero while training goes on.

    Of layers that lie in several processes each process has the bits of its own part. Looked at, such a mask is a
    DTensor placed as the weight is; `kept` and what follows from it are of whole layers. `&`, `==` and `save` are then
    for all processes to call together.

    Args:
        masks: boolean tensors by layer name.

    >>> masks = Masks({"a.weight": torch.tensor([[True, False], [True, True]])})
    >>> masks.kept, masks.density
    ({'a.weight': 3}, 0.75)
    """

    def __init__(self, masks: Mapping[str, Tensor]) -> None:
        if not isinstance(masks, Mapping) or not all(isinstance(name, str) for name in masks):
            raise LamplighterError(
                f"masks are made of a mapping of layer names to boolean tensors, not of {type(masks).__name__}",
                'for example Masks({"fc.weight": mask})',
            )
        for name, mask in masks.items():
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
                found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
                raise LamplighterError(f"mask {name!r} is {found}, expected a boolean tensor", "use tensor.bool()")
        self._fill({n: bits.pack(m) for n, m in masks.items()}, {n: tuple(m.shape) for n, m in masks.items()})

    def _fill(
        self,
        packed: Mapping[str, Tensor],
        shapes: Mapping[str, Sequence[int]],
        parts: Parts | None = None,
        kept: Mapping[str, int] | None = None,
    ) -> None:
        names = sorted(packed, key=natural_key)
        self._packed = {name: packed[name] for name in names}
        self.shapes: dict[str, tuple[int, ...]] = {name: tuple(shapes[name]) for name in names}
        self._parts: dict[str, Part] = dict(parts or {})
        self._kept = None if kept is None else {name: kept[name] for name in names}
        self._layers: dict[str, Layer] = {}
        self._hold: Hold | None = None

    @classmethod
    def from_packed(
        cls,
        packed: Mapping[str, Tensor],
        shapes: Mapping[str, Sequence[int]],
        parts: Parts | None = None,
        kept: Mapping[str, int] | None = None,
    ) -> "Masks":
        """Masks of bits that are packed already (see `bits.pack`).

        Args:
            packed: the bits; of a layer in `parts`, of what lies here.
            shapes: the shapes of whole layers.
            parts: which entries lie here, of layers that do not all.
            kept: how many weights each layer keeps, if that is known; needed where there are parts.
        """
        masks = cls.__new__(cls)
        masks._fill(packed, shapes, parts, kept)
        return masks

    @property
    def packed(self) -> Mapping[str, Tensor]:
        """The bits themselves, eight to a byte, by layer name; as far as they lie in this process."""
        return self._packed

    def __getitem__(self, name: str) -> Tensor:
        part = self._parts.get(name)
        return self.here(name) if part is None else part.wrap(self.here(name), name)

    def here(self, name: str) -> Tensor:
        """The mask of what lies in this process of a layer: all of it, unless the layer is a DTensor."""
        part = self._parts.get(name)
        return bits.unpack(self._packed[name], self.shapes[name] if part is None else part.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    @property
    def kept(self) -> dict[str, int]:
        """How many weights each layer keeps."""
        if self._kept is None:
            self._kept = {name: bits.count(packed) for name, packed in self._packed.items()}
        return dict(self._kept)

    @property
    def sizes(self) -> dict[str, int]:
        """How many weights each layer has."""
        return {name: torch.Size(shape).numel() for name, shape in self.shapes.items()}

    @property
    def total(self) -> int:
        """How many weights there are."""
        return sum(self.sizes.values())

    @property
    def total_kept(self) -> int:
        """How many weights are kept."""
        return sum(self.kept.values())

    @property
    def density(self) -> float:
        """The fraction kept of all weights."""
        return self.total_kept / self.total if self.total else 1.0

    @property
    def sparsity(self) -> float:
        """The fraction removed of all weights."""
        return 1.0 - self.density if self.total else 0.0

    def densities(self) -> dict[str, float]:
        """The fraction kept of each layer."""
        return {name: self.kept[name] / size if size else 1.0 for name, size in self.sizes.items()}

    def __and__(self, other: "Masks") -> "Masks":
        """What both keep."""
        if not isinstance(other, Masks):
            return NotImplemented
        self._check_same_layers(other)
        parts = {**other._parts, **self._parts}
        packed = {}
        for name in self._packed:
            mine, others = self._bits_in(name, parts.get(name)), other._bits_in(name, parts.get(name))
            packed[name] = mine & others.to(mine.device)
        kept = totals({name: bits.count(bits_) for name, bits_ in packed.items()}, parts)
        both = Masks.from_packed(packed, self.shapes, parts, kept)
        both._layers = dict(self._layers)
        return both

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Masks):
            return NotImplemented
        if self.shapes != other.shapes:
            return False
        parts = {**other._parts, **self._parts}
        differing = {}
        for name in self._packed:
            mine, others = self._bits_in(name, parts.get(name)), other._bits_in(name, parts.get(name))
            differing[name] = int(not torch.equal(mine, others.to(mine.device)))
        return not any(totals(differing, parts).values())

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return as_text(self)

    def __repr__(self) -> str:
        layers = "1 layer" if len(self) == 1 else f"{len(self):,} layers"
        return f"Masks({layers}, {self.total_kept:,} of {self.total:,} kept, density {self.density:.4g})"

    def _repr_html_(self) -> str:
        return as_html(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the masks to a safetensors file, bit-packed, with the layers' names and shapes.

        If they lie in several processes, all of these call this together, and one writes the same file as for a model
        that is in one process alone.
        """
        if self._parts:
            write_spread(Path(path), self._packed, self.shapes, self._parts)
        else:
            write_masks(Path(path), self._packed, self.shapes)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Masks":
        """The masks that `save` wrote. They belong to no model yet: `apply` them to one."""
        return cls.from_packed(*read_masks(Path(path)))

    def apply(self, weights_or_model: nn.Module | Mapping[str, Tensor]) -> "Masks":
        """Set every weight that is not kept to +0.0, in place; these masks belong to these weights from now on."""
        gather_up(weights_or_model)
        layers = self._layers_of(weights_or_model)
        self.bind(layers)
        weights = {name: weight_here(layer, self._parts.get(name)) for name, layer in layers.items()}
        selection.erase(weights, self._packed)
        return self

    def bind(self, layers: Mapping[str, Layer]) -> None:
        """Let the masks belong to these layers, without changing any weight."""
        packed = self.bits_here(list(layers.values()))
        parts = {name: part for name, layer in layers.items() if (part := part_of(layer)) is not None}
        if parts:
            self._kept = self.kept  # while all bits are here
        self._layers, self._packed, self._parts = dict(layers), packed, parts

    def bits_here(self, layers: Sequence[Layer]) -> dict[str, Tensor]:
        """The packed masks of these very layers, as far as they lie in this process, on their device."""
        self.check_layers(layers)
        found = {}
        for layer in layers:
            part = part_of(layer)
            device = weight_here(layer, part).device
            found[layer.name] = self._bits_in(layer.name, part).to(device)
        return {name: found[name] for name in self._packed}

    def _bits_in(self, name: str, part: Part | None) -> Tensor:
        """The packed mask of a part of a layer."""
        mine, packed = self._parts.get(name), self._packed[name]
        if mine is None:
            return packed if part is None else part.pick_bits(packed)
        if part is None or not mine.alike(part):
            raise LamplighterError(
                f"the mask of {name} lies in several processes, in other parts than its weights do",
                "take it over by a file: masks.save(path), ll.Masks.load(path)",
            )
        return packed

    def hold(self, optimizer: Optimizer, *others: Optimizer) -> None:
        """Keep pruned weights at zero while training goes on.

        Gradients are masked as they are accumulated, weights after each step of the optimizer, both through torch's own
        hooks. Pruned weights that have moved since return to zero at once. Holding again, by these masks or others, on
        the same optimizer or on a new one, replaces what was held of the same parameters before.

        Args:
            optimizer: what trains the weights.
            others: where several optimizers share the weights (Muon for matrices, AdamW for the rest), the others.
        """
        for each in (optimizer, *others):
            if not isinstance(each, Optimizer):
                raise LamplighterError(
                    f"masks cannot be held on a {type(each).__name__}", "pass the optimizer: masks.hold(optimizer)"
                )
        if not self._layers:
            raise LamplighterError(
                "these masks belong to no model yet, so there is nothing to hold",
                "apply them first: masks.apply(model)",
            )
        hold = Hold(self.here, self._layers, self._parts, (optimizer, *others))
        self.release()  # of what it has not replaced already
        self._hold = hold

    def release(self) -> None:
        """Let pruned weights move again."""
        if self._hold is not None:
            self._hold.remove()
            self._hold = None

    def check_layers(self, layers: Sequence[Layer]) -> None:
        """An error unless these masks are for exactly these layers."""
        found = {layer.name: layer.shape for layer in layers}
        if found == self.shapes:
            return
        raise LamplighterError(
            f"the masks are of another model: {_difference(self.shapes, found)}",
            "use the masks of this very model (with the include and exclude they were made with)",
        )

    def _layers_of(self, weights_or_model: nn.Module | Mapping[str, Tensor]) -> dict[str, Layer]:
        layers = find_named(weights_or_model, self._packed)
        for name, layer in layers.items():
            check_memory(name, weight_here(layer, part_of(layer)))
        found = {name: layer.shape for name, layer in layers.items()}
        if found != self.shapes:
            raise LamplighterError(
                f"the masks are of another model: {_difference(self.shapes, found)}",
                "apply them to a model with the same layers",
            )
        return layers

    def _check_same_layers(self, other: "Masks") -> None:
        if self.shapes != other.shapes:
            raise LamplighterError(
                f"the masks are of different models: {_difference(self.shapes, other.shapes)}",
                "combine masks of the same layers",
            )

    def __getstate__(self) -> dict[str, object]:
        """What a copy takes along: the masks, not the model they belong to."""
        return {**self.__dict__, "_layers": {}, "_hold": None}


def _difference(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> str:
    missing, extra = [n for n in expected if n not in found], [n for n in found if n not in expected]
    if missing:
        return f"{listed(missing)} not found"
    if extra:
        return f"no mask for {listed(extra)}"
    name = next(n for n in expected if expected[n] != found[n])
    return f"{name} has shape {found[name]}, its mask {expected[name]}"
