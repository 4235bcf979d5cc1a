"""EfficientNet-B0: inverted bottlenecks with depthwise convolutions and squeeze-and-excitation (Tan & Le 2019)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# One row per stage: expansion, outputs, blocks, stride, kernel.
_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def efficientnet_b0(
    classes: int = 10,
    *,
    stride: int = 1,
    dropout: float = 0.2,
    drop_path: float = 0.2,
    stages: Sequence[tuple[int, int, int, int, int]] = _STAGES,
) -> "EfficientNet":
    """EfficientNet-B0.

    Args:
        classes: outputs of the last layer.
        stride: of the first convolution: 1 for images of 32x32, 2 is the network as designed for ImageNet.
        dropout: share of the features dropped before the last layer.
        drop_path: share of the images for which the last residual block is skipped; earlier blocks in proportion.
        stages: rows of (expansion, outputs, blocks, stride, kernel); the default is B0.
    """
    return EfficientNet(classes, stride, dropout, drop_path, stages)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution and batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


def _skip(x: Tensor, rate: float) -> Tensor:
    """Zero a share `rate` of the images and scale the others up, so that the expectation stays."""
    keep = 1 - rate
    alive = torch.rand(x.shape[0], 1, 1, 1, device=x.device) < keep
    return x * (alive / keep).to(x.dtype)


class SqueezeExcitation(nn.Module):
    """Scales each channel by a gate computed from the average of every channel."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, hidden, 1)
        self.expand = nn.Conv2d(hidden, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.expand(F.silu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(gate)


class InvertedBottleneck(nn.Module):
    """Expand by 1x1, depthwise convolution, squeeze-and-excitation, back by 1x1, and a shortcut if shapes allow."""

    def __init__(
        self, inputs: int, outputs: int, *, expansion: int, stride: int, kernel: int, drop_path: float
    ) -> None:
        super().__init__()
        middle = expansion * inputs
        self.expand = _conv(inputs, middle, 1) if expansion > 1 else None
        self.depthwise = _conv(middle, middle, kernel, stride, groups=middle)
        self.excite = SqueezeExcitation(middle, max(1, inputs // 4))
        self.project = _conv(middle, outputs, 1)
        self.shortcut = stride == 1 and inputs == outputs
        self.drop_path = drop_path

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else F.silu(self.expand(x))
        y = self.excite(F.silu(self.depthwise(y)))
        y = self.project(y)
        if not self.shortcut:
            result: Tensor = y
            return result
        if self.training and self.drop_path > 0:
            y = _skip(y, self.drop_path)
        return x + y


class EfficientNet(nn.Module):
    """A stem, stages of inverted bottlenecks, a 1x1 convolution, and a linear layer on the average over the image."""

    def __init__(
        self,
        classes: int,
        stride: int,
        dropout: float,
        drop_path: float,
        stages: Sequence[tuple[int, int, int, int, int]],
    ) -> None:
        super().__init__()
        channels = 32
        self.stem = _conv(3, channels, 3, stride)
        blocks: list[nn.Module] = []
        total = sum(row[2] for row in stages)
        for expansion, outputs, count, first_stride, kernel in stages:
            for i in range(count):
                block = InvertedBottleneck(
                    channels,
                    outputs,
                    expansion=expansion,
                    stride=first_stride if i == 0 else 1,
                    kernel=kernel,
                    drop_path=drop_path * len(blocks) / total,
                )
                blocks.append(block)
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = _conv(channels, 4 * channels, 1)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(4 * channels, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")

    def forward(self, images: Tensor) -> Tensor:
        x = F.silu(self.stem(images))
        x = F.silu(self.head(self.blocks(x)))
        logits: Tensor = self.classifier(self.dropout(x.mean((2, 3))))
        return logits
