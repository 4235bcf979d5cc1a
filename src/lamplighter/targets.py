"""Which weights are prunable, and what a layer is."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lamplighter.candidates import Candidate, survey
from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.naming import closest, compile_glob, is_prunable_name, listed, natural_key, read_globs

__all__ = ["Layer", "find_layers", "find_named", "is_prunable_name", "natural_key"]

_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})


@dataclass(frozen=True, eq=False)
class Layer:
    """The weights that share one budget: a parameter, or one expert's slice of a stacked parameter.

    Args:
        name: the parameter's full name, with `[e]` appended for expert `e`.
        parameter: the whole parameter.
        expert: which slice of the parameter, or None for all of it.
        output_axis: the axis of `weight` that indexes outputs.
    """

    name: str
    parameter: Tensor
    expert: int | None = None
    output_axis: int = 0

    @property
    def weight(self) -> Tensor:
        """The weights themselves, detached, in the parameter's own memory.

        An expert of a stack that lies in several processes (see `parts`) has no tensor of its own: its shape and dtype
        alone, since to cut it out of the stack would gather it.
        """
        whole = self.parameter.detach()
        if self.expert is not None and hasattr(whole, "placements"):
            return torch.empty(self.shape, dtype=whole.dtype, device="meta")
        return whole if self.expert is None else whole[self.expert]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the layer, wherever its weights are."""
        return tuple(self.parameter.shape if self.expert is None else self.parameter.shape[1:])

    @property
    def parameter_name(self) -> str:
        """The full name of the parameter, without the expert."""
        return self.name if self.expert is None else self.name.removesuffix(f"[{self.expert}]")


@dataclass(frozen=True, eq=False)
class _Offer:
    """A layer that could be chosen, and the names that globs may know it by."""

    layer: Layer
    names: tuple[str, ...]
    source: Candidate


def find_layers(
    weights_or_model: nn.Module | Mapping[str, Tensor],
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
) -> list[Layer]:
    """The layers that count, in natural order of their names.

    Of a Module: the weights of Linear, convolutions and transposed convolutions, Hugging Face `Conv1D`, the projections
    of `MultiheadAttention` (`in_proj_weight` is one layer), and expert stacks, every expert a layer of its own named
    `name[e]`. A module of another type is judged by the name and shape of what it holds (`is_prunable_name`). Biases,
    norms, embeddings and heads tied to an embedding do not count, nor do the weights of recurrent layers and `Bilinear`
    unless `include` chooses them. A weight shared by several modules counts once, under the first of its names in the
    order of `named_parameters()`; globs match any of its names. `requires_grad` plays no part. Weights computed from
    others (`torch.nn.utils.parametrize`, `weight_norm`, `torch.nn.utils.prune`) are left out with a warning.
    Quantised weights are refused unless excluded. `torch.compile`, `DistributedDataParallel` and `DataParallel` are
    looked through.

    Of a Mapping: every entry, expert stacks split as above. Entries that are one tensor in memory count once, under the
    first of their names. Nothing says which axis is which, so outputs are taken to be on the first of a matrix.

    Args:
        weights_or_model: a Module, or a mapping of names to tensors.
        include: globs on parameter or layer names that replace the default choice.
        exclude: globs on parameter or layer names to remove from it.

    >>> [layer.name for layer in find_layers(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)))]
    ['0.weight', '2.weight']
    """
    return choose_layers(survey(weights_or_model), include, exclude, type(weights_or_model).__name__)


def choose_layers(
    candidates: Iterable[Candidate],
    include: str | Iterable[str] | None,
    exclude: str | Iterable[str] | None,
    where: str,
    check: Callable[[Layer, str], None] | None = None,
) -> list[Layer]:
    """The layers that count of what could be chosen, in natural order of their names.

    Args:
        candidates: what could be chosen.
        include: globs on parameter or layer names that replace the default choice.
        exclude: globs on parameter or layer names to remove from it.
        where: what they are of, as an error calls it.
        check: raises an error for a layer that cannot be pruned, given what its weight is packed in.
    """
    offers = [offer for candidate in candidates for offer in _offers_of(candidate)]
    chosen = _choose(offers, include, exclude)
    layers = [offer.layer for offer in chosen if not offer.source.computed]
    computed = sorted({offer.layer.name for offer in chosen if offer.source.computed}, key=natural_key)
    if not layers:
        raise _nothing_prunable(where, offers, computed, chose=include is not None or exclude is not None)
    for offer in {id(offer.layer.parameter): offer for offer in reversed(chosen) if not offer.source.computed}.values():
        (check or _check_usable)(offer.layer, offer.source.packed_in)
    if computed:
        warnings.warn(
            f"left out, because they are computed from other parameters: {listed(computed)} "
            "(to prune them, make them plain parameters first)",
            LamplighterWarning,
            stacklevel=1 + _frames_of_our_own(),
        )
    return sorted(layers, key=lambda layer: natural_key(layer.name))


