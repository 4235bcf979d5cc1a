"""Whole models, compiled: the same outputs as the dense model's."""

import copy
import warnings

import pytest
import torch
from torch import nn

import lamplighter as ll
from lamplighter import runtime
from lamplighter.models import MODELS
from lamplighter.models.conv6 import conv6
from lamplighter.models.resnet import resnet18, resnet20, resnet50
from lamplighter.models.vgg import vgg16
from lamplighter.runtime import build
from lamplighter.runtime.network import Conv
from lamplighter.runtime.tracing import exported, trace
from runtime_samples import close, isas, ready, run

pytestmark = pytest.mark.skipif(build.available() is not None, reason="no C compiler")
SMALL = {
    "vgg16": lambda: vgg16(width=8),
    "conv6": lambda: conv6(width=8),
    "resnet18": lambda: resnet18(width=8),
    "resnet20": lambda: resnet20(width=4),
    "resnet50": lambda: resnet50(10, width=8),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 300), nn.ReLU(), nn.Dropout(), nn.Linear(300, 10)),
}


def expected(model, images):
    with torch.no_grad():
        return copy.deepcopy(model).double()(images.double())


@pytest.mark.parametrize("batch", [1, 5, 16])
@pytest.mark.parametrize("name", SMALL)
def test_a_compiled_model_gives_what_the_model_gives(name, batch):
    model = ready(SMALL[name](), 0.2)
    images = torch.randn(batch, 3, 32, 32)
    network = trace(exported(model, images))
    for isa in isas():
        for threads in (1, 2):
            assert close(run(network, images, isa, threads), expected(model, images)), (isa, threads)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 5, 16, 64])
@pytest.mark.parametrize("name", ["vgg16", "conv6", "resnet18", "resnet20", "resnet50"])
def test_a_model_of_full_size_gives_what_the_model_gives(name, batch):
    model = ready(MODELS[name](10), 0.05)
    images = torch.randn(batch, 3, *((64, 64) if name == "resnet50" else (32, 32)))
    network = trace(exported(model, images))
    for isa in isas():
        for threads in (1, 2):
            assert close(run(network, images, isa, threads), expected(model, images)), (isa, threads)


def test_norms_relus_and_additions_are_taken_in():
    images = torch.randn(1, 3, 32, 32)
    nodes = trace(exported(ready(resnet20(width=4), 0.5), images)).nodes
    convs = [node for node in nodes if isinstance(node, Conv)]
    assert len(convs) == 19 + 1 + 2  # convolutions, the linear layer, and shortcuts that drop pixels
    assert sum(node.add is not None for node in convs) == 9
    assert sum(node.relu for node in convs) == 19


class Branches(nn.Module):
    """What two layers read, sums of what is not a layer's, a norm before a layer, a ReLU that is read twice."""

    def __init__(self):
        super().__init__()
        self.norm, self.one, self.two = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(3, 4, 1, 2)
        self.pool, self.last = nn.AvgPool2d(2), nn.Linear(4, 3)

    def forward(self, x):
        y = self.norm(x).relu()
        one = self.one(y)
        both = one + self.two(y)
        again = (both + one).relu() + both
        return self.last((again + again).relu().mean((2, 3)))


@pytest.mark.parametrize("batch", [1, 3])
def test_branches_are_kept_apart(batch):
    model = ready(Branches(), 0.7)
    images = torch.randn(batch, 3, 9, 11)
    assert close(run(trace(exported(model, images)), images), expected(model, images))


def test_compile_measures_and_gives_tensors():
    model = ready(SMALL["vgg16"](), 0.05)
    images = torch.randn(2, 3, 32, 32)
    training = model.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ll.LamplighterWarning)  # that it does not pay, on a busy machine
        fast = runtime.compile(training, images, tune=0.001)
    assert training.training
    assert fast.backend == "sparse"
    assert "times as fast" in str(fast.measured)
    assert close(fast(images).numpy(), expected(model.eval(), images))


def test_what_the_kernels_cannot_run_torch_runs_and_it_is_said():
    model = nn.Sequential(nn.Linear(4, 4), nn.Softplus())
    images = torch.randn(2, 4)
    with pytest.warns(ll.LamplighterWarning, match=r"aten\.softplus"):
        fast = runtime.compile(model, images)
    assert fast.backend == "torch"
    assert torch.equal(fast(images), model(images))
    with pytest.raises(ll.LamplighterError, match="nothing to save"):
        fast.save("model.lamp")


def test_without_a_compiler_torch_runs_and_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("LAMPLIGHTER_CACHE", str(tmp_path))
    build.kernels.cache_clear()
    try:
        with pytest.warns(ll.LamplighterWarning, match="no C compiler"):
            fast = runtime.compile(nn.Linear(4, 4), torch.randn(2, 4))
    finally:
        build.kernels.cache_clear()
    assert fast.backend == "torch"


@pytest.mark.parametrize(
    ("model", "shape", "why"),
    [
        (nn.Sequential(nn.Conv1d(2, 2, 1)), (1, 2, 5), "of shape"),
        (nn.MaxPool2d(2, ceil_mode=True), (1, 2, 5, 5), "ceil_mode"),
        (nn.AdaptiveAvgPool2d(2), (1, 2, 4, 4), "more than one position"),
    ],
)
def test_what_is_not_supported_is_named(model, shape, why):
    with pytest.raises(ll.LamplighterError, match=why):
        trace(exported(model, torch.randn(shape)))
