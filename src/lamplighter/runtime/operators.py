"""What each of PyTorch's operators becomes."""

from collections.abc import Callable
from math import prod
from typing import Any

from torch import fx

from lamplighter.runtime.network import Pair
from lamplighter.runtime.tracer import Tracer, UnsupportedError


def _pair(given: Any) -> Pair:  # noqa: ANN401
    values = [given] if isinstance(given, int) else list(given)
    return (values[0], values[-1])


def _conv(tracer: Tracer, node: fx.Node) -> int:
    given = tracer.given(node)
    if isinstance(given["padding"], str):
        raise UnsupportedError(f"padding={given['padding']!r}: give the rows and columns")
    weight, bias = tracer.constant(given["weight"]), tracer.constant(given["bias"])
    assert weight is not None
    geometry = {
        "stride": _pair(given["stride"]),
        "pad": _pair(given["padding"]),
        "dilation": _pair(given["dilation"]),
        "groups": int(given["groups"]),
    }
    name = tracer.draft.names[given["weight"].name]
    return tracer.draft.conv(name, tracer.value(given["input"]), weight, bias, tracer.image(node), **geometry)


def _linear(tracer: Tracer, node: fx.Node) -> int:
    given = tracer.given(node)
    x, weight = tracer.value(given["input"]), tracer.constant(given["weight"])
    assert weight is not None
    weight = weight.reshape(weight.shape[0], *tracer.draft.shapes[x])
    name = tracer.draft.names[given["weight"].name]
    return tracer.draft.conv(name, x, weight, tracer.constant(given["bias"]), tracer.image(node))


def _batch_norm(tracer: Tracer, node: fx.Node) -> int:
    given = tracer.given(node)
    if given.get("training"):
        raise UnsupportedError("batch norm in training mode")
    x, mean, variance = (given[key] for key in ("input", "running_mean", "running_var"))
    found = [tracer.constant(each) for each in (mean, variance, given["weight"], given["bias"])]
    if found[0] is None or found[1] is None:
        raise UnsupportedError("batch norm without running statistics")
    scale = (found[1].double() + given["eps"]).rsqrt()
    scale = scale if found[2] is None else scale * found[2].double()
    shift = -found[0].double() * scale
    shift = shift if found[3] is None else shift + found[3].double()
    return tracer.draft.scaled(tracer.value(x), scale, shift, into=tracer.alone(x))


def _relu(tracer: Tracer, node: fx.Node) -> int:
    x = tracer.given(node)["self"]
    return tracer.draft.relu(tracer.value(x), into=tracer.alone(x))


def _add(tracer: Tracer, node: fx.Node) -> int:
    given = tracer.given(node)
    one, other = given["self"], given["other"]
    if given["alpha"] != 1 or not all(isinstance(each, fx.Node) for each in (one, other)):
        raise UnsupportedError("additions of constants, or scaled ones")
    if tracer.image(one) != tracer.image(other):
        raise UnsupportedError(f"additions of unlike shapes ({tracer.image(one)} and {tracer.image(other)})")
    return tracer.draft.added(tracer.value(one), tracer.value(other), (tracer.alone(one), tracer.alone(other)))


def _pool(tracer: Tracer, node: fx.Node, average: bool) -> int:
    given = tracer.given(node)
    kernel, pad = _pair(given["kernel_size"]), _pair(given["padding"])
    if given["ceil_mode"] or _pair(given.get("dilation", 1)) != (1, 1):
        raise UnsupportedError("pools with ceil_mode or dilation")
    if average and (given["divisor_override"] or (pad != (0, 0) and not given["count_include_pad"])):
        raise UnsupportedError("average pools that do not divide by the size of their window")
    stride = _pair(given["stride"]) if given["stride"] else kernel
    geometry = {"kernel": kernel, "stride": stride, "pad": pad, "average": average}
    return tracer.draft.pool(tracer.value(given["input" if "input" in given else "self"]), tracer.image(node), geometry)


