"""Convolutions of several networks at once are those of each alone, in plain operations and as kernels."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from lamplighter.training.convolution import convolve, convolve_backward
from lamplighter.training.stacked_layers import _Normalise

# networks, images, size, inputs, outputs, kernel, stride, padding
SHAPES = (
    (2, 3, 6, 16, 32, 3, 1, 1),
    (3, 2, 6, 3, 16, 3, 1, 1),
    (2, 2, 8, 32, 16, 3, 2, 1),
    (2, 2, 7, 16, 48, 1, 2, 0),
    (2, 2, 6, 24, 12, 3, 1, 1),
    (1, 5, 4, 64, 64, 3, 1, 1),
)


def example(shape, dtype=torch.float32, device="cpu"):
    networks, count, size, inputs, outputs, kernel, stride, padding = shape
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(networks * count, inputs, size, size, generator=generator).to(dtype)
    weights = torch.randn(networks, outputs, inputs, kernel, kernel, generator=generator).to(dtype)
    return images.to(device), weights.to(device), stride, padding


def each_alone(images, weights, stride, padding):
    pairs = zip(images.double().chunk(len(weights)), weights.double(), strict=True)
    return torch.cat([F.conv2d(x, w, stride=stride, padding=padding) for x, w in pairs])


def gradients(function, images, weights, stride, padding):
    images, weights = images.clone().requires_grad_(), weights.clone().requires_grad_()
    y = function(images, weights, stride, padding)
    given = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(images.device, images.dtype).to(y.dtype)
    return y, *torch.autograd.grad(y, (images, weights), given)


def error(found, expected):
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("shape", SHAPES)
def test_convolutions_and_their_gradients_are_those_of_each_network(shape):
    for found, expected in zip(
        gradients(convolve, *example(shape)), gradients(each_alone, *example(shape)), strict=True
    ):
        assert found.shape == expected.shape
        assert error(found, expected) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_on_a_gpu_they_are_too(shape):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    given = example(shape, torch.bfloat16, "cuda")
    for found, expected in zip(gradients(convolve, *given), gradients(each_alone, *given), strict=True):
        assert error(found, expected) < 5e-3


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of the check itself
def test_the_operations_tell_the_compiler_the_truth():
    images, weights, stride, padding = example(SHAPES[2])
    images = images.contiguous(memory_format=torch.channels_last).detach()
    torch.library.opcheck(convolve, (images.requires_grad_(), weights.requires_grad_(), stride, padding))
    with torch.no_grad():
        given = convolve(images, weights, stride, padding)
        torch.library.opcheck(convolve_backward, (given, images, weights, stride, padding, True))
        torch.library.opcheck(convolve_backward, (given, images, weights, stride, padding, False))


def test_the_gradient_of_normalising_is_that_of_the_formula():
    rows = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    given = torch.randn(2, 7, 3, dtype=torch.float64)
    found = torch.autograd.grad(_Normalise.apply(rows, weight, bias, 1e-5)[0], (rows, weight, bias), given)
    expected = [
        torch.autograd.grad(F.batch_norm(rows[i], None, None, weight[i], bias[i], True, 0.1, 1e-5), t, given[i])[0][i]
        for t in (rows, weight, bias)
        for i in range(2)
    ]
    torch.testing.assert_close(
        torch.cat([part.flatten() for part in found]),
        torch.cat([part.flatten() for part in expected]),
        rtol=1e-5,
        atol=1e-6,
    )


def test_the_kernels_do_the_same():
    """On the CPU, by Triton's interpreter, which has to be chosen before Triton is imported."""
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["checked"] * len(SHAPES)


def check_kernels(shape):
    from lamplighter.training import convolution_triton as kernels

    images, weights, stride, padding = example(shape)
    y, dx, dw = gradients(each_alone, images, weights, stride, padding)
    networks = len(weights)

    def last(tensor):
        return tensor.permute(0, 2, 3, 1).contiguous().view(networks, -1, *tensor.shape[2:], tensor.shape[1])

    x, w = last(images), weights.permute(0, 1, 3, 4, 2).contiguous()
    given = last(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
    assert error(kernels.forward(x, w, stride, padding), last(y)) < 1e-6
    assert error(kernels.to_input(given, w, x.shape, stride, padding), last(dx)) < 1e-6
    found = kernels.to_weight(x, given, w.shape, stride, padding)
    assert error(found.permute(0, 1, 4, 2, 3), dw) < 1e-6


if __name__ == "__main__":
    for one in SHAPES:
        check_kernels(one)
        print("checked")
