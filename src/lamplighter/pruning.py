"""prune() and allocate(): layers, scores, spectra, budgets, selection and masks put together."""

import reprlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral
from typing import Any

from torch import Tensor, nn

from lamplighter import selection
from lamplighter.allocation import METHODS, Method, check_bounds, check_order
from lamplighter.constraints import Constraints, Densities
from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.masks import Masks
from lamplighter.naming import listed
from lamplighter.patterns import check_rows_here, group_budgets, parse_pattern, select_pattern, whole_rows
from lamplighter.plugins import load_function
from lamplighter.problem import Problem, Score, pose
from lamplighter.ranks import ranks_of
from lamplighter.targets import Layer, find_layers

Weights = nn.Module | Mapping[str, Tensor]
Globs = str | Iterable[str] | None


def allocate(
    weights_or_model: Weights,
    sparsity: float,
    method: str | Method = "lamp",
    score: Score = "magnitude",
    *,
    evidence: Any = None,  # noqa: ANN401  (whatever the score needs)
    masks: Masks | None = None,
    include: Globs = None,
    exclude: Globs = None,
    pattern: str | None = None,
    min_density: Densities = None,
    max_density: Densities = None,
    densities: Mapping[str, float] | None = None,
) -> dict[str, int]:
    """How many weights of each layer `prune` would keep; nothing changes. The arguments are those of `prune`.

    >>> import torch
    >>> weights = {"small": torch.tensor([3.0, 1.0, 1.0]), "large": torch.tensor([300.0, 200.0, 100.0])}
    >>> allocate(weights, sparsity=0.5)
    {'large': 2, 'small': 1}
    >>> allocate(weights, sparsity=0.5, method="global", min_density={"small": 0.3})
    {'large': 2, 'small': 1}
    """
    request = Request(sparsity, method, score, pattern, Constraints(min_density, max_density, densities))
    problem = _posed(request, weights_or_model, include=include, exclude=exclude, evidence=evidence, masks=masks)
    budgets = budgets_of(problem, method, pattern, request.constraints)
    _warn_of_emptied(problem, budgets)
    return budgets


def prune(
    weights_or_model: Weights,
    sparsity: float,
    method: str | Method = "lamp",
    score: Score = "magnitude",
    *,
    evidence: Any = None,  # noqa: ANN401  (whatever the score needs)
    masks: Masks | None = None,
    include: Globs = None,
    exclude: Globs = None,
    pattern: str | None = None,
    min_density: Densities = None,
    max_density: Densities = None,
    densities: Mapping[str, float] | None = None,
) -> Masks:
    """Set the least important weights to zero, in place, and return the masks of what is kept.

    Exactly `round(sparsity * n)` of the n weights that count are removed, nothing else changes by a bit, and the result
    is the same on every device. If anything is wrong with the request, an error says so before a weight is touched.

    Args:
        weights_or_model: a Module (its prunable weights count), or a mapping of names to tensors (every entry counts).
        sparsity: the fraction to remove of all weights that count.
        method: how many each layer keeps: "lamp", "global", "uniform", "uniform+", "er", "erk", a function
            `(spectra, shapes, keep) -> {name: kept}`, or "module:function".
        score: what makes a weight important: "magnitude", "snip", "wanda", "random", a function
            `(name, weight, evidence) -> importance`, or "module:function".
        evidence: what the score needs (see `gradients` and `input_norms`).
        masks: what an earlier round kept; nothing that it pruned comes back.
        include: globs on parameter names that replace the default choice of layers.
        exclude: globs on parameter names to leave out.
        pattern: "row" (every output keeps the same count) or "N:M" such as "2:4" (of every M consecutive inputs of a
            matrix, or input channels of a convolution at each position of its kernel, N are kept).
        min_density: the least fraction a layer keeps, for all layers or by name or glob. Of several entries that match
            a layer its full name counts, or else the last glob: {"fc.weight": 0.5, "*": 0.1} asks 0.5 of `fc.weight`.
        max_density: the largest fraction a layer keeps, for all layers or by name or glob, chosen likewise.
        densities: fixed fractions for some layers, by name or glob, chosen likewise. `min_density` and `max_density`
            hold for these layers too: an error says where they contradict each other, and by how many weights.

    >>> import torch
    >>> weights = {"w": torch.tensor([1.0, -3.0, 2.0, -4.0])}
    >>> masks = prune(weights, sparsity=0.5)
    >>> weights["w"], masks["w"]
    (tensor([ 0., -3.,  0., -4.]), tensor([False,  True, False,  True]))
    """
    request = Request(sparsity, method, score, pattern, Constraints(min_density, max_density, densities))
    problem = _posed(request, weights_or_model, include=include, exclude=exclude, evidence=evidence, masks=masks)
    budgets = budgets_of(problem, method, pattern, request.constraints)
    _warn_of_emptied(problem, budgets)
    in_place = all(problem.source.tensors[layer.name] is weight for layer, weight in problem.weights)
    if pattern is None:
        cuts = problem.source.cuts_here(problem.spectra.cuts(budgets))
        packed = selection.select(problem.source, cuts, erase=in_place)
    else:
        packed = select_pattern(problem, budgets, pattern)
    if not in_place or pattern is not None:
        selection.erase({layer.name: weight for layer, weight in problem.weights}, packed)
    result = Masks.from_packed(packed, problem.shapes, problem.parts, budgets)
    result.bind({layer.name: layer for layer in problem.layers})
    return result


