"""The networks of the experiments, by name. Each constructor takes the number of classes (or of words)."""

from collections.abc import Callable
from functools import partial

from torch import nn

from lamplighter.models.conv6 import conv6
from lamplighter.models.densenet import densenet121
from lamplighter.models.efficientnet import efficientnet_b0
from lamplighter.models.resnet import resnet18, resnet20, resnet34, resnet50
from lamplighter.models.transformer_xl import transformer_xl
from lamplighter.models.vgg import vgg16

MODELS: dict[str, Callable[[int], nn.Module]] = {
    "conv6": conv6,
    "densenet121": densenet121,
    "densenet121-imagenet": partial(densenet121, growth=32, stem="imagenet"),
    "efficientnet-b0": efficientnet_b0,
    "efficientnet-b0-stride2": partial(efficientnet_b0, stride=2),
    "resnet18": resnet18,
    "resnet20": resnet20,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "transformer-xl": transformer_xl,
    "vgg16": vgg16,
}
