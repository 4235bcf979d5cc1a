"""DenseNet-121: every layer sees the outputs of all layers before it in its block (Huang et al. 2017)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BLOCKS = (6, 12, 24, 16)


def densenet121(
    classes: int = 10,
    *,
    growth: int = 12,
    stem: Literal["cifar", "imagenet"] = "cifar",
    blocks: tuple[int, ...] = _BLOCKS,
) -> "DenseNet":
    """DenseNet-121.

    Args:
        classes: outputs of the last layer.
        growth: channels each layer adds: 12 is the usual choice for CIFAR, 32 that for ImageNet.
        stem: "cifar", one 3x3 convolution, or "imagenet", 7x7 with stride 2 and max pooling.
        blocks: layers of each block; the default is DenseNet-121, less makes a small network of the same form.
    """
    return DenseNet(classes, growth, stem, blocks)


class DenseLayer(nn.Module):
    """1x1 to four times the growth, then 3x3 to the growth, appended to the input; batch norm and ReLU come first."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        y = self.conv2(F.relu(self.norm2(y)))
        return torch.cat((x, y), 1)


class Transition(nn.Module):
    """Halves the channels and the image between two blocks."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, inputs // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(x))), 2)


class DenseNet(nn.Module):
    """A stem, dense blocks with transitions between them, and a linear layer on the average over the image."""

    def __init__(self, classes: int, growth: int, stem: str, blocks: tuple[int, ...]) -> None:
        super().__init__()
        channels = 2 * growth
        layers: list[nn.Module]
        if stem == "imagenet":
            layers = [nn.Conv2d(3, channels, 7, 2, padding=3, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
            layers.append(nn.MaxPool2d(3, 2, padding=1))
        else:
            layers = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
        self.stem = nn.Sequential(*layers)
        stages: list[nn.Module] = []
        for count in blocks:
            if stages:
                stages.append(Transition(channels))
                channels //= 2
            stages.append(nn.Sequential(*(DenseLayer(channels + i * growth, growth) for i in range(count))))
            channels += count * growth
        self.stages = nn.Sequential(*stages)
        self.norm = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stages(self.stem(images))))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits
