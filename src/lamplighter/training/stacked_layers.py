"""Layers of several networks of one form as one layer, on batches in which the networks' images follow each other.

Only what has weights needs to know of the networks; everything else in a network (activations, pooling, sums) treats
each image by itself anyway.
"""

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamplighter.errors import LamplighterError
from lamplighter.training.convolution import convolve
from lamplighter.training.normalise import normalise


def is_plain(layer: nn.Conv2d) -> bool:
    """Whether a convolution is of one group and undilated, padded by zeros and alike in both directions."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str) or layer.groups != 1:
        return False
    return layer.dilation == (1, 1) and len(set(layer.stride)) == len(set(layer.padding)) == 1


class StackedConv2d(nn.Module):
    """Convolutions; `weight` and `bias` have the networks as their first dimension."""

    def __init__(self, layer: nn.Conv2d, networks: int) -> None:
        super().__init__()
        self.weight, self.bias, self.networks = layer.weight, layer.bias, networks
        self.plain = is_plain(layer)
        self._each: Callable[..., Tensor] = layer._conv_forward
        self.stride, self.padding = layer.stride[0], layer.padding[0]

    def forward(self, images: Tensor) -> Tensor:
        images = images.to(self.weight.dtype)
        if self.plain:
            y: Tensor = convolve(images, self.weight, self.stride, self.padding)
        else:
            pairs = zip(images.chunk(self.networks), self.weight.unbind(), strict=True)
            y = torch.cat([self._each(x, w, None) for x, w in pairs])
        if self.bias is None:
            return y
        return (y.view(self.networks, -1, *y.shape[1:]) + self.bias[:, None, :, None, None]).flatten(0, 1)


class StackedLinear(nn.Module):
    """Matrix products; `weight` and `bias` have the networks as their first dimension."""

    def __init__(self, layer: nn.Linear, networks: int) -> None:
        super().__init__()
        self.weight, self.bias, self.networks = layer.weight, layer.bias, networks

    def forward(self, features: Tensor) -> Tensor:
        each = features.to(self.weight.dtype).reshape(self.networks, -1, features.shape[-1])
        weight = self.weight.transpose(1, 2)
        y = torch.bmm(each, weight) if self.bias is None else torch.baddbmm(self.bias[:, None], each, weight)
        return y.view(*features.shape[:-1], -1)


class StackedBatchNorm2d(nn.Module):
    """Batch norm in training, over the images of each network; all its tensors have the networks first."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, layer: nn.BatchNorm2d, networks: int) -> None:
        super().__init__()
        self.weight, self.bias, self.networks = layer.weight, layer.bias, networks
        assert layer.momentum is not None
        self.eps, self.momentum = layer.eps, layer.momentum
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))

    def forward(self, images: Tensor) -> Tensor:
        count, channels, height, width = images.shape
        rows = images.permute(0, 2, 3, 1).reshape(self.networks, -1, channels)
        y, mean, variance = _Normalise.apply(rows, self.weight, self.bias, self.eps)
        self.note(mean, variance, rows.shape[1])
        result: Tensor = y.view(count, height, width, channels).permute(0, 3, 1, 2)
        return result

    @torch.no_grad()
    def note(self, mean: Tensor, variance: Tensor, rows: int) -> None:
        """Take the mean and the biased variance of a batch into the running ones."""
        self.running_mean.mul_(1 - self.momentum).add_(mean, alpha=self.momentum)
        self.running_var.mul_(1 - self.momentum).add_(variance, alpha=self.momentum * rows / (rows - 1))
        self.num_batches_tracked.add_(1)


