"""What a round of a run came to: one line of JSON."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from lamplighter.errors import LamplighterError

Metric = Literal["accuracy", "perplexity", "none"]


@dataclass(frozen=True)
class Record:
    """One round: the network was pruned to `kept` weights, trained for `steps` steps, and tested.

    Args:
        round: 0 for the dense network.
        kept: weights left of those that count.
        total: weights that count.
        budgets: layer -> weights left.
        sizes: layer -> weights.
        metric: what `value` is; "none" where nothing was tested.
        value: the fraction of test images classified correctly, or the perplexity on the test text.
        loss: mean loss on the test data.
        train_loss: mean loss of the last hundred training steps.
        steps: optimizer steps of this round.
        seconds: spent in them, all networks that trained side by side together.
        together: how many networks trained side by side.
        device: the hardware, such as "NVIDIA H200".
    """

    round: int
    kept: int
    total: int
    budgets: dict[str, int]
    sizes: dict[str, int]
    metric: Metric
    value: float
    loss: float
    train_loss: float
    steps: int
    seconds: float
    together: int
    device: str

    @property
    def density(self) -> float:
        """The fraction of the weights that are left."""
        return self.kept / self.total

    @property
    def steps_per_second(self) -> float:
        """Of this network alone; times `together` for all."""
        return self.steps / self.seconds if self.seconds else 0.0

    def to_line(self) -> str:
        """One line of JSON, its end included."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Self:
        """The record of a line that `to_line` wrote."""
        try:
            data: dict[str, Any] = json.loads(line)
            return cls(**{each.name: data[each.name] for each in fields(cls)})
        except (ValueError, KeyError, TypeError) as error:
            raise LamplighterError(f"a record cannot be read: {error}", "it was written by another version") from error
