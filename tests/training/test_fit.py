"""`fit` trains, holds pruned weights at zero, and gives the same bits for the same seed."""

import copy

import pytest
import torch

import lamplighter as ll
from lamplighter.data.dataset import Dataset
from lamplighter.errors import LamplighterError
from lamplighter.models.efficientnet import efficientnet_b0
from lamplighter.training.evaluate import evaluate
from lamplighter.training.fit import fit
from lamplighter.training.settings import Settings

OPTIMIZERS = ("adamw", "adam", "sgd")


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_seed_gives_the_same_bits(images, network, optimizer):
    settings = Settings(steps=6, batch=16, optimizer=optimizer)
    models = [network() for _ in range(3)]
    losses = [fit(model, images, settings, seed=seed).losses for model, seed in zip(models, (1, 1, 2), strict=True)]
    assert torch.equal(losses[0], losses[1])
    assert same(models[0], models[1])
    assert not same(models[0], models[2])


def test_a_seed_gives_the_same_dropout_whatever_was_drawn_before(images):
    settings = Settings(steps=3, batch=8)
    model = efficientnet_b0(10, stages=((1, 8, 2, 2, 3),), drop_path=0.5, dropout=0.5)
    other = copy.deepcopy(model)
    fit(model, images, settings, seed=1)
    torch.rand(17)
    before = torch.get_rng_state()
    fit(other, images, settings, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert same(model, other)


def test_training_equals_a_loop_written_out(images, network):
    """Without augmentation, against PyTorch's optimizer and a hand-made order."""
    settings = Settings(steps=5, batch=16, padding=0, flip=False, lr=0.01, warmup=3)
    model, other = network(), network()
    fit(model, images, settings, seed=4)
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.01)
    generator = torch.Generator().manual_seed(4)
    step = 0
    while step < 5:
        order = torch.randperm(64, generator=generator)
        torch.randint(1, (64, 2), generator=generator, dtype=torch.uint8)
        torch.rand(64, generator=generator)
        for batch in order.split(16)[: 5 - step]:
            optimizer.param_groups[0]["lr"] = 0.01 * min(1, (step + 1) / 3)
            pixels = images.train_images[batch].permute(0, 3, 1, 2).float() / 255
            mean, std = (torch.tensor(values).view(3, 1, 1) for values in (images.mean, images.std))
            loss = torch.nn.functional.cross_entropy(other((pixels - mean) / std), images.train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    # A rounding in the input decides the sign of near-zero gradients, which Adam turns into whole steps.
    for ours, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pruned_weights_and_their_gradients_are_zero_throughout(images, network, random_masks, optimizer):
    model = network()
    masks = random_masks(model)
    seen = []

    def look(done):
        for name, mask in masks.items():
            parameter = model.get_parameter(name)
            pruned = parameter.detach()[~mask]
            assert not pruned.any()
            assert not pruned.signbit().any()
            assert not parameter.grad[~mask].any()
            assert parameter.detach()[mask].any()
        seen.append(done)

    fit(model, images, Settings(steps=4, batch=16, optimizer=optimizer, lr=0.01), masks, progress=look)
    assert seen == [1, 2, 3, 4]


def test_masks_of_prune_are_taken_as_they_are(images, network):
    model = network()
    masks = ll.prune(model, sparsity=0.9)
    fit(model, images, Settings(steps=2, batch=16), masks)
    nonzero = sum(int(model.get_parameter(name).count_nonzero()) for name in masks)
    assert nonzero <= masks.total_kept
    assert nonzero > 0.9 * masks.total_kept


def test_kept_weights_train_as_if_nothing_held_the_others(images, network):
    """A mask that keeps everything changes no bit."""
    model, other = network(), network()
    settings = Settings(steps=3, batch=16)
    fit(model, images, settings, {name: torch.ones_like(p, dtype=torch.bool) for name, p in model.named_parameters()})
    fit(other, images, settings)
    assert same(model, other)


def test_no_steps_change_nothing_but_what_is_pruned(images, network, random_masks):
    model, other = network(), network()
    fit(model, images, Settings(steps=0, batch=16))
    assert same(model, other)
    masks = random_masks(model)
    fit(model, images, Settings(steps=0, batch=16), masks)
    for name, mask in masks.items():
        assert torch.equal(model.get_parameter(name), other.get_parameter(name) * mask)


def test_the_loss_falls_and_the_answers_are_learnt(network):
    """Images of noise, each class of another colour."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(8).repeat(8)
    colours = torch.tensor([[c >> i & 1 for i in range(3)] for c in range(8)])[labels].view(-1, 1, 1, 3)
    pixels = (torch.rand(64, 32, 32, 3, generator=generator) * 100 + colours * 100).to(torch.uint8)
    data = Dataset("coloured", pixels, labels, pixels, labels, (0.5,) * 3, (0.25,) * 3, 8)
    model = network(width=8)
    fitted = fit(model, data, Settings(steps=60, batch=32, lr=3e-3))
    assert fitted.losses[-5:].mean() < fitted.losses[:5].mean() / 3
    assert evaluate(model, data).accuracy > 0.8
    assert fitted.steps == 60
    assert fitted.steps_per_second == pytest.approx(60 / fitted.seconds)


def test_clipping_bounds_the_step(images, network):
    model, other = network(), network()
    settings = {"steps": 1, "batch": 16, "optimizer": "sgd", "lr": 1.0, "weight_decay": 0.0}
    before = [p.detach().clone() for p in model.parameters()]
    fit(model, images, Settings(**settings, clip=0.01))
    fit(other, images, Settings(**settings))

    def moved(trained):
        return torch.cat([(p - q).flatten() for p, q in zip(trained.parameters(), before, strict=True)]).norm().item()

    assert moved(model) == pytest.approx(0.01, rel=1e-3)
    assert moved(other) > 0.1


def test_bf16_trains_close_to_fp32_with_fp32_weights(images, network):
    model, other = network(), network()
    half = fit(model, images, Settings(steps=3, batch=16, precision="bf16"))
    full = fit(other, images, Settings(steps=3, batch=16))
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert not torch.equal(half.losses, full.losses)
    torch.testing.assert_close(half.losses, full.losses, rtol=0.02, atol=0.02)


def test_photographs_are_cut_out_and_resized(network):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (20, 48, 48, 3), dtype=torch.uint8, generator=generator)
    labels, aspects = torch.arange(20) % 10, torch.rand(20, generator=generator) + 0.5
    tested = pixels[:, 8:40, 8:40].contiguous()
    data = Dataset("photographs", pixels, labels, tested, labels, (0.5,) * 3, (0.25,) * 3, 10, aspects)
    model = network()
    assert fit(model, data, Settings(steps=2, batch=10, crop=32)).losses.isfinite().all()
    assert evaluate(model, data).total == 20


def test_divergence_is_an_error(images, network):
    with pytest.raises(LamplighterError, match=r"training diverged: the loss is (nan|inf) in step \d+"):
        fit(network(), images, Settings(steps=6, batch=16, optimizer="sgd", lr=1e30))


def test_a_mask_that_does_not_fit_is_an_error_before_anything_changes(images, network):
    model, other = network(), network()
    name, parameter = next(iter(model.named_parameters()))
    settings = Settings(steps=1, batch=16)
    whole = torch.ones_like(parameter, dtype=torch.bool)
    with pytest.raises(LamplighterError, match=r"there is a mask for features\.0\.wait"):
        fit(model, images, settings, {"features.0.wait": whole})
    with pytest.raises(LamplighterError, match=rf"{name}: the mask is torch.bool of shape \(3,\)"):
        fit(model, images, settings, {name: torch.zeros(3, dtype=torch.bool)})
    with pytest.raises(LamplighterError, match=r"the mask is torch\.float32"):
        fit(model, images, settings, {name: torch.ones_like(parameter)})
    assert same(model, other)


def test_recording_without_cuda_is_an_error(images, network):
    with pytest.raises(LamplighterError, match="steps cannot be recorded on cpu"):
        fit(network(), images, Settings(steps=1, graph=True))
