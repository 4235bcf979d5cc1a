"""Residual networks: ResNet-20 and -18 for 32x32 images, ResNet-34 and -50 for ImageNet (He et al. 2016)."""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

# (inputs, outputs, stride) -> module
_Block = Callable[[int, int, int], nn.Module]


def resnet20(classes: int = 10, *, width: int = 16) -> "ResNet":
    """The CIFAR network of He et al.: three stages of three blocks, 0.27 million weights.

    Where a stage doubles the channels, the shortcut drops every other pixel and adds zero channels (their option A),
    so that it has no weights.
    """

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        return BasicBlock(inputs, outputs, stride, None if inputs == outputs else PaddedShortcut(outputs - inputs))

    return ResNet(classes, block, blocks=(3, 3, 3), widths=(width, 2 * width, 4 * width), small=True)


def resnet18(classes: int = 10, *, width: int = 64) -> "ResNet":
    """ResNet-18 with the stem for 32x32 images: one 3x3 convolution, no pooling."""
    return ResNet(classes, _basic, blocks=(2, 2, 2, 2), widths=[width << i for i in range(4)], small=True)


def resnet34(classes: int = 1000, *, width: int = 64) -> "ResNet":
    """ResNet-34 for images of 224x224; parameters are named as torchvision names them."""
    return ResNet(classes, _basic, blocks=(3, 4, 6, 3), widths=[width << i for i in range(4)], small=False)


def resnet50(classes: int = 1000, *, width: int = 64, stride_first: bool = False) -> "ResNet":
    """ResNet-50 for images of 224x224; parameters are named as torchvision names them.

    Args:
        classes: outputs of the last layer.
        width: channels of the stem; 64 is ResNet-50.
        stride_first: halve the image in the first 1x1 convolution of a stage, as He et al. do, instead of in its 3x3
            convolution, as torchvision does. The weights have the same names and shapes either way.
    """

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        return Bottleneck(inputs, outputs, stride, stride_first)

    widths = [4 * width << i for i in range(4)]
    return ResNet(classes, block, blocks=(3, 4, 6, 3), widths=widths, small=False, stem=width)


def _basic(inputs: int, outputs: int, stride: int) -> nn.Module:
    return BasicBlock(inputs, outputs, stride, _projection(inputs, outputs, stride))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """The shortcut with weights, where the shapes differ."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class PaddedShortcut(nn.Module):
    """Every other pixel, with `channels` channels of zeros appended."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.channels))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + shortcut)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut around them; the middle has a quarter of the channels."""

    def __init__(self, inputs: int, outputs: int, stride: int, stride_first: bool) -> None:
        super().__init__()
        middle = outputs // 4
        self.conv1 = nn.Conv2d(inputs, middle, 1, stride if stride_first else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = _conv3x3(middle, middle, 1 if stride_first else stride)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + shortcut)


class ResNet(nn.Module):
    """A stem, stages of residual blocks, and a linear layer on the average over the image.

    Args:
        classes: outputs of the last layer.
        block: makes a block of (inputs, outputs, stride).
        blocks: how many blocks each stage has.
        widths: channels of each stage; each stage but the first halves the image.
        small: the stem for small images, one 3x3 convolution; else 7x7 with stride 2, and max pooling.
        stem: channels of the stem, if not those of the first stage.
    """

    def __init__(
        self,
        classes: int,
        block: _Block,
        *,
        blocks: Sequence[int],
        widths: Sequence[int],
        small: bool,
        stem: int | None = None,
    ) -> None:
        super().__init__()
        channels = widths[0] if stem is None else stem
        self.conv1 = _conv3x3(3, channels) if small else nn.Conv2d(3, channels, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, padding=1)
        self.stages = len(blocks)
        for stage, (count, outputs) in enumerate(zip(blocks, widths, strict=True)):
            first = block(channels, outputs, 1 if stage == 0 else 2)
            rest = [block(outputs, outputs, 1) for _ in range(count - 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(first, *rest))
            channels = outputs
        self.fc = nn.Linear(channels, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(images))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits
