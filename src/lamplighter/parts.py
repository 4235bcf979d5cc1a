"""What lies in this process of layers that several processes hold together.

This much the core knows of them. Everything else is in `lamplighter.distributed`, imported when a weight asks for it.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from torch import Tensor, nn

from lamplighter.targets import Layer


class Part(Protocol):
    """Which entries of a layer lie in this process: along each axis some of the indices, in ascending order.

    So entries stand in the same order here as in the whole layer.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what lies here."""

    def take(self, parameter: Tensor) -> Tensor:
        """What lies here of the layer, in the memory of what lies here of its parameter."""

    def place_in(self, stack: Tensor) -> Tensor:
        """The same within a tensor shaped as what lies here of the parameter."""

    def pick(self, whole: Tensor) -> Tensor:
        """What lies here of a tensor that has the shape of the whole layer."""

    def pick_bits(self, packed: Tensor) -> Tensor:
        """What lies here of the whole layer's packed mask, packed."""

    def wrap(self, here: Tensor, name: str) -> Tensor:
        """A distributed tensor, laid out as the layer, of which this lies here."""

    @property
    def places(self) -> Sequence[Any]:
        """Along each axis, the indices that lie here."""

    def only_along(self, axis: int) -> bool:
        """Whether the layer is divided along this axis at most."""

    def along(self, axis: int, counts: Sequence[int]) -> list[int]:
        """The counts at all indices along an axis, from those that lie in each process."""

    def alike(self, other: "Part") -> bool:
        """Whether the same entries lie here of both."""


Parts = Mapping[str, Part]


def is_spread(tensor: Tensor) -> bool:
    """Whether a tensor lies in several processes (known without importing torch.distributed)."""
    return type(tensor).__name__ == "DTensor" or hasattr(tensor, "placements")


def part_of(layer: Layer) -> Part | None:
    """What lies here of a layer that is spread over several processes; None for one that is all here."""
    if not is_spread(layer.parameter):
        return None
    part: Part = _distributed("parts").part_of(layer)
    return part


def weight_here(layer: Layer, part: Part | None) -> Tensor:
    """The weights of a layer that lie here, detached, in the parameter's own memory."""
    return layer.weight if part is None else part.take(layer.parameter)


def memory_of(tensor: Tensor) -> Tensor:
    """What of a tensor lies here, to be changed in place."""
    if not is_spread(tensor):
        return tensor
    spread: Any = tensor.detach()
    here: Tensor = spread.to_local()
    return here


def exchanging(model: object) -> list[nn.Module]:
    """The modules that put copies of their whole weights in the place of their parts while they run: those of FSDP2."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return [module for module in modules if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)]


def gather_up(model: object) -> None:
    """Let modules that still hold copies of their whole weights (FSDP's, after a forward) go back to their parts."""
    for module in exchanging(model):
        module.reshard()  # type: ignore[operator]


def totals(counts: Mapping[str, int], parts: Parts) -> dict[str, int]:
    """The sum over all processes of what each counted in its parts; layers that are all here count once."""
    if not any(name in parts for name in counts):
        return dict(counts)
    found: dict[str, int] = _distributed("adding").totals(counts, parts)
    return found


def importance_here(score: Any, layer: Layer, evidence: Any) -> Tensor:  # noqa: ANN401
    """The importance, by a score, of what lies here of a layer that lies in several processes."""
    found: Tensor = _distributed("scoring").importance(score, layer, evidence)
    return found


def write_spread(path: Any, packed: Mapping[str, Tensor], shapes: Mapping[str, Any], parts: Parts) -> None:  # noqa: ANN401
    """Write masks that lie in several processes to one file."""
    _distributed("saving").write_spread(path, packed, shapes, parts)


def _distributed(module: str) -> Any:  # noqa: ANN401
    return import_module(f"lamplighter.distributed.{module}")