def find_named(weights_or_model: nn.Module | Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Layer]:
    """The layers of these names; names that a model does not have are absent, weights computed from others too.

    An error for a weight that cannot be read: lazy, on the meta device, quantised.
    """
    known: dict[str, Layer] = {}
    for candidate in survey(weights_or_model):
        for offer in () if candidate.computed or candidate.packed_in else _offers_of(candidate):
            suffix = "" if offer.layer.expert is None else f"[{offer.layer.expert}]"
            known |= {name + suffix: offer.layer for name in candidate.names}
    found = {name: known[name] for name in names if name in known}
    for layer in {id(layer.parameter): layer for layer in found.values()}.values():
        _check_usable(layer, "")
    return found


def _offers_of(candidate: Candidate) -> list[_Offer]:
    parameter, names, axis = candidate.parameter, candidate.names, candidate.output_axis
    if "stack" not in candidate.kinds or candidate.computed:
        return [_Offer(Layer(names[0], parameter, output_axis=axis), tuple(names), candidate)]
    return [
        _Offer(
            Layer(f"{names[0]}[{expert}]", parameter, expert, axis),
            (*names, *(f"{name}[{expert}]" for name in names)),
            candidate,
        )
        for expert in range(parameter.shape[0])
    ]


def _choose(
    offers: list[_Offer], include: str | Iterable[str] | None, exclude: str | Iterable[str] | None
) -> list[_Offer]:
    if include is None:
        chosen = [offer for offer in offers if offer.source.prunable]
    else:
        chosen = _matching(read_globs(include, "include"), offers, "include")
    unwanted = {offer.layer.name for offer in _matching(read_globs(exclude, "exclude"), offers, "exclude")}
    return [offer for offer in chosen if offer.layer.name not in unwanted]


def _matching(patterns: list[str], offers: list[_Offer], option: str) -> list[_Offer]:
    matched: set[str] = set()
    for pattern in patterns:
        glob = compile_glob(pattern)
        hits = {offer.layer.name for offer in offers if any(glob.match(name) for name in offer.names)}
        if not hits:
            known = dict.fromkeys(name for offer in offers for name in offer.source.names)
            raise LamplighterError(f"{option} pattern {pattern!r} matches no parameter", closest(pattern, known))
        matched |= hits
    return [offer for offer in offers if offer.layer.name in matched]


def _frames_of_our_own() -> int:
    """How many calls inside this package led to the caller of this function: so deep does a user's call lie.

    A warning that points at the user's line is shown once for each such line; one that points at ours, once in all.
    """
    frame, count = sys._getframe(1), 0
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame, count = frame.f_back, count + 1
    return count


def _check_usable(layer: Layer, packed_in: str) -> None:
    tensor = layer.parameter
    if packed_in:
        raise _unsupported(layer, f"packed inside a {packed_in}")
    if is_lazy(tensor):
        raise LamplighterError(
            f"layer {layer.name!r} has no shape yet: its module is lazy", "run the model on one batch before pruning it"
        )
    if tensor.is_meta:
        raise LamplighterError(
            f"layer {layer.name!r} is on the meta device: it has a shape, but no values", "load the weights first"
        )
    # DTensor is a plain tensor in parts; any other wrapper may hold something else than it says (quantised weights do).
    given: object = tensor
    if is_traceable_wrapper_subclass(given) and type(given).__name__ != "DTensor":
        raise _unsupported(layer, f"a {type(tensor).__module__}.{type(tensor).__name__}")
    if tensor.dtype not in _FLOATS:
        raise _unsupported(layer, f"stored as {tensor.dtype}")
    if tensor.layout != torch.strided:
        raise _unsupported(layer, f"stored with layout {tensor.layout}")
    if tensor.dim() == 0:
        raise _unsupported(layer, "a single number without dimensions")


def _unsupported(layer: Layer, found: str) -> LamplighterError:
    return LamplighterError(
        f"layer {layer.name!r} is {found}; expected a dense tensor of float64, float32, float16 or bfloat16",
        f"convert it first, leave it out with exclude={layer.parameter_name!r}, or choose the weights with include "
        "(of a state dict every entry counts; of a model only its prunable weights)",
    )


def _nothing_prunable(kind: str, offers: list[_Offer], computed: list[str], *, chose: bool) -> LamplighterError:
    if computed:
        return LamplighterError(
            f"nothing to prune in {kind}: all chosen weights are computed from others ({listed(computed)})",
            "make them plain parameters first (torch.nn.utils.parametrize.remove_parametrizations, "
            "torch.nn.utils.remove_weight_norm, torch.nn.utils.prune.remove)",
        )
    names = list(dict.fromkeys(name for offer in offers for name in offer.source.names[:1]))
    if not names:
        return LamplighterError(f"nothing to prune in {kind}: it is empty", "pass a model with parameters")
    there = f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
    if chose:
        return LamplighterError(
            f"nothing to prune in {kind}: include and exclude leave none of {there}",
            "include replaces the default choice, exclude removes from it",
        )
    return LamplighterError(
        f"nothing to prune in {kind}: none of its parameters is the weight of a linear layer or a convolution",
        f"choose parameters with include; there are {there}",
    )
