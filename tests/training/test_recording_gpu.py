"""Recorded steps on a GPU: the same training as step by step, with every mask held."""

import copy

import pytest
import torch

from lamplighter.models.efficientnet import efficientnet_b0
from lamplighter.training.fit import fit
from lamplighter.training.settings import Settings
from lamplighter.training.trials import fit_many

# What the compiler of some versions of PyTorch uses itself is no matter of ours.
pytestmark = [
    pytest.mark.gpu,
    *map(pytest.mark.filterwarnings, ("ignore:.*torch.jit:DeprecationWarning", "ignore:TensorFloat32")),
]


@pytest.fixture(autouse=True)
def _cuda():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def close(found, expected):
    """The first steps alike; later ones drift apart, as sums are rounded differently."""
    torch.testing.assert_close(found[:3], expected[:3], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.mean(), expected.mean(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("compiled", [False, True])
def test_one_recorded_trial_trains_as_fit(images, network, random_masks, compiled):
    model = network().cuda()
    other = copy.deepcopy(model)
    masks = random_masks(network())
    found = fit(model, images, Settings(steps=20, batch=16, graph=True, compiled=compiled), masks, seed=1)
    expected = fit(other, images, Settings(steps=20, batch=16), masks, seed=1)
    close(found.losses, expected.losses)
    for name, mask in masks.items():
        assert not model.get_parameter(name)[~mask.cuda()].any()


@pytest.mark.parametrize("method", ["branches", "streams", "stacked"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recorded_trials_train_as_each_alone(images, network, random_masks, method, precision):
    settings = Settings(steps=20, batch=16, precision=precision, graph=True)
    models = [network(seed).cuda() for seed in range(3)]
    others = [copy.deepcopy(model) for model in models]
    masks = [random_masks(network()), None, random_masks(network(), 1)]
    found = fit_many(models, images, settings, masks, [1, 2, 3], method=method)
    for other, own, seed, result in zip(others, masks, (1, 2, 3), found, strict=True):
        expected = fit(other, images, Settings(steps=20, batch=16), own, seed=seed)
        if precision == "fp32":
            close(result.losses, expected.losses)
        else:
            torch.testing.assert_close(result.losses.mean(), expected.losses.mean(), rtol=0.05, atol=0.05)
    for model, own in zip(models, masks, strict=True):
        for name, mask in (own or {}).items():
            assert not model.get_parameter(name)[~mask.cuda()].any()


def test_progress_reaches_the_last_step(images, network):
    seen = []
    fit(network().cuda(), images, Settings(steps=7, batch=16, graph=True), progress=seen.append)
    assert seen[-1] == 7


def test_dropout_differs_from_step_to_step_of_a_recording(images):
    model = efficientnet_b0(10, stages=((1, 8, 2, 2, 3),), drop_path=0.5, dropout=0.5).cuda()
    settings = Settings(steps=30, batch=64, lr=0.0, weight_decay=0.0, padding=0, flip=False, graph=True)
    losses = fit(model, images, settings).losses
    assert losses.unique().numel() > 20


def test_a_language_model_trains_recorded(text, language_model):
    settings = {"steps": 20, "batch": 4, "length": 20, "lr": 1e-3}
    model = language_model().cuda()
    other = copy.deepcopy(model)
    found = fit(model, text, Settings(**settings, graph=True))
    close(found.losses, fit(other, text, Settings(**settings)).losses)
