"""Small data, and recipes cut down to networks that train in a second."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lamplighter.data.prepare import load, prepare
from lamplighter.experiments.recipes import find_recipe
from lamplighter.experiments.runner import Request, carry_out
from lamplighter.experiments.starting import Place

TINY_STAGES = ((1, 8, 1, 1, 3), (6, 8, 2, 2, 3))
OPTIONS = {
    "vgg16": {"width": 4},
    "resnet20": {"width": 4},
    "resnet34": {"width": 4},
    "resnet50": {"width": 4},
    "conv6": {"width": 4},
    "densenet121": {"growth": 4, "blocks": (1, 2, 1, 1)},
    "efficientnet-b0": {"stages": TINY_STAGES},
    "transformer-xl": {"layers": 2, "width": 20, "heads": 2, "inner": 30, "memory": 8},
}


class Silent:
    """Follows the work and remembers what was trained."""

    def __init__(self):
        self.phases = []
        self.records = []

    def phase(self, title, steps):
        self.phases.append((title, steps))

    def step(self, done):
        pass

    def finished(self, run, record):
        self.records.append((run.spec.method, run.spec.seed, record.round))


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def silent():
    return Silent()


@pytest.fixture
def tiny():
    """A recipe with a small network, small batches and few steps."""

    def make(name, *, dense=3, retrain=2):
        recipe = find_recipe(name, 1e-5)
        spec = recipe.spec

        def shorter(settings, steps):
            sizes = {"batch": 4, "length": 8} if spec.model == "transformer-xl" else {"batch": 16}
            return replace(settings, steps=steps if settings.steps else 0, **sizes)

        phases = {"dense": shorter(spec.dense, dense), "retrain": shorter(spec.retrain, retrain)}
        spec = replace(spec, **phases, options=OPTIONS[spec.model], rewind_step=min(1, spec.rewind_step))
        return replace(recipe, spec=spec)

    return make


@pytest.fixture
def run_tiny(silent):
    """Carries out a recipe on the CPU; the runs."""

    def run(recipe, data, root, *, methods=("lamp", "erk"), seeds=(0,), rounds=(1, 2), watch=silent, together=5):
        request = Request(recipe, tuple(methods), tuple(seeds), tuple(rounds), together)
        return carry_out(request, Place(Path(root), data, torch.device("cpu")), watch)

    return run


def prepared(name, source, folder):
    prepare(name, source, folder)
    return load(name, folder)


@pytest.fixture
def images(write_images, tmp_path):
    """96 + 40 images in the schema of CIFAR-10, prepared and loaded as the real ones are."""
    for split, count in (("train", 96), ("test", 40)):
        labels = [place % 10 for place in range(count)]
        write_images(tmp_path / "source" / f"{split}-00000-of-00001.parquet", labels, seed=count)
    with pytest.warns(UserWarning, match="not the complete dataset"):
        return prepared("cifar10", tmp_path / "source", tmp_path / "prepared")
