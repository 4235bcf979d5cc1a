"""What a phase of training reports."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lamplighter.errors import LamplighterError


@dataclass(frozen=True, eq=False)
class Fitted:
    """A finished phase of training.

    Args:
        losses: mean loss of the batch of every step, float32 on the CPU.
        seconds: spent in steps; where several networks trained side by side, each has the time of all.
        preparation: seconds spent before the first step, compiling and recording.
    """

    losses: Tensor
    seconds: float
    preparation: float = 0.0

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return len(self.losses)

    @property
    def steps_per_second(self) -> float:
        """The rate, without the preparation."""
        return self.steps / self.seconds if self.seconds else 0.0


def check(losses: Tensor) -> None:
    """Refuse losses that are not numbers: what follows from such weights means nothing."""
    wrong = ~losses.isfinite()
    if wrong.any():
        step = int(wrong.to(torch.uint8).argmax())
        raise LamplighterError(
            f"training diverged: the loss is {losses[step].item()} in step {step}",
            "lower the learning rate, or clip the gradients",
        )