@dataclass(frozen=True)
class Request:
    """What is asked of layers, whatever they hold."""

    sparsity: float
    method: str | Method
    score: Score
    pattern: str | None
    constraints: Constraints

    def described(self, layers: Sequence[Layer], masks: Masks | None) -> dict[str, str]:
        """In words, by heading: what all processes that share a model must ask alike."""
        parameters = [(layer.name, layer.parameter) for layer in layers]
        return {
            "which layers count": repr([layer.name for layer in layers]),
            "the shapes of the layers": repr([(layer.name, layer.shape) for layer in layers]),
            "the dtypes of the layers": repr([(name, each.dtype) for name, each in parameters]),
            "how the layers are placed": repr(
                [(name, str(getattr(each, "placements", ""))) for name, each in parameters]
            ),
            "the sparsity": repr(self.sparsity),
            "the method": _called(self.method),
            "the score": _called(self.score),
            "the pattern": repr(self.pattern),
            "the densities": repr(self.constraints),
            "the masks": "none" if masks is None else repr(masks.kept),
        }


def _called(function: object) -> str:
    """What a method or score is called: the same in all processes, as an address is not."""
    return repr(function) if isinstance(function, str) else str(getattr(function, "__qualname__", type(function)))


def _posed(
    request: Request,
    weights_or_model: Weights,
    *,
    include: Globs,
    exclude: Globs,
    evidence: Any,  # noqa: ANN401
    masks: Masks | None,
) -> Problem:
    """The problem, if all processes that share the model pose the same."""
    ranks = ranks_of(weights_or_model)
    with ranks.together():
        layers = find_layers(weights_or_model, include, exclude)
    ranks.agree(lambda: request.described(layers, masks if isinstance(masks, Masks) else None))
    return pose(layers, request.sparsity, request.score, evidence=evidence, masks=masks, ranks=ranks)


def budgets_of(problem: Problem, method: str | Method, pattern: str | None, constraints: Constraints) -> dict[str, int]:
    """How many weights each layer keeps: by the pattern, or by the method within the constraints."""
    spectra, keep = problem.spectra, problem.keep
    bounds = constraints.bounds(spectra, problem.sizes)
    spectra.bounds = dict(bounds)
    allocation = find_method(method)
    if pattern is not None:
        check_rows_here(problem, pattern)
    if pattern is not None and (groups := parse_pattern(pattern)) is not None:
        check_order(bounds)
        budgets = group_budgets(problem, *groups)
    else:
        check_bounds(bounds, keep, "with the densities asked for")
        budgets = _checked(allocation(spectra, problem.shapes, keep), bounds, keep)
        spectra.bounds = bounds  # a method may have changed what it was given
        if pattern == "row":
            budgets = whole_rows(problem, budgets)
    return budgets


def _warn_of_emptied(problem: Problem, budgets: Mapping[str, int]) -> None:
    """Warn of layers that lose their last weight; not of those that were empty, or nothing but zeros, before."""
    if problem.keep == 0:
        return
    emptied = [
        layer.name
        for layer, weight in problem.weights
        if budgets[layer.name] == 0 and problem.spectra[layer.name].size and _anything(problem, layer, weight)
    ]
    if emptied:
        # Where prune or allocate was called.
        warnings.warn(said_of_emptied(emptied, len(budgets)), LamplighterWarning, stacklevel=3)


def _anything(problem: Problem, layer: Layer, weight: Tensor) -> bool:
    """Whether a layer has a weight that is not zero; of one that does not all lie here, an importance."""
    return problem.spectra[layer.name].nonzero > 0 if layer.name in problem.parts else bool(weight.any())


def said_of_emptied(emptied: Sequence[str], layers: int) -> str:
    """What a warning says of layers that are left without any weight."""
    return f"{len(emptied):,} of {layers:,} layers are left without any weight: {listed(emptied)}"


def find_method(method: str | Method) -> Method:
    """The method of a name, "module:function" or a function itself."""
    if callable(method):
        return method
    if isinstance(method, str) and ":" in method:
        return load_function(method, "method")
    if not isinstance(method, str) or method not in METHODS:
        near = get_close_matches(str(method).lower().replace("plus", "+"), METHODS, n=1)
        raise LamplighterError(
            f"unknown method {method!r}; the methods are {', '.join(METHODS)}",
            (f"did you mean {near[0]}? Or " if near else "") + 'pass a function, or "module:function"',
        )
    return METHODS[method]


def _checked(budgets: Mapping[str, Any], bounds: Mapping[str, tuple[int, int]], keep: int) -> dict[str, int]:
    """What a method returned, in layer order; an error if it is not what a method must return."""
    hint = "a method returns {layer: how many weights it keeps}, in whole numbers that sum to `keep`"
    if not isinstance(budgets, Mapping):
        raise LamplighterError(f"the method returned a {type(budgets).__name__}, expected a mapping", hint)
    if budgets.keys() != bounds.keys():
        odd = sorted(n if isinstance(n, str) else repr(n) for n in budgets.keys() ^ bounds.keys())
        raise LamplighterError(f"the method's budgets are not of the layers that count: {listed(odd)}", hint)
    checked = {}
    for name, (floor, cap) in bounds.items():
        if isinstance(budgets[name], bool) or not isinstance(budgets[name], Integral):
            given = reprlib.repr(budgets[name])
            raise LamplighterError(f"the method keeps {given} weights of {name}, expected a whole number", hint)
        checked[name] = int(budgets[name])
        if not floor <= checked[name] <= cap:
            raise LamplighterError(
                f"the method keeps {checked[name]:,} weights of {name}, expected {floor:,} to {cap:,}", hint
            )
    total = sum(checked.values())
    if total != keep:
        raise LamplighterError(f"the method keeps {total:,} weights in all, expected {keep:,}", hint)
    return checked
