"""How a network is trained: one frozen record, its checks, and the learning rate at every step."""

from dataclasses import dataclass
from typing import Literal

from lamplighter.errors import LamplighterError
from lamplighter.naming import closest

_CHOICES = {"optimizer": ("adamw", "adam", "sgd"), "precision": ("fp32", "tf32", "bf16")}


@dataclass(frozen=True)
class Settings:
    """One phase of training. The defaults are those of the paper on CIFAR-10.

    Args:
        steps: optimizer steps.
        batch: images, or columns of text, per step. The last incomplete batch of an epoch is dropped.
        optimizer: "adamw" (decay apart from the gradient), "adam" (decay added to the gradient) or "sgd".
        lr: learning rate, before warm-up and drops.
        weight_decay: as the optimizer of that name in PyTorch takes it.
        momentum: of "sgd".
        warmup: steps over which the learning rate rises linearly to `lr`.
        drops: fractions of `steps` after which the learning rate is a tenth of what it was.
        clip: the largest norm of all gradients together; larger ones are scaled down to it.
        padding: pixels of black around an image before a random crop of its size.
        flip: mirror every other image, at random.
        crop: cut out a random part of the image and resize it to this size (for photographs; then no padding).
        length: words per segment of text.
        precision: "fp32"; "tf32", fp32 with the multiplication units' shorter mantissa; "bf16", autocast with fp32
            master weights. The last two change speed on GPUs and the rounding everywhere.
        compiled: compile the loss and its gradient with `torch.compile`.
        autotune: let the compiler try several kernels for each operation.
        graph: record steps once as a CUDA graph and replay it.
    """

    steps: int
    batch: int = 100
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: float = 3e-4
    weight_decay: float = 0.01
    momentum: float = 0.9
    warmup: int = 0
    drops: tuple[float, ...] = ()
    clip: float | None = None
    padding: int = 4
    flip: bool = True
    crop: int | None = None
    length: int = 70
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    compiled: bool = False
    autotune: bool = False
    graph: bool = False

    def __post_init__(self) -> None:
        for field, choices in _CHOICES.items():
            value = getattr(self, field)
            if value not in choices:
                raise LamplighterError(f"{field} is {value!r}", closest(str(value), choices))
        for field, least in (("steps", 0), ("batch", 1), ("warmup", 0), ("padding", 0), ("length", 1)):
            if getattr(self, field) < least:
                raise LamplighterError(f"{field} is {getattr(self, field)}, expected {least} or more")
        if not all(0 <= drop <= 1 for drop in self.drops):
            raise LamplighterError(f"drops are {self.drops}, expected fractions of the steps, 0 to 1")


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate of a step, counted from 0.

    >>> [learning_rate(Settings(steps=8, lr=1.0, warmup=2, drops=(0.5,)), step) for step in (0, 1, 3, 4)]
    [0.5, 1.0, 1.0, 0.1]
    """
    rising = min(1.0, (step + 1) / settings.warmup) if settings.warmup else 1.0
    dropped = sum(step >= drop * settings.steps for drop in settings.drops)
    return settings.lr * rising * 0.1**dropped
