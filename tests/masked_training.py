"""Training that is held at its masks, beside the same training with the masking written out by hand."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 20


@dataclass(frozen=True)
class Recipe:
    """How a step is made: everything but the model and the optimizer."""

    clip: float | None = None
    accumulate: int = 1
    autocast: torch.dtype | None = None
    scale: float | None = None
    set_to_none: bool = True


def convolutional() -> nn.Module:
    """Convolutions, a norm and biases: what is pruned beside what is not."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(54, 10),
    )  # fmt: skip


def linear(bias: bool = False) -> nn.Module:
    """Matrices only, which every optimizer accepts."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 24, bias), nn.ReLU(), nn.Linear(24, 16, bias), nn.ReLU(), nn.Linear(16, 10, bias)
    )


class Tied(nn.Module):
    """One matrix used in two places, and once under two names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter = nn.Linear(64, 16)
        self.one = nn.Linear(16, 16)
        self.two = nn.Linear(16, 16)
        self.two.weight = self.one.weight
        self.leave = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.enter(images.flatten(1)).relu()
        return self.leave(self.two(self.one(hidden).relu()).relu() + self.one(hidden))


def batches(steps: int = STEPS, seed: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """The same small batches every time."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield torch.randn(8, 1, 8, 8, generator=generator), torch.randint(0, 10, (8,), generator=generator)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    after_backward: Callable[[], None],
    after_step: Callable[[], None],
    *,
    steps: int = STEPS,
) -> None:
    """A plain training loop with a place to look in after each backward and after each step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=recipe.scale or 1.0, enabled=recipe.scale is not None)
    owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.zero_grad(set_to_none=recipe.set_to_none)
    for number, (images, labels) in enumerate(batches(steps * recipe.accumulate), start=1):
        with torch.autocast("cpu", recipe.autocast) if recipe.autocast else nullcontext():
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        after_backward()
        if number % recipe.accumulate:
            continue
        scaler.unscale_(optimizer)
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(owned, recipe.clip)
        scaler.step(optimizer)
        scaler.update()
        after_step()
        optimizer.zero_grad(set_to_none=recipe.set_to_none)


def assert_pruned_weights_are_zero(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Exactly +0.0, sign bit included."""
    for name, mask in masks.items():
        pruned = model.get_parameter(name).detach()[~mask]
        assert not pruned.any(), name
        assert not pruned.signbit().any(), name


def assert_pruned_gradients_are_zero(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    for name, mask in masks.items():
        gradient = model.get_parameter(name).grad
        assert gradient is None or not gradient[~mask].any(), name


def train_held(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    masks: Mapping[str, Tensor],
    recipe: Recipe,
    forward: nn.Module | None = None,
) -> None:
    """Train what `masks.hold` guards, checking after every backward and every step."""
    train(
        forward or model,
        optimizer,
        recipe,
        lambda: assert_pruned_gradients_are_zero(model, masks),
        lambda: assert_pruned_weights_are_zero(model, masks),
    )


def train_masked(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    masks: Mapping[str, Tensor],
    recipe: Recipe,
    forward: nn.Module | None = None,
) -> None:
    """The reference: gradients times the mask before anything reads them, weights times the mask after the step."""

    def mask_gradients() -> None:
        for name, mask in masks.items():
            gradient = model.get_parameter(name).grad
            if gradient is not None:
                gradient.mul_(mask)

    def mask_weights() -> None:
        with torch.no_grad():
            for name, mask in masks.items():
                model.get_parameter(name).mul_(mask)

    train(forward or model, optimizer, recipe, mask_gradients, mask_weights)


def assert_same(one: nn.Module, two: nn.Module) -> None:
    """Every parameter and buffer has the same values (a zero may differ in its sign)."""
    left, right = one.state_dict(), two.state_dict()
    assert list(left) == list(right)
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def moved(model: nn.Module, before: nn.Module) -> list[str]:
    """The parameters that are not what they were."""
    old = dict(before.named_parameters())
    return [name for name, parameter in model.named_parameters() if not torch.equal(parameter, old[name])]


def twin(model: nn.Module) -> nn.Module:
    """An independent copy with the same values."""
    return copy.deepcopy(model)
