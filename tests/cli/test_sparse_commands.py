"""`lamp compile`, `lamp estimate` and `lamp bench sparse`, at small scale."""

import json

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from lamplighter import runtime
from lamplighter.cli import bench_sparse, estimate
from lamplighter.cli import compile as compiling
from lamplighter.errors import LamplighterError
from lamplighter.models.resnet import resnet20
from lamplighter.runtime import build
from runtime_samples import ready

pytestmark = pytest.mark.skipif(build.available() is not None, reason="no C compiler")


@pytest.fixture
def lamp():
    app = typer.Typer()
    bench_sparse.register(app)
    compiling.register(app, "Runtime")
    estimate.register(app, "Runtime")

    def call(*arguments):
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.mark.filterwarnings("ignore::lamplighter.LamplighterWarning")  # that this machine is busy, or it does not pay
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_exported_program_becomes_a_file(lamp, tmp_path):
    model, images = ready(resnet20(width=4), 0.1), torch.randn(1, 3, 32, 32)
    torch.export.save(torch.export.export(model, (images,)), tmp_path / "model.pt2")
    done = lamp("compile", tmp_path / "model.pt2", "-o", tmp_path / "model.lamp", "--json")
    assert json.loads(done.stdout)["bytes"] == (tmp_path / "model.lamp").stat().st_size
    found = runtime.load(tmp_path / "model.lamp")(images.numpy())
    assert np.allclose(found, model(images).detach().numpy(), atol=1e-5)
    with pytest.raises(LamplighterError, match="there already"):
        lamp("compile", tmp_path / "model.pt2", "-o", tmp_path / "model.lamp")
    with pytest.raises(LamplighterError, match="no exported program"):
        lamp("compile", tmp_path / "model.lamp", "-o", tmp_path / "other.lamp")


def test_estimates_are_shown_by_layer(lamp):
    found = json.loads(lamp("estimate", "vgg16", "--sparsity", "0.99", "--json").stdout)
    assert len(found["layers"]) == 14
    assert sum(layer["kept"] for layer in found["layers"]) == 147_156
    assert "times as fast" in " ".join(lamp("estimate", "resnet20", "--sparsity", "0.9").stdout.split())
    with pytest.raises(LamplighterError, match="no network 'vgg'"):
        lamp("estimate", "vgg", "--sparsity", "0.9")


@pytest.mark.filterwarnings("ignore::lamplighter.LamplighterWarning")
def test_measuring_tells_ours_from_dense(lamp):
    arguments = ["--model", "linear", "--density", "0.01", "--repeats", "2", "--against", "eager"]
    rows = json.loads(lamp("sparse", *arguments, "--json").stdout)["rows"]
    assert [(row["contender"], row["density"], len(row["seconds"])) for row in rows] == [
        ("eager", None, 2),
        ("ours", 0.01, 2),
    ]
    assert rows[0]["speedup"] == 1
    assert "eager" in lamp("sparse", *arguments).stdout


def test_what_is_not_there_is_refused(lamp):
    for arguments in (["--model", "lenet"], ["--density", "0"], ["--against", "abacus"]):
        with pytest.raises(LamplighterError):
            lamp("sparse", *arguments)
