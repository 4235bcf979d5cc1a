"""Sparse layers and models that try the runtime, and how its outputs are compared with dense ones."""

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from lamplighter.runtime.build import ISAS, kernels
from lamplighter.runtime.network import Conv, Network, Pool, Sparse
from lamplighter.runtime.plan import Plan, Settings

TOLERANCE = 1e-5  # of the largest output


def isas() -> list[str]:
    """The instruction sets this processor has."""
    return [name for name, number in ISAS.items() if number <= kernels().best]


def close(found: np.ndarray, expected: torch.Tensor) -> bool:
    """Whether outputs are those of the dense layers, in double precision, to within rounding."""
    assert found.shape == tuple(expected.shape)
    wanted = expected.detach().double().numpy()
    return bool(np.abs(found - wanted).max() <= TOLERANCE * max(np.abs(wanted).max(), 1e-3))


def run(network: Network, images: torch.Tensor, isa: str | None = None, threads: int = 1) -> np.ndarray:
    """The outputs of a network, without measuring what is fastest."""
    return Plan(network, kernels(), Settings(threads, isa, 0)).run(images.numpy())


def outputs(size: int, kernel: int, stride: int, pad: int, dilation: int = 1) -> int:
    """How many positions a window has."""
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


def sparse_weight(shape: tuple[int, ...], density: float, generator: torch.Generator) -> torch.Tensor:
    """Random weights, some of them zero, with an empty row and a dense one where there are several."""
    weight = torch.randn(shape, generator=generator)
    keep = torch.rand(shape, generator=generator) < density
    if shape[0] > 2 and 0 < density < 1:
        keep[0], keep[1] = False, True
    return weight * keep


@st.composite
def layers(draw):
    """A convolution and its input: (network, images, the dense layer's outputs)."""
    batch = draw(st.sampled_from([1, 1, 2, 5, 16, 20]))
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    inputs, out = groups * draw(st.integers(1, 7)), groups * draw(st.integers(1, 9))
    kernel = [draw(st.sampled_from([1, 3, 5, 7])) for _ in range(2)]
    stride = [draw(st.sampled_from([1, 1, 2, 3])) for _ in range(2)]
    dilation = [draw(st.sampled_from([1, 1, 2])) for _ in range(2)]
    pad = [draw(st.integers(0, max(each // 2 + 1, 1))) for each in kernel]
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, pad, strict=True)]
    size = [draw(st.integers(low, low + 18)) for low in least]
    density, relu, add = draw(st.sampled_from([0, 0.03, 0.3, 0.8, 1])), draw(st.booleans()), draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    weight = sparse_weight((out, inputs // groups, *kernel), density, generator)
    bias = torch.randn(out, generator=generator)
    images = torch.randn(batch, inputs, *size, generator=generator)
    expected = F.conv2d(images.double(), weight.double(), bias.double(), stride, pad, dilation, groups)
    shape = tuple(expected.shape[1:])
    flat = weight.numpy().reshape(-1)
    places = np.flatnonzero(flat)
    node = Conv(
        *("layer", 0, 1, Sparse(tuple(weight.shape), places, flat[places]), bias.numpy()),
        *(tuple(stride), tuple(pad), tuple(dilation), groups),
        relu=relu,
    )
    nodes, shapes = [node], [tuple(images.shape[1:]), shape]
    expected = expected.relu() if relu else expected
    if add:  # a second layer that adds the first one's output to its own
        eye = np.arange(shape[0], dtype=np.int64) * (shape[0] + 1)
        twice = Sparse((shape[0], shape[0], 1, 1), eye, np.full(shape[0], 2, np.float32))
        nodes.append(Conv("add", 1, 2, twice, np.zeros(shape[0], np.float32), add=1))
        shapes.append(shape)
        expected = 3 * expected
    network = Network(tuple(images.shape), tuple(expected.shape), tuple(shapes), tuple(nodes), len(shapes) - 1)
    return network, images, expected


@st.composite
def pools(draw):
    """A pool and its input: (network, images, the outputs)."""
    batch, channels = draw(st.sampled_from([1, 1, 2, 5, 16])), draw(st.integers(1, 5))
    kernel = [draw(st.sampled_from([1, 2, 3, 5])) for _ in range(2)]
    stride = [draw(st.sampled_from([1, 2, 2, 3])) for _ in range(2)]
    average = draw(st.booleans())
    pad = [0 if average else draw(st.integers(0, each // 2)) for each in kernel]
    size = [draw(st.integers(max(k - 2 * p, 1), 40)) for k, p in zip(kernel, pad, strict=True)]
    images = torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(draw(st.integers(0, 999))))
    expected = F.avg_pool2d(images, kernel, stride) if average else F.max_pool2d(images, kernel, stride, pad)
    shapes = (tuple(images.shape[1:]), tuple(expected.shape[1:]))
    node = Pool(0, 1, tuple(kernel), tuple(stride), tuple(pad), average)
    return Network(tuple(images.shape), tuple(expected.shape), shapes, (node,), 1), images, expected


def ready(model: nn.Module, density: float, seed: int = 0) -> nn.Module:
    """A model in evaluation mode, with random weights that are mostly zero and batch norms that have seen data."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1, generator=generator)
                module.running_var.uniform_(0.5, 1.5, generator=generator)
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.normal_(0, 0.1, generator=generator)
            elif isinstance(module, nn.Conv2d | nn.Linear):
                fan_in = module.weight[0].numel()
                weight = sparse_weight(module.weight.shape, density, generator)
                module.weight.copy_(weight / (fan_in * density) ** 0.5)
    return model.eval()
