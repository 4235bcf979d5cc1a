"""Gradients and activations that some scores need, collected without leaving a trace in the model."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils.hooks import RemovableHandle

from lamplighter.errors import LamplighterError
from lamplighter.modules import is_hf_conv1d, named_modules, unwrap
from lamplighter.parts import exchanging
from lamplighter.targets import find_layers


def gradients(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[..., Any],
    *,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """The gradient of the loss at every prunable weight, averaged over the batches: what score "snip" needs.

    A batch is a pair (inputs, target), for `loss(model(inputs), target)`, or a mapping, for
    `loss(model(**batch), batch)`. A loss whose first parameter is called `model` is given `loss(model, batch)` and does
    the rest itself. The model runs in the mode it is in (`model.train()` or `model.eval()`), uncompiled and in this
    process alone, on batches that are on its device. Afterwards everything is as before: `.grad`, `requires_grad`,
    buffers. Frozen weights have gradients too; a weight that the loss does not depend on has zeros.

    Args:
        model: the model.
        batches: what the loss is averaged over, one batch after the other.
        loss: a function of output and target, or of model and batch.
        include: as for `prune`.
        exclude: as for `prune`.

    Returns:
        parameter name -> gradient, float32 (float64 for float64 weights).

    >>> model = nn.Linear(2, 1)
    >>> gradients(model, [(torch.tensor([[1.0, 2.0]]), None)], lambda output, target: output.sum())
    {'weight': tensor([[1., 2.]])}
    """
    _check_model(model, "gradients")
    if exchanging(model):
        raise LamplighterError(
            "FSDP exchanges the weights while the model runs, so that no gradients of them can be asked for",
            "run a backward pass and take what it leaves: {name: p.grad for name, p in model.named_parameters()}",
        )
    _check_batches(batches)
    _check_loss(loss)
    weights = {layer.parameter_name: layer.parameter for layer in find_layers(model, include, exclude)}
    inner, parameters = unwrap(model), list(weights.values())
    count = 0
    with torch.inference_mode(False), torch.enable_grad(), _untouched(inner), _requiring_grad(parameters):
        sums = [torch.zeros_like(each, dtype=_wide(each), requires_grad=False) for each in parameters]
        for count, batch in enumerate(batches, start=1):  # noqa: B007
            value = _loss_of(inner, batch, loss)
            found = torch.autograd.grad(value, parameters, allow_unused=True)
            for total, gradient in zip(sums, found, strict=True):
                if gradient is not None:
                    total.add_(gradient)
    _check_not_empty(count)
    return {name: total.div_(count) for name, total in zip(weights, sums, strict=True)}


def input_norms(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """The L2 norm of every input feature over all batches and positions: what score "wanda" needs.

    A batch is the model's input, a list or tuple that begins with it, or a mapping of the model's keyword arguments.
    The model runs without gradients, in the mode it is in (`model.eval()` for a model with dropout). Afterwards hooks
    are removed and buffers are as before. Seen are the inputs of Linear, convolutions and Hugging Face `Conv1D` layers
    that are called; projections of `MultiheadAttention` and expert stacks, which are not, have no entry. What a shared
    weight sees in several places adds up.

    Args:
        model: the model.
        batches: calibration data, one batch after the other.
        include: as for `prune`.
        exclude: as for `prune`.

    Returns:
        parameter name -> norms, float32, shaped to broadcast against the weight: (in,) for a Linear,
        (1, in, 1, 1) for a Conv2d.

    >>> input_norms(nn.Linear(2, 1), [torch.tensor([[3.0, 1.0], [4.0, 1.0]])])
    {'weight': tensor([5.0000, 1.4142])}
    """
    _check_model(model, "input_norms")
    _check_batches(batches)
    weights = {id(layer.parameter): layer.parameter_name for layer in find_layers(model, include, exclude)}
    inner = unwrap(model)
    squares: dict[str, Tensor] = {}
    handles: list[RemovableHandle] = []
    count = 0
    try:
        for _, module in named_modules(inner):
            name = weights.get(id(module._parameters.get("weight")))
            if name is not None and (isinstance(module, nn.Linear | _ConvNd) or is_hf_conv1d(module)):
                handles.append(module.register_forward_pre_hook(_summing(name, squares), with_kwargs=True))
        with torch.inference_mode(False), torch.no_grad(), _untouched(inner):
            for count, batch in enumerate(batches, start=1):  # noqa: B007
                _run(inner, batch)
    finally:
        for handle in handles:
            handle.remove()
    _check_not_empty(count)
    return {name: total.sqrt().to(torch.float32) for name, total in squares.items()}


def _loss_of(model: nn.Module, batch: Any, loss: Callable[..., Any]) -> Tensor:  # noqa: ANN401
    if _first_parameter(loss) == "model":
        value = loss(model, batch)
    elif isinstance(batch, Mapping):
        value = loss(model(**batch), batch)
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        value = loss(model(batch[0]), batch[1])
    else:
        raise LamplighterError(
            f"a batch is a {type(batch).__name__}; expected a pair (inputs, target) or a mapping",
            "for other batches, pass a loss(model, batch) whose first parameter is called model",
        )
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        given = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise LamplighterError(
            f"the loss is {given}; expected one number that depends on the weights",
            "return a mean or a sum, without detach() or item()",
        )
    return value.reshape(())


def _run(model: nn.Module, batch: Any) -> None:  # noqa: ANN401
    if isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, tuple | list) and batch:
        model(batch[0])
    else:
        model(batch)


def _first_parameter(function: Callable[..., Any]) -> str | None:
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return None


def _summing(name: str, squares: dict[str, Tensor]) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def add(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        given = arguments[0] if arguments else next(iter(keywords.values()))
        total = _squares_by_feature(module, given)
        squares[name] = squares[name] + total if name in squares else total

    return add


def _squares_by_feature(module: nn.Module, given: Tensor) -> Tensor:
    """The sum of squares of each input feature, shaped to broadcast against the module's weight."""
    axis = given.dim() - 1
    if isinstance(module, _ConvNd):
        axis -= len(module.kernel_size)
    # In float64 where there is one: float32 sums over many positions lose what single positions add.
    wide = torch.float32 if given.device.type == "mps" else torch.float64
    total = given.movedim(axis, -1).reshape(-1, given.shape[axis]).to(wide).square().sum(dim=0)
    if is_hf_conv1d(module):
        return total.unsqueeze(1)
    if not isinstance(module, _ConvNd):
        return total
    kernel = [1] * len(module.kernel_size)
    if isinstance(module, _ConvTransposeNd):
        return total.view(-1, 1, *kernel)
    # An output channel sees only the inputs of its group.
    by_group = total.view(module.groups, -1)
    if module.groups > 1:
        by_group = by_group.repeat_interleave(module.out_channels // module.groups, dim=0)
    return by_group.view(*by_group.shape, *kernel)


@contextlib.contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Run the model uncompiled, and put back its modes and its buffers: batch norm counts what it sees in training."""
    held = [(module, module.training, dict(module._buffers)) for module in model.modules()]
    values = [(buffer, buffer.clone()) for _, _, buffers in held for buffer in buffers.values() if buffer is not None]
    try:
        with _uncompiled():
            yield
    finally:
        for module, training, buffers in held:
            module.training = training
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, value in values:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def _uncompiled() -> contextlib.AbstractContextManager[object]:
    # Compiled code may leave out hooks added later. Where nothing has imported the compiler, nothing is compiled.
    compiler = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if compiler else contextlib.nullcontext()


@contextlib.contextmanager
def _requiring_grad(parameters: list[Tensor]) -> Iterator[None]:
    flags = [each.requires_grad for each in parameters]
    try:
        for each in parameters:
            each.requires_grad_(True)
        yield
    finally:
        for each, flag in zip(parameters, flags, strict=True):
            each.requires_grad_(flag)


def _wide(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def _check_model(model: object, collector: str) -> None:
    if not isinstance(model, nn.Module):
        raise LamplighterError(
            f"{collector} got a {type(model).__name__} as its model, expected a Module",
            "pass the model that holds the weights: evidence is collected by running it",
        )


def _check_batches(batches: object) -> None:
    # A loader of the user's own may have __getitem__ alone; iterating over a mapping would give its keys.
    if isinstance(batches, str | Mapping) or not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        raise LamplighterError(
            f"batches is a {type(batches).__name__}, expected batches one after the other",
            "pass a list or a loader; for a single batch, [batch]",
        )


def _check_loss(loss: object) -> None:
    if not callable(loss):
        raise LamplighterError(
            f"loss is a {type(loss).__name__}, expected a function",
            "pass a loss(output, target), such as torch.nn.functional.cross_entropy, or a loss(model, batch)",
        )


def _check_not_empty(count: int) -> None:
    if count == 0:
        raise LamplighterError(
            "there are no batches to collect evidence from",
            "a generator can be used only once; pass a list or a loader",
        )
