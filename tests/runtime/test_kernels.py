"""The kernels: every layer's outputs are those of the dense layer, in every instruction set."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from lamplighter.errors import LamplighterError
from lamplighter.runtime import build
from lamplighter.runtime.build import kernels
from lamplighter.runtime.compiled import Compiled
from lamplighter.runtime.network import Conv, Network, Sparse
from lamplighter.runtime.plan import Plan, Settings
from lamplighter.runtime.tracing import exported, trace
from lamplighter.runtime.tuning import options
from runtime_samples import close, isas, layers, pools, ready, run

pytestmark = pytest.mark.skipif(build.available() is not None, reason="no C compiler")
MANY = int(os.environ.get("RUNTIME_EXAMPLES", "60"))
tried = settings(max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck))


@tried
@given(layers())
def test_a_layer_gives_what_the_dense_layer_gives(layer):
    network, images, expected = layer
    for isa in isas():
        for threads in (1, 2):
            assert close(run(network, images, isa, threads), expected), (isa, threads)


@tried
@given(pools())
def test_a_pool_gives_what_torch_gives(pool):
    network, images, expected = pool
    for isa in isas():
        assert close(run(network, images, isa), expected), isa


@settings(max_examples=max(MANY // 4, 1), deadline=None, suppress_health_check=list(HealthCheck))
@given(layers())
def test_every_way_of_a_layer_gives_the_same(layer):
    network, images, expected = layer
    for isa in isas():
        plan = Plan(network, kernels(), Settings(1, isa, 0))
        conv = next(each for step in plan._steps for each in step.arrays if hasattr(each, "entries"))
        for choice in options(conv, plan.isa):
            chosen = Plan(network, kernels(), Settings(1, isa, 0), {0: choice})
            assert chosen.choices[0] == choice
            assert close(chosen.run(images.numpy()), expected), choice


@pytest.mark.parametrize("batch", [1, 5, 16, 64, 70])
@pytest.mark.parametrize("density", [0.0, 0.05, 0.6])
def test_a_linear_layer_gives_what_the_dense_layer_gives(batch, density):
    model = torch.nn.Linear(70, 33)
    with torch.no_grad():
        model.weight.mul_(torch.rand(model.weight.shape) < density)
    images = torch.randn(batch, 70)
    network = trace(exported(model, images))
    for isa in isas():
        for threads in (1, 2):
            assert close(run(network, images, isa, threads), model(images)), (isa, threads)


def test_more_than_65536_inputs_are_told_apart():
    """16-bit columns are not enough here."""
    model = torch.nn.Linear(70_000, 3)
    with torch.no_grad():
        model.weight.mul_(torch.rand(model.weight.shape) < 0.01)
    images = torch.randn(1, 70_000)
    assert close(run(trace(exported(model, images)), images), model.double()(images.double()))


def test_nan_and_infinity_pass_through():
    model = ready(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)), 1)
    images = torch.zeros(1, 1, 6, 6)
    images[0, 0, 1, 1], images[0, 0, 4, 4] = torch.nan, torch.inf
    found = run(trace(exported(model, images)), images)
    assert np.isnan(found[0, :, 0, 0]).all()
    assert not np.isnan(found[0, :, 0, 2]).any()


def test_runs_do_not_depend_on_those_before():
    model = ready(torch.nn.Sequential(torch.nn.Conv2d(2, 5, 3, padding=1), torch.nn.Conv2d(5, 4, 5, padding=2)), 0.3)
    images = torch.randn(3, 2, 9, 7)
    plan = Plan(trace(exported(model, images)), kernels(), Settings(2, None, 0))
    first = plan.run(images.numpy())
    plan.run(1000 * torch.randn(3, 2, 9, 7).numpy())
    assert np.array_equal(plan.run(images.numpy()), first)


def test_calls_from_several_threads_do_not_disturb_each_other():
    model = ready(torch.nn.Sequential(torch.nn.Conv2d(2, 9, 3, padding=1), torch.nn.Conv2d(9, 4, 3)), 0.3)
    images = [torch.randn(2, 2, 20, 20) for _ in range(8)]
    plan = Plan(trace(exported(model, images[0])), kernels(), Settings(2, None, 0))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: [plan.run(each.numpy()) for _ in range(20)], images))
    for each, results in zip(images, found, strict=True):
        assert all(close(result, model(each)) for result in results)


def test_a_forked_process_has_threads_of_its_own():
    code = """
import os, sys
import numpy as np
from lamplighter.runtime.build import kernels
from lamplighter.runtime.network import Mean, Network
from lamplighter.runtime.plan import Plan, Settings
plan = Plan(Network((1, 4, 3, 3), (1, 4), ((4, 3, 3), (4, 1, 1)), (Mean(0, 1),), 1), kernels(), Settings(2, None, 0))
images = np.ones((1, 4, 3, 3), np.float32)
assert (plan.run(images) == 1).all()
child = os.fork()
assert (plan.run(2 * images) == 2).all()
if child == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_processor_without_an_instruction_set_says_so():
    with pytest.raises(LamplighterError, match="no instruction set 'mmx'"):
        kernels().isa("mmx")


def test_another_shape_is_refused():
    weight = Sparse((1, 1, 1, 1), np.array([0]), np.ones(1, np.float32))
    network = Network(
        (1, 1, 2, 2), (1, 1, 2, 2), ((1, 2, 2),) * 2, (Conv("a", 0, 1, weight, np.zeros(1, np.float32)),), 1
    )
    compiled = Compiled(network, Settings(seconds=0))
    with pytest.raises(LamplighterError, match="compiled for"):
        compiled(np.zeros((1, 1, 2, 3), np.float32))
    with pytest.raises(LamplighterError, match="float32"):
        compiled(np.zeros((1, 1, 2, 2)))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc's AddressSanitizer")
def test_nothing_is_read_or_written_out_of_place(tmp_path):
    """The tests of this file again, with kernels that stop at the first wrong address."""
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = {
        **os.environ,
        "CC": "gcc",
        "LAMPLIGHTER_CACHE": str(tmp_path),
        "LAMPLIGHTER_CFLAGS": "-fsanitize=address -g",
        "LD_PRELOAD": library.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "RUNTIME_EXAMPLES": "200",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", str(Path(__file__))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
