"""prune() and allocate(): layers, scores, spectra, budgets, selection and masks put together."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torch import Tensor, nn

from lamplighter import selection
from lamplighter.allocation import METHODS, Method, check_bounds
from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.masks import Masks
from lamplighter.naming import closest, compile_glob
from lamplighter.plugins import load_function
from lamplighter.reading import Tensors
from lamplighter.scores import importances
from lamplighter.spectra import Spectra
from lamplighter.targets import Layer, find_layers

Weights = nn.Module | Mapping[str, Tensor]
Score = str | Callable[[str, Tensor, Any], Tensor]
Globs = str | Iterable[str] | None
Densities = float | Mapping[str, float] | None


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
    {'small': 1, 'large': 2}
    >>> allocate(weights, sparsity=0.5, method="global", min_density={"small": 0.3})
    {'small': 1, 'large': 2}
    """
    layers = find_layers(weights_or_model, include, exclude)
    problem = _pose(layers, sparsity, score, evidence, masks)
    return _budgets(problem, method, pattern, _Constraints(min_density, max_density, densities))


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
        pattern: "row" (every output keeps the same count) or "N:M" such as "2:4" (of every M inputs N are kept).
        min_density: the least fraction a layer keeps, for all layers or by glob.
        max_density: the largest fraction a layer keeps, for all layers or by glob.
        densities: fixed fractions for some layers, by glob.

    >>> import torch
    >>> weights = {"w": torch.tensor([1.0, -3.0, 2.0, -4.0])}
    >>> masks = prune(weights, sparsity=0.5)
    >>> weights["w"], masks["w"]
    (tensor([ 0., -3.,  0., -4.]), tensor([False,  True, False,  True]))
    """
    layers = find_layers(weights_or_model, include, exclude)
    problem = _pose(layers, sparsity, score, evidence, masks)
    budgets = _budgets(problem, method, pattern, _Constraints(min_density, max_density, densities))
    in_place = all(problem.source.tensors[layer.name] is weight for layer, weight in problem.weights)
    if pattern is None:
        packed = selection.select(problem.source, problem.spectra.cuts(budgets), erase=in_place)
    else:
        packed = _select_pattern(problem, budgets, pattern)
    if not in_place or pattern is not None:
        selection.erase({layer.name: weight for layer, weight in problem.weights}, packed)
    result = Masks.from_packed(packed, {layer.name: tuple(weight.shape) for layer, weight in problem.weights})
    result.bind({layer.name: layer for layer in problem.layers})
    return result


@dataclass(frozen=True, eq=False)
class _Problem:
    """What is asked: layers with their weights, what ranks them, and how many to keep."""

    weights: list[tuple[Layer, Tensor]]
    source: Tensors
    spectra: Spectra
    keep: int

    @property
    def layers(self) -> list[Layer]:
        return [layer for layer, _ in self.weights]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {layer.name: tuple(weight.shape) for layer, weight in self.weights}

    @property
    def sizes(self) -> dict[str, int]:
        return {layer.name: weight.numel() for layer, weight in self.weights}


@dataclass(frozen=True)
class _Constraints:
    """Densities that the user asks of some layers or all."""

    least: Densities
    most: Densities
    fixed: Mapping[str, float] | None


def _pose(
    layers: list[Layer],
    sparsity: float,
    score: Score,
    evidence: Any,  # noqa: ANN401
    masks: Masks | None,
) -> _Problem:
    removed = _checked_fraction(sparsity, "sparsity")
    if masks is not None:
        if not isinstance(masks, Masks):
            raise LamplighterError(f"masks is a {type(masks).__name__}, expected Masks", "wrap it: ll.Masks(...)")
        masks.check_layers(layers)
    weights = [(layer, layer.weight) for layer in layers]
    scores = importances(score, layers, evidence)
    tensors = {layer.name: weight if score == "magnitude" else scores[layer.name] for layer, weight in weights}
    alive = {} if masks is None else {n: bits.to(tensors[n].device) for n, bits in masks.packed.items()}
    source = Tensors(tensors, alive)
    spectra = Spectra(source)
    total = sum(weight.numel() for _, weight in weights)
    keep = total - round(removed * total)
    living = sum(spectrum.size for spectrum in spectra.values())
    if keep > living:
        raise LamplighterError(
            f"sparsity {sparsity} keeps {keep:,} of {total:,} weights, but only {living:,} are still alive",
            f"weights pruned earlier do not come back: ask for a sparsity of at least {1 - living / total:.6g}",
        )
    return _Problem(weights, source, spectra, keep)


def _budgets(problem: _Problem, method: str | Method, pattern: str | None, constraints: _Constraints) -> dict[str, int]:
    spectra, keep = problem.spectra, problem.keep
    spectra.bounds = _bounds(problem, constraints)
    allocation = _method(method)
    if pattern is not None and (groups := selection.parse_pattern(pattern)) is not None:
        budgets = _group_budgets(problem, *groups)
    else:
        check_bounds(spectra.bounds, keep, "with the densities asked for")
        budgets = _checked(allocation(spectra, problem.shapes, keep), spectra, keep)
        if pattern == "row":
            budgets = _whole_rows(problem, budgets)
    emptied = [n for n, b in budgets.items() if b == 0 and spectra[n].size]
    if emptied and keep:
        warnings.warn(
            f"{len(emptied)} of {len(budgets)} layers are left without any weight: {', '.join(emptied)}",
            LamplighterWarning,
            stacklevel=3,
        )
    return budgets


def _checked_fraction(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise LamplighterError(f"{what} is {value!r}, expected a number from 0 to 1", f"for example {what}=0.9")
    return value


def _method(method: str | Method) -> Method:
    if callable(method):
        return method
    if isinstance(method, str) and ":" in method:
        return load_function(method, "method")
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise LamplighterError(
            f"unknown method {method!r}; the methods are {known}",
            closest(str(method), METHODS) + ' (or pass a function, or "module:function")',
        )
    return METHODS[method]


def _bounds(problem: _Problem, constraints: _Constraints) -> dict[str, tuple[int, int]]:
    """How few and how many weights each layer may keep."""
    sizes = problem.sizes
    least = _densities(constraints.least, sizes, "min_density")
    most = _densities(constraints.most, sizes, "max_density")
    fixed = _densities(constraints.fixed, sizes, "densities")
    bounds = {}
    for name, spectrum in problem.spectra.items():
        size, alive = sizes[name], spectrum.size
        floor = math.ceil(least[name] * size) if name in least else 0
        cap = min(alive, math.floor(most[name] * size)) if name in most else alive
        if name in fixed:
            floor = round(fixed[name] * size)
            cap = min(alive, floor)
        bounds[name] = (floor, cap)
    return bounds


def _densities(given: Densities, sizes: Mapping[str, int], what: str) -> dict[str, Fraction]:
    """Densities by layer, as the decimal fractions that the user wrote."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        given = dict.fromkeys(sizes, given)
        return {name: _decimal(density, what) for name, density in given.items()}
    found: dict[str, Fraction] = {}
    for glob, density in given.items():
        pattern = compile_glob(glob)
        names = [name for name in sizes if pattern.match(name)]
        if not names:
            raise LamplighterError(f"{what} names {glob!r}, which is none of the layers", closest(glob, sizes))
        found |= dict.fromkeys(names, _decimal(density, f"{what}[{glob!r}]"))
    return found


