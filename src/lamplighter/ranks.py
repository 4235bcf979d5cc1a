"""The processes that prune a model together. Most models are in one process alone."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Protocol

from torch import Tensor, nn

from lamplighter.parts import Parts, gather_up, is_spread
from lamplighter.reading import Tensors


class Ranks(Protocol):
    """What pruning asks of the processes that share a model."""

    def together(self) -> AbstractContextManager[None]:
        """Around what may fail in some processes only: then all end with an error."""

    def agree(self, on: Callable[[], Mapping[str, str]]) -> None:
        """An error in all processes unless all say the same, under the same headings."""

    def source(self, tensors: Mapping[str, Tensor], alive: Mapping[str, Tensor], parts: Parts) -> Tensors:
        """The layers, of which these tensors lie here, as a source of spectra."""


class Alone:
    """One process, which shares nothing."""

    def together(self) -> AbstractContextManager[None]:
        """Nothing to wait for."""
        return nullcontext()

    def agree(self, on: Callable[[], Mapping[str, str]]) -> None:
        """There is nobody to disagree with."""

    def source(self, tensors: Mapping[str, Tensor], alive: Mapping[str, Tensor], parts: Parts) -> Tensors:  # noqa: ARG002
        """The tensors themselves."""
        return Tensors(tensors, alive)


def ranks_of(weights_or_model: object) -> Ranks:
    """The processes that share a model or mapping: those of its distributed tensors, and of DistributedDataParallel."""
    gather_up(weights_or_model)
    spread = [tensor for tensor in _tensors(weights_or_model) if is_spread(tensor)]
    modules = weights_or_model.modules() if isinstance(weights_or_model, nn.Module) else ()
    replicas = [module for module in modules if isinstance(module, nn.parallel.DistributedDataParallel)]
    if not spread and not replicas:
        return Alone()
    ranks: Ranks = import_module("lamplighter.distributed.agreement").ranks_of(spread, replicas)
    return ranks


def _tensors(weights_or_model: object) -> Iterator[Tensor]:
    if isinstance(weights_or_model, nn.Module):
        yield from weights_or_model.parameters()
    elif isinstance(weights_or_model, Mapping):
        yield from (each for each in weights_or_model.values() if isinstance(each, Tensor))