def _max_pool(tracer: Tracer, node: fx.Node) -> int:
    return _pool(tracer, node, average=False)


def _average_pool(tracer: Tracer, node: fx.Node) -> int:
    return _pool(tracer, node, average=True)


def _adaptive(tracer: Tracer, node: fx.Node) -> int:
    given = tracer.given(node)
    if _pair(given["output_size"]) != (1, 1):
        raise UnsupportedError("adaptive pools to more than one position")
    return tracer.draft.mean(tracer.value(given["self"]))


def _mean(tracer: Tracer, node: fx.Node) -> int:
    given = tracer.given(node)
    dims = given["dim"] or []
    if sorted(dim % 4 for dim in dims) != [2, 3] or given["dtype"] is not None:
        raise UnsupportedError(f"means over the dimensions {dims}: only over the image")
    return tracer.draft.mean(tracer.value(given["self"]))


def _reshaped(tracer: Tracer, node: fx.Node) -> int:
    """Flattening: what follows is a linear layer, which reads the image where it lies."""
    x = tracer.given(node)["self"]
    shape = tuple(node.meta["val"].shape)
    if shape[0] != tracer.images or (len(shape) != 2 and tracer.image(x) != tracer.image(node)):
        raise UnsupportedError(f"reshaping to {shape}")
    value = tracer.value(x)
    if prod(tracer.draft.shapes[value]) != prod(shape[1:]):
        raise UnsupportedError(f"reshaping to {shape}")
    return value


def _same(tracer: Tracer, node: fx.Node) -> int:
    return tracer.value(node.args[0])  # type: ignore[arg-type]


def _slice(tracer: Tracer, node: fx.Node) -> int:
    given = tracer.given(node)
    x, dim, step = tracer.value(given["self"]), given["dim"], given["step"]
    size = node.args[0].meta["val"].shape[dim]  # type: ignore[union-attr]
    if given["start"] not in (None, 0) or (given["end"] is not None and given["end"] < size) or dim == 1:
        raise UnsupportedError("slices that leave out a part of the image")
    if step == 1:
        return x
    if dim not in (2, 3):
        raise UnsupportedError("slices of images")
    return tracer.draft.sampled(x, (step, 1) if dim == 2 else (1, step), tracer.image(node))


def _pad(tracer: Tracer, node: fx.Node) -> int:
    given = tracer.given(node)
    pads = list(given["pad"])
    if given.get("mode", "constant") != "constant" or given["value"] not in (None, 0):
        raise UnsupportedError("padding with other things than zeros")
    if len(pads) != 6 or any(pads[:4]) or min(pads) < 0:
        raise UnsupportedError(f"padding by {pads}: only channels; of the image, let the convolution do it")
    return tracer.draft.widened(tracer.value(given["self"]), pads[4], pads[5])


def _dropout(tracer: Tracer, node: fx.Node) -> int:
    if tracer.given(node).get("train"):
        raise UnsupportedError("dropout in training mode")
    return tracer.value(tracer.given(node)["input"])


HANDLERS: dict[str, Callable[[Tracer, fx.Node], int]] = {
    "aten.conv2d.default": _conv,
    "aten.linear.default": _linear,
    "aten.batch_norm.default": _batch_norm,
    "aten.relu.default": _relu,
    "aten.add.Tensor": _add,
    "aten.max_pool2d.default": _max_pool,
    "aten.avg_pool2d.default": _average_pool,
    "aten.adaptive_avg_pool2d.default": _adaptive,
    "aten.mean.dim": _mean,
    "aten.flatten.using_ints": _reshaped,
    "aten.view.default": _reshaped,
    "aten.reshape.default": _reshaped,
    "aten.squeeze.dims": _reshaped,
    "aten.contiguous.default": _same,
    "aten.clone.default": _same,
    "aten.dropout.default": _dropout,
    "aten.slice.Tensor": _slice,
    "aten.pad.default": _pad,
    "aten.constant_pad_nd.default": _pad,
}