def _decimal(density: object, what: str) -> Fraction:
    return Fraction(str(_checked_fraction(density, what)))


def _checked(budgets: Mapping[str, int], spectra: Spectra, keep: int) -> dict[str, int]:
    """What a method returned, in layer order; an error if it is not what a method must return."""
    hint = "a method returns {layer: how many weights it keeps}, in whole numbers that sum to `keep`"
    if not isinstance(budgets, Mapping):
        raise LamplighterError(f"the method returned a {type(budgets).__name__}, expected a mapping", hint)
    if budgets.keys() != spectra.keys():
        odd = sorted(budgets.keys() ^ spectra.keys())
        raise LamplighterError(f"the method's budgets are not of the layers that count: {', '.join(odd[:3])}", hint)
    for name, budget in budgets.items():
        if isinstance(budget, bool) or not isinstance(budget, int):
            raise LamplighterError(f"the method keeps {budget!r} weights of {name}, expected a whole number", hint)
        floor, cap = spectra.bounds[name]
        if not floor <= budget <= cap:
            raise LamplighterError(
                f"the method keeps {budget:,} weights of {name}, expected {floor:,} to {cap:,}", hint
            )
    total = sum(budgets.values())
    if total != keep:
        raise LamplighterError(f"the method keeps {total:,} weights in all, expected {keep:,}", hint)
    return {name: budgets[name] for name in spectra}


