# ruff: noqa: PLR0917, ARG001  (operations that PyTorch registers have positional arguments, used or not)
"""Batch norm, ReLU and 2x2 max pooling of several networks as one operation on CUDA that can be compiled.

The networks' images stand one after another in one batch; weights and statistics are (networks, channels).
"""

from typing import Any

import torch
from torch import Tensor

from lamplighter.training.convolution import apart


@torch.library.custom_op("lamplighter::normalise", mutates_args=())
def normalise(images: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised images, cut off at zero, and pooled if so wanted; the means and the biased variances."""
    from lamplighter.training import normalise_triton as kernels  # noqa: PLC0415

    y, mean, variance = kernels.forward(apart(images, len(weight)), weight, bias, eps, pool)
    return y.flatten(0, 1).permute(0, 3, 1, 2), mean, variance


@torch.library.custom_op("lamplighter::normalise_backward", mutates_args=())
def normalise_backward(
    given: Tensor,
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    pool: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients with respect to the images, the weight and the bias."""
    from lamplighter.training import normalise_triton as kernels  # noqa: PLC0415

    each, back = apart(images, len(weight)), apart(given, len(weight))
    dx, to_weight, to_bias = kernels.backward(back, each, weight, bias, mean, variance, eps, pool)
    return dx.flatten(0, 1).permute(0, 3, 1, 2), to_weight, to_bias


@normalise.register_fake
def _(images: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: bool) -> tuple[Tensor, Tensor, Tensor]:
    count, channels, height, width = images.shape
    if pool:
        height, width = height // 2, width // 2
    y = images.new_empty(count, height, width, channels).permute(0, 3, 1, 2)
    return y, torch.empty_like(weight), torch.empty_like(weight)


@normalise_backward.register_fake
def _(
    given: Tensor,
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    pool: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    count, channels, height, width = images.shape
    dx = images.new_empty(count, height, width, channels).permute(0, 3, 1, 2)
    return dx, torch.empty_like(weight), torch.empty_like(weight)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
    images, weight, bias, ctx.eps, ctx.pool = inputs
    _, mean, variance = output
    ctx.save_for_backward(images, weight, bias, mean, variance)


def _backward(ctx: Any, given: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # noqa: ANN401
    dx, to_weight, to_bias = normalise_backward(given, *ctx.saved_tensors, ctx.eps, ctx.pool)
    return dx, to_weight, to_bias, None, None


normalise.register_autograd(_backward, setup_context=_setup)
