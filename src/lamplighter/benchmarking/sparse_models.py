"""Pruned networks to measure with: random weights, as many in each layer as LAMP leaves there."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from lamplighter.models.resnet import resnet50
from lamplighter.models.vgg import vgg16
from lamplighter.pruning import allocate

# What LAMP left in each layer of a trained VGG-16, in the order of the layers (CIFAR-10, 20 % of the weights removed a
# round, rounds 15, 20 and 26), by density.
VGG16: dict[float, tuple[int, ...]] = {
    0.0352: (1552, 16394, 24414, 32591, 40580, 46461, 45893, 50499, 53337, 52713, 52339, 48776, 48039, 4171),
    0.0115: (1447, 8740, 10732, 12590, 13756, 14549, 14584, 15142, 15546, 15403, 15183, 14712, 14240, 3035),
    0.003: (1146, 2839, 3062, 3344, 3404, 3546, 3568, 3636, 3704, 3721, 3579, 3690, 3575, 1661),
}

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vgg16": (vgg16, (3, 32, 32)),
    "resnet50": (resnet50, (3, 224, 224)),
    "linear": (lambda: nn.Linear(4096, 4096), (4096,)),
}


def pruned(name: str, density: float, batch: int) -> tuple[nn.Module, Tensor]:
    """A network with that many of its weights left, and images for it.

    Where it is known how many weights LAMP leaves in each layer of the trained network, each layer has as many;
    otherwise as many as LAMP would leave of the untrained one.
    """
    make, shape = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make().eval()
        weights = {key: value for key, value in model.named_parameters() if value.dim() > 1}
        budgets: Mapping[str, int]
        if name == "vgg16" and density in VGG16:
            budgets = dict(zip(weights, VGG16[density], strict=True))
        elif name == "linear":
            budgets = {key: round(density * value.numel()) for key, value in weights.items()}
        else:
            budgets = allocate(model, sparsity=1 - density)
        with torch.no_grad():
            for key, budget in budgets.items():
                _leave(weights[key], budget)
        return model, torch.randn(batch, *shape)


def _leave(weight: Tensor, budget: int) -> None:
    """Set all but `budget` random entries to zero, and scale the rest so that signals keep their size."""
    mask = torch.zeros(weight.numel())
    mask[torch.randperm(weight.numel())[:budget]] = (weight.numel() / max(budget, 1)) ** 0.5
    weight.mul_(mask.view_as(weight))