def _group_budgets(problem: _Problem, n: int, m: int) -> dict[str, int]:
    """N of every M inputs: the same density everywhere."""
    budgets = {}
    for layer, weight in problem.weights:
        row = weight.numel() // max(weight.shape[layer.output_axis], 1)
        if row % m:
            raise LamplighterError(
                f"{layer.name} has {row:,} inputs for each output, which is no multiple of {m}",
                f"leave it out: exclude={layer.name!r}",
            )
        budgets[layer.name] = weight.numel() // m * n
    total = sum(budgets.values())
    if problem.keep != total:
        raise LamplighterError(
            f'pattern "{n}:{m}" keeps {total:,} weights, but the sparsity asks to keep {problem.keep:,}',
            f"use sparsity={1 - n / m:.6g}",
        )
    for layer, weight in problem.weights:
        name, budget = layer.name, budgets[layer.name]
        alive = problem.source.alive.get(name)
        if alive is not None and (least := selection.fewest_alive(weight.shape, alive, m, layer.output_axis)) < n:
            raise LamplighterError(
                f'pattern "{n}:{m}" keeps {n} of every {m} inputs, but of some in {name} only {least} are alive',
                "weights pruned earlier do not come back: prune with this pattern from the first round on",
            )
        floor, cap = problem.spectra.bounds[name]
        if not floor <= budget <= cap:
            raise LamplighterError(
                f'pattern "{n}:{m}" keeps {budget:,} weights of {name}, expected {floor:,} to {cap:,}',
                "weights pruned earlier do not come back; densities asked for must agree with the pattern",
            )
    return budgets


def _whole_rows(problem: _Problem, budgets: dict[str, int]) -> dict[str, int]:
    """The nearest budgets that give every row of a layer the same count, as far as their sum allows."""
    rows = {layer.name: max(weight.shape[layer.output_axis], 1) for layer, weight in problem.weights}
    bounds = problem.spectra.bounds
    whole = {n: max(b // rows[n] * rows[n], bounds[n][0]) for n, b in budgets.items()}
    left = sum(budgets.values()) - sum(whole.values())
    while left:
        room = {n: min(bounds[n][1] - whole[n], rows[n]) for n in budgets if bounds[n][1] > whole[n]}
        fitting = [n for n in room if room[n] == rows[n] <= left]
        chosen = max(fitting or room, key=lambda n: (budgets[n] - whole[n]) / rows[n])
        more = min(room[chosen], left)
        whole[chosen] += more
        left -= more
    return whole


def _select_pattern(problem: _Problem, budgets: Mapping[str, int], pattern: str) -> dict[str, Tensor]:
    groups = selection.parse_pattern(pattern)
    packed = {}
    for layer, _ in problem.weights:
        tensor, alive = problem.source.tensors[layer.name], problem.source.alive.get(layer.name)
        if groups is None:
            packed[layer.name] = selection.select_rows(tensor, alive, budgets[layer.name], layer.output_axis)
        else:
            packed[layer.name] = selection.select_groups(tensor, alive, *groups, layer.output_axis)
    return packed
