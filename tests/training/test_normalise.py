"""Batch norm, ReLU and pooling of several networks in one operation are those of each network."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

# networks, images, size, channels, pooled
SHAPES = ((2, 3, 4, 16, True), (2, 3, 4, 16, False), (3, 2, 6, 64, True), (1, 5, 5, 24, False), (2, 9, 8, 32, True))


def example(shape):
    """Images whose mean is far from zero, where a careless variance loses all its digits."""
    networks, count, size, channels, pool = shape
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(networks, count, size, size, channels, generator=generator) + 50
    weight, bias = (torch.randn(networks, channels, generator=generator) for _ in range(2))
    return x, weight, bias, pool


def each_alone(x, weight, bias, pool):
    """(result, gradients of x, weight and bias), in double precision, and what came back."""
    leaves = [tensor.double().detach().requires_grad_() for tensor in (x, weight, bias)]
    found = []
    for images, w, b in zip(*leaves, strict=True):
        z = F.relu(F.batch_norm(images.permute(0, 3, 1, 2), None, None, w, b, True))
        found.append((F.max_pool2d(z, 2) if pool else z).permute(0, 2, 3, 1))
    y = torch.stack(found)
    given = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).double().to(x.device)
    return given, (y, *torch.autograd.grad(y, leaves, given))


def error(found, expected):
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_the_operation_is_that_of_each_network(shape):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from lamplighter.training.normalise import normalise

    x, weight, bias, pool = (part.cuda() if isinstance(part, torch.Tensor) else part for part in example(shape))
    given, expected = each_alone(x, weight, bias, pool)
    leaves = [x.flatten(0, 1).permute(0, 3, 1, 2).requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    y, mean, variance = normalise(*leaves, 1e-5, pool)
    found = torch.autograd.grad(y, leaves, given.float().flatten(0, 1).permute(0, 3, 1, 2))
    for part, wanted in zip((y, *found), expected, strict=True):
        in_order = part.permute(0, 2, 3, 1).reshape_as(wanted) if part.dim() == 4 else part
        assert error(in_order, wanted) < 1e-4
    assert error(mean, x.detach().mean((1, 2, 3))) < 1e-5
    assert error(variance, x.detach().var((1, 2, 3), correction=0)) < 1e-4


def test_the_kernels_are_those_of_each_network():
    """On the CPU, by Triton's interpreter, which has to be chosen before Triton is imported."""
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["checked"] * len(SHAPES)


def check_kernels(shape):
    from lamplighter.training import normalise_triton as kernels

    x, weight, bias, pool = example(shape)
    given, expected = each_alone(x, weight, bias, pool)
    y, mean, variance = kernels.forward(x, weight, bias, 1e-5, pool)
    found = kernels.backward(given.float(), x, weight, bias, mean, variance, 1e-5, pool)
    for part, wanted in zip((y, *found), expected, strict=True):
        assert error(part, wanted) < 2e-5
    assert error(mean, x.mean((1, 2, 3))) < 1e-6
    assert error(variance, x.double().var((1, 2, 3), correction=0)) < 1e-6


if __name__ == "__main__":
    for one in SHAPES:
        check_kernels(one)
        print("checked")
