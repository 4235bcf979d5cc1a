"""What a run computes, decided to the last setting, and the name that follows from it."""

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal, Self

from lamplighter.errors import LamplighterError
from lamplighter.training.settings import Settings

DENSE = "dense"
Plan = Literal["iterative", "one-shot", "rewind", "untrained", "profile"]
# How a run is carried out, not what it computes: two runs that differ in these alone are the same run.
_EXECUTION = ("compiled", "autotune", "graph")


@dataclass(frozen=True)
class Spec:
    """One network, pruned one way, from one seed, over any number of rounds.

    Round 0 is the dense network, which has a run of its own: all methods of a seed share it. Round t leaves
    (1 - rate)^t of the weights that count.

    Args:
        recipe: the experiment it belongs to.
        model: a name in `models.MODELS`.
        dataset: a name in the catalog.
        retrain: the training after each pruning.
        dense: the training before any.
        method: the allocation method, or "dense".
        seed: of the initial weights, the order of the data and its augmentation.
        plan: "iterative": prune the last round's network, train on. "one-shot": prune the dense network, train once.
            "rewind": prune the last round's network, return what is left to an early step of the dense training, train.
            "untrained": prune the initial network, train once. "profile": prune a network that comes trained.
        score: what ranks the weights.
        rate: the share of the surviving weights that a round removes.
        rewind_step: of "rewind", the step of the dense training to return to.
        include: globs of the layers that count, if not the default choice.
        options: of the model's constructor.
    """

    recipe: str
    model: str
    dataset: str
    dense: Settings
    retrain: Settings
    method: str = DENSE
    seed: int = 0
    plan: Plan = "iterative"
    score: str = "magnitude"
    rate: float = 0.2
    rewind_step: int = 0
    include: tuple[str, ...] = ()
    options: dict[str, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The name of the run's folder: method, seed, and a hash of every setting that differs from its default."""
        digest = hashlib.sha256(json.dumps(_decided(self), sort_keys=True).encode()).hexdigest()
        return f"{self.method}-{self.seed}-{digest[:10]}"

    @property
    def shared(self) -> Self:
        """The run of the dense network that this run starts from: the same for all methods."""
        decided = self.recipe, self.model, self.dataset, self.dense, Settings(steps=0)
        return type(self)(*decided, seed=self.seed, include=self.include, options=self.options)

    def density(self, index: int) -> float:
        """The fraction of the weights that are left after a round.

        >>> round(Spec("r", "m", "d", Settings(steps=1), Settings(steps=1)).density(3), 3)
        0.512
        """
        return float((1 - self.rate) ** index)

    def to_json(self) -> dict[str, Any]:
        """Every setting, for the run's folder."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The spec that `to_json` described."""
        try:
            phases = {phase: Settings(**_tuples(data[phase])) for phase in ("dense", "retrain")}
            return cls(**{**_tuples(data), **phases})
        except (KeyError, TypeError) as error:
            raise LamplighterError(
                f"a run's spec cannot be read: {error}", "it was written by another version"
            ) from error


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def _decided(part: Spec | Settings) -> dict[str, Any]:
    """The settings that differ from their defaults: a setting added later changes no name of a run made before."""
    found: dict[str, Any] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if each.name not in _EXECUTION and value != default:
            found[each.name] = _decided(value) if isinstance(value, Settings) else value
    return found
