"""Pruning over time: train, prune, rewind or fine-tune, and again, driven by the caller's own loop."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lamplighter import bits
from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.masks import Masks
from lamplighter.pruning import allocate, prune
from lamplighter.schedules import Schedule, geometric, sparsities
from lamplighter.scores import SCORES, find_score, importances
from lamplighter.targets import Layer, find_layers
from lamplighter.training.rewinding import restore, snapshot

_REWINDS = (None, "init", "saved")


@dataclass(frozen=True, eq=False)
class Round:
    """One training phase, and what was pruned before it.

    Args:
        index: 0 for the dense phase, then 1, 2, ...
        sparsity: the fraction removed that the schedule asks for (`masks.sparsity` is exact).
        masks: what is kept, in the dense phase everything; they know their weights, so `masks.hold(optimizer)` works in
            every round.
    """

    index: int
    sparsity: float
    masks: Masks
    _save: Callable[[], None] = field(repr=False)

    @property
    def density(self) -> float:
        """The fraction kept."""
        return 1.0 - self.sparsity

    @property
    def budgets(self) -> dict[str, int]:
        """How many weights each layer keeps."""
        return self.masks.kept

    def save_rewind_point(self) -> None:
        """Let later rounds rewind to the state that the model is in now. For the dense phase, and `rewind="saved"`.

        Where rounds do not rewind to a saved state, this does nothing.
        """
        self._save()


@dataclass(eq=False)
class _Plan:
    """What `rounds` was asked for, checked, and the state to rewind to."""

    model: nn.Module
    optimizer: Optimizer | None
    sparsities: list[float]
    open_ended: bool
    masks: Masks | None
    rewind: str | None
    evidence: Any
    options: dict[str, Any]
    saved: dict[str, Tensor] | None = None


def rounds(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    schedule: Schedule | Sequence[float] | None = None,
    count: int | None = None,
    method: Any = "lamp",  # noqa: ANN401  (as `prune`)
    score: Any = "magnitude",  # noqa: ANN401
    evidence: Any = None,  # noqa: ANN401
    masks: Masks | None = None,
    rewind: str | None = None,
    **options: Any,  # noqa: ANN401
) -> Iterator[Round]:
    """Yield once before each training phase: the dense one first, then one after each pruning.

    Before round t the model is pruned to `schedule(t)`, ranked by the weights as trained until then. What one round
    prunes, no later one revives. With an optimizer, the masks are held on it; without, make a new optimizer in each
    round, the dense phase included, and call `round.masks.hold(optimizer)`. An optimizer keeps its own state (momentum
    and the like) over pruning and rewinding. What can be found wrong beforehand is an error at once, not after the
    dense phase: the first pruning is rehearsed, and the last unless a function goes on without `count`.

    Args:
        model: the model that the caller trains.
        optimizer: the optimizer that trains it in all rounds, if it is always the same.
        schedule: round -> sparsity, or the sparsities themselves; 20 % of the survivors a round if not given.
        count: how many times to prune. If not given, as often as `schedule` lists sparsities, or until a function has
            reached the sparsity it stays at, `schedule(10**9)`, or nothing is left; break off the loop at will.
        method: as for `prune`.
        score: as for `prune`.
        evidence: as for `prune`, or a function of the model that collects it anew before each pruning.
        masks: what was pruned before; nothing of it comes back.
        rewind: None to train on from the pruned weights; "init" to return every parameter and buffer to its state at
            this call, or "saved" to the state at `round.save_rewind_point()`, before the masks are applied.
        options: the other options of `prune`, such as `exclude` or `min_density`.

    >>> model = nn.Linear(10, 10)
    >>> for round in rounds(model, schedule=[0.5, 0.9]):
    ...     print(round.index, round.sparsity, round.budgets)
    0 0.0 {'weight': 100}
    1 0.5 {'weight': 50}
    2 0.9 {'weight': 10}
    """
    if not isinstance(model, nn.Module):
        raise LamplighterError(
            f"model is a {type(model).__name__}; expected a Module", "pass the torch.nn.Module that you train, first"
        )
    schedule = geometric() if schedule is None else schedule
    asked, open_ended = sparsities(schedule, count), callable(schedule) and count is None
    unknown = options.keys() - inspect.signature(prune).parameters.keys()
    if unknown or "weights_or_model" in options or "sparsity" in options:
        wrong = sorted(unknown) or [name for name in ("weights_or_model", "sparsity") if name in options]
        raise TypeError(f"rounds() got options that it cannot pass to prune(): {', '.join(wrong)}")
    if rewind not in _REWINDS:
        raise LamplighterError(f"rewind is {rewind!r}; expected None, 'init' or 'saved'", "see the docstring of rounds")
    options = {"method": method, "score": score, **options}
    plan = _Plan(model, optimizer, asked, open_ended, masks, rewind, evidence, options)
    layers = _rehearse(plan)
    if rewind == "init":
        plan.saved = snapshot(model)
    if masks is None:
        return _rounds(plan, _everything(layers))
    masks.apply(model)
    _hold(masks, optimizer)
    return _rounds(plan, masks)


def _everything(layers: Sequence[Layer]) -> Masks:
    """The masks of a dense model."""
    shapes = {layer.name: tuple(layer.weight.shape) for layer in layers}
    packed = {name: bits.pack(torch.ones(shape, dtype=torch.bool)) for name, shape in shapes.items()}
    masks = Masks.from_packed(packed, shapes)
    masks.bind({layer.name: layer for layer in layers})
    return masks


def _rounds(plan: _Plan, masks: Masks) -> Iterator[Round]:
    def save() -> None:
        if plan.rewind == "saved":
            plan.saved = snapshot(plan.model)

    yield Round(0, masks.sparsity, masks, save)
    if plan.rewind == "saved" and plan.saved is None:
        raise LamplighterError(
            "rewind='saved', but no rewind point was saved in the dense phase",
            "call round.save_rewind_point() at the step to rewind to, in round 0",
        )
    for index, sparsity in enumerate(plan.sparsities, start=1):
        masks = _prune(plan, sparsity, masks)
        yield Round(index, sparsity, masks, _too_late)
        if plan.open_ended and not masks.total_kept:
            return


def _prune(plan: _Plan, sparsity: float, masks: Masks) -> Masks:
    """Prune by the weights as they are, then rewind, then mask what the rewind brought back."""
    evidence = plan.evidence(plan.model) if callable(plan.evidence) else plan.evidence
    pruned = prune(plan.model, sparsity, evidence=evidence, masks=masks, **plan.options)
    masks.release()
    if plan.saved is not None:
        restore(plan.model, plan.saved)
        pruned.apply(plan.model)
    _hold(pruned, plan.optimizer)
    return pruned


def _hold(masks: Masks, optimizer: Optimizer | None) -> None:
    if optimizer is not None:
        masks.hold(optimizer)


def _too_late() -> None:
    raise LamplighterError(
        "the rewind point can be saved in the dense phase only", "call round.save_rewind_point() when round.index is 0"
    )


def _rehearse(plan: _Plan) -> list[Layer]:
    """Find now what would otherwise fail only after the dense phase: allocate for the first and the last pruning.

    For the first alone where the caller may break off before the last. Magnitudes stand in for a score whose evidence
    is yet to come: what the options ask of layers is the same for all.
    """
    asked = plan.sparsities[:1] if plan.open_ended else [plan.sparsities[0], plan.sparsities[-1]]
    score = plan.options["score"]
    options = {**plan.options, "score": "magnitude"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LamplighterWarning)
        layers = find_layers(plan.model, options.get("include"), options.get("exclude"))
        for sparsity in dict.fromkeys(asked):
            allocate(plan.model, sparsity, masks=plan.masks, **options)
    find_score(score)
    if isinstance(score, str) and score in SCORES and not callable(plan.evidence):
        for layer in layers:
            importances(score, [layer], plan.evidence)
    if plan.optimizer is not None:
        _check_owner(plan.optimizer, {layer.name: layer.parameter for layer in layers})
    return layers


def _check_owner(optimizer: Optimizer, parameters: dict[str, Tensor]) -> None:
    if not isinstance(optimizer, Optimizer):
        raise LamplighterError(
            f"optimizer is a {type(optimizer).__name__}; expected a torch.optim.Optimizer",
            "leave it out to make a new one in each round and call round.masks.hold(optimizer)",
        )
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    foreign = [name for name, each in parameters.items() if each.requires_grad and id(each) not in owned]
    if foreign:
        raise LamplighterError(
            f"the optimizer does not train {', '.join(foreign[:3])}", "make the optimizer of this model's parameters"
        )
