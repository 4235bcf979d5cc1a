"""Weights to measure with: the shapes of known networks, filled with seeded random numbers."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Shapes = dict[str, tuple[int, ...]]


def resnet50(width: int = 64, classes: int = 1000) -> Shapes:
    """The prunable weights of ResNet-50 (He et al. 2016) by name: 25,502,912 entries in 54 layers.

    Args:
        width: channels after the first convolution; everything else is a multiple of it.
        classes: outputs of the last layer.
    """
    shapes: Shapes = {"conv1.weight": (width, 3, 7, 7)}
    channels = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = width * 2**stage
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            shapes[f"{name}.conv1.weight"] = (inner, channels, 1, 1)
            shapes[f"{name}.conv2.weight"] = (inner, inner, 3, 3)
            shapes[f"{name}.conv3.weight"] = (4 * inner, inner, 1, 1)
            if block == 0:
                shapes[f"{name}.downsample.0.weight"] = (4 * inner, channels, 1, 1)
            channels = 4 * inner
    shapes["fc.weight"] = (classes, channels)
    return shapes


def resnet50_small() -> Shapes:
    """ResNet-50's blocks with an eighth of its channels: to see quickly that everything runs."""
    return resnet50(width=8, classes=100)


MODELS: dict[str, Callable[[], Shapes]] = {"resnet50": resnet50, "resnet50-small": resnet50_small}


def of_size(entries: int, layer: int = 2_500_000) -> Shapes:
    """Layers of about `layer` entries each, `entries` in total."""
    count = max(1, round(entries / layer))
    ends = [entries * place // count for place in range(count + 1)]
    return {f"layers.{place}.weight": (ends[place + 1] - ends[place],) for place in range(count)}


def fill(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: str, seed: int = 0) -> dict[str, Tensor]:
    """Normal weights with He scaling: standard deviation sqrt(2 / fan_in) of each layer."""
    generator = torch.Generator(device).manual_seed(seed)
    weights = {}
    for place, (name, shape) in enumerate(shapes.items()):
        fan_in = math.prod(shape[1:]) if len(shape) > 1 else 100 * (1 + place % 16)
        # Filled in place: a temporary would already have raised the peak that is measured afterwards.
        weights[name] = torch.empty(shape, dtype=dtype, device=device)
        weights[name].normal_(0.0, math.sqrt(2 / fan_in), generator=generator)
    return weights


def restore(weights: Mapping[str, Tensor], pristine: Mapping[str, Tensor]) -> None:
    """Make `weights` what they were."""
    for name, tensor in weights.items():
        tensor.copy_(pristine[name])


def entries(weights: Mapping[str, Tensor]) -> int:
    """How many weights there are."""
    return sum(tensor.numel() for tensor in weights.values())


def size_in_bytes(weights: Mapping[str, Tensor]) -> int:
    """How much memory the weights take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