class StackedBlock(nn.Module):
    """Batch norm, ReLU, and 2x2 max pooling if there is one, which on CUDA are one operation."""

    def __init__(self, norm: StackedBatchNorm2d, *, pool: bool) -> None:
        super().__init__()
        self.norm, self.pool = norm, pool

    def forward(self, images: Tensor) -> Tensor:
        norm = self.norm
        if not images.is_cuda:
            positive = F.relu(norm(images))
            return F.max_pool2d(positive, 2) if self.pool else positive
        found: tuple[Tensor, Tensor, Tensor] = normalise(images, norm.weight, norm.bias, norm.eps, self.pool)
        result, mean, variance = found
        norm.note(mean, variance, images.numel() // images.shape[1] // norm.networks)
        return result


class _Normalise(torch.autograd.Function):
    """(networks, rows, channels) to mean 0 and variance 1 over the rows, then scaled and shifted; sums in fp32."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        rows: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        values = rows.float()
        variance, mean = torch.var_mean(values, 1, correction=0)
        inverse = torch.rsqrt(variance + eps)
        ctx.save_for_backward(rows, weight, mean, inverse)
        y = (values - mean[:, None]) * (inverse * weight)[:, None] + bias[:, None]
        ctx.mark_non_differentiable(mean, variance)
        return y.to(rows.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, given: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # noqa: ANN401
        rows, weight, mean, inverse = ctx.saved_tensors
        given = given.float()
        normal = (rows.float() - mean[:, None]) * inverse[:, None]
        to_bias, to_weight = given.sum(1), (given * normal).sum(1)
        shared = (to_bias[:, None] + normal * to_weight[:, None]) / rows.shape[1]
        to_rows = (given - shared) * (inverse * weight)[:, None]
        return to_rows.to(rows.dtype), to_weight, to_bias, None


STACKED: dict[type[nn.Module], Callable[[Any, int], nn.Module]] = {
    nn.Conv2d: StackedConv2d,
    nn.Linear: StackedLinear,
    nn.BatchNorm2d: StackedBatchNorm2d,
}


def unstackable(model: nn.Module) -> tuple[str, str] | None:
    """The first layer, by name and kind, that has weights or statistics and cannot be stacked."""
    for name, module in model.named_modules():
        tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        known = type(module) in STACKED and module is not model
        if isinstance(module, nn.BatchNorm2d):
            known = known and module.affine and module.track_running_stats and module.momentum is not None
        if tensors and not known:
            return name, type(module).__name__
    return None


def stack_layers(model: nn.Module, networks: int) -> nn.Module:
    """A copy of a network whose layers are stacked; the shapes of their parameters are for the caller to change."""
    if (found := unstackable(model)) is not None:
        where, what = found
        raise LamplighterError(
            f"{where or 'the network'} is a {what}, which cannot be stacked", "train together with method='branches'"
        )
    stacked = copy.deepcopy(model).train()
    replaced: dict[nn.Module, nn.Module] = {}
    for module in list(stacked.modules()):
        for name, child in module.named_children():
            if (kind := STACKED.get(type(child))) is not None:
                setattr(module, name, replaced.setdefault(child, kind(child, networks)))
    return stacked


def join_blocks(network: nn.Module) -> None:
    """In sequences, put batch norm, ReLU and pooling that follow each other into blocks, in place.

    The names of parameters and buffers change, so this is for when all of them are in their places.
    """
    for sequence in [module for module in network.modules() if isinstance(module, nn.Sequential)]:
        layers = list(sequence)
        for place, (norm, relu) in enumerate(pairwise(layers)):
            if not (isinstance(norm, StackedBatchNorm2d) and isinstance(relu, nn.ReLU)):
                continue
            pool = place + 2 < len(layers) and _is_plain_pool(layers[place + 2])
            sequence[place] = StackedBlock(norm, pool=pool)
            for after in range(place + 1, place + 2 + pool):
                sequence[after] = nn.Identity()


def _is_plain_pool(layer: nn.Module) -> bool:
    """Whether it takes the maximum of every 2x2 window of images of even size."""
    if not isinstance(layer, nn.MaxPool2d) or layer.return_indices or layer.ceil_mode:
        return False
    return all(value in (2, (2, 2)) for value in (layer.kernel_size, layer.stride)) and not (
        layer.padding or layer.dilation != 1
    )
