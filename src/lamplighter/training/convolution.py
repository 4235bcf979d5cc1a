# ruff: noqa: PLR0917, ARG001  (operations that PyTorch registers have positional arguments, used or not)
"""Convolutions of several networks, each with images and weights of its own, as one operation that can be compiled.

The networks' images stand one after another in one batch. What the operation runs is chosen by what it is given: our
own kernels for 16-bit numbers on CUDA, else PyTorch's convolution of one network after another.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_HALVES = (torch.bfloat16, torch.float16)


@torch.library.custom_op("lamplighter::convolve", mutates_args=())
def convolve(images: Tensor, weights: Tensor, stride: int, padding: int) -> Tensor:
    """The convolution of each network.

    Args:
        images: (networks * images, channels, height, width).
        weights: (networks, outputs, channels, height, width).
        stride: in both directions.
        padding: zeros on each side.

    Returns:
        (networks * images, outputs, height, width), in channels-last memory format.
    """
    if not _has_kernels(images, weights):
        pairs = zip(images.chunk(len(weights)), weights, strict=True)
        return _last(_joined([F.conv2d(x, w, stride=stride, padding=padding) for x, w in pairs]))
    from lamplighter.training import convolution_triton as kernels  # noqa: PLC0415

    y = kernels.forward(apart(images, len(weights)), _innermost(weights), stride, padding)
    return y.flatten(0, 1).permute(0, 3, 1, 2)


@torch.library.custom_op("lamplighter::convolve_backward", mutates_args=())
def convolve_backward(
    given: Tensor, images: Tensor, weights: Tensor, stride: int, padding: int, wanted: bool
) -> tuple[Tensor, Tensor]:
    """The gradients with respect to the images, empty unless wanted, and the weights."""
    if not _has_kernels(images, weights):
        return _backward_each(given, images, weights, stride, padding, wanted)
    from lamplighter.training import convolution_triton as kernels  # noqa: PLC0415

    x, dy, w = apart(images, len(weights)), apart(given, len(weights)), _innermost(weights)
    dw = kernels.to_weight(x, dy, w.shape, stride, padding).permute(0, 1, 4, 2, 3)
    if not wanted:
        return images.new_empty(0), dw
    dx = kernels.to_input(dy, w, x.shape, stride, padding)
    return dx.flatten(0, 1).permute(0, 3, 1, 2), dw


def _backward_each(
    given: Tensor, images: Tensor, weights: Tensor, stride: int, padding: int, wanted: bool
) -> tuple[Tensor, Tensor]:
    found = []
    for dy, x, w in zip(given.chunk(len(weights)), images.chunk(len(weights)), weights, strict=True):
        shape, mask = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1), [wanted, True, False]
        found.append(torch.ops.aten.convolution_backward(dy, x, w, None, *shape, mask))
    dw = _joined([grad_weight[None] for _, grad_weight, _ in found])
    dx = _last(_joined([grad_input for grad_input, _, _ in found])) if wanted else images.new_empty(0)
    return dx, _innermost(dw).permute(0, 1, 4, 2, 3)


@convolve.register_fake
def _(images: Tensor, weights: Tensor, stride: int, padding: int) -> Tensor:
    count, _, height, width = images.shape
    _, outputs, _, rows, columns = weights.shape
    down, across = (height + 2 * padding - rows) // stride + 1, (width + 2 * padding - columns) // stride + 1
    return images.new_empty(count, down, across, outputs).permute(0, 3, 1, 2)


@convolve_backward.register_fake
def _(given: Tensor, images: Tensor, weights: Tensor, stride: int, padding: int, wanted: bool) -> tuple[Tensor, Tensor]:
    networks, outputs, channels, rows, columns = weights.shape
    dw = weights.new_empty(networks, outputs, rows, columns, channels).permute(0, 1, 4, 2, 3)
    if not wanted:
        return images.new_empty(0), dw
    count, _, height, width = images.shape
    return images.new_empty(count, height, width, channels).permute(0, 3, 1, 2), dw


def _setup(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, Tensor, int, int], output: Tensor) -> None:
    images, weights, ctx.stride, ctx.padding = inputs  # type: ignore[attr-defined]
    ctx.save_for_backward(images, weights)


def _backward(ctx: torch.autograd.function.FunctionCtx, given: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
    images, weights = ctx.saved_tensors  # type: ignore[attr-defined]
    wanted = ctx.needs_input_grad[0]  # type: ignore[attr-defined]
    dx, dw = convolve_backward(given, images, weights, ctx.stride, ctx.padding, wanted)  # type: ignore[attr-defined]
    return (dx if wanted else None), dw, None, None


convolve.register_autograd(_backward, setup_context=_setup)


def _has_kernels(images: Tensor, weights: Tensor) -> bool:
    """Whether ours are used: cuDNN's are faster with one network (two were not tried), but for few channels."""
    enough = len(weights) > 2 or images.shape[1] < 16
    return enough and images.is_cuda and images.dtype in _HALVES and weights.dtype == images.dtype


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def apart(images: Tensor, networks: int) -> Tensor:
    """(networks, images, height, width, channels), contiguous."""
    return images.permute(0, 2, 3, 1).contiguous().view(networks, -1, *images.shape[2:], images.shape[1])


def _innermost(weights: Tensor) -> Tensor:
    """(networks, outputs, height, width, inputs), contiguous."""
    return weights.permute(0, 1, 3, 4, 2).contiguous()
