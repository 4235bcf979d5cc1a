"""The draws of a phase: permutations without their last incomplete batch, the same for the same seed."""

import pytest
import torch

from lamplighter.errors import LamplighterError
from lamplighter.training.draws import draw, windows
from lamplighter.training.settings import Settings


def test_every_epoch_is_a_permutation_whose_incomplete_batch_is_dropped():
    drawn = draw(Settings(steps=9, batch=3), images=11, seed=0)
    assert drawn.chosen.shape == (9, 3)
    epochs = [drawn.chosen[first : first + 3].flatten().tolist() for first in (0, 3, 6)]
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert {image for epoch in epochs for image in epoch} <= set(range(11))


def test_a_phase_may_end_within_an_epoch():
    short, long = (draw(Settings(steps=steps, batch=3), images=11, seed=0) for steps in (4, 9))
    assert all(torch.equal(a, b[:4]) for a, b in zip(short, long, strict=True))


def test_the_seed_decides_everything():
    settings = Settings(steps=5, batch=4)
    first, again, other = (draw(settings, 20, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.chosen, other.chosen)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    draw(Settings(steps=5, batch=4, crop=8), 20, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_shifts_cover_the_padding_and_half_the_images_are_mirrored():
    drawn = draw(Settings(steps=100, batch=100, padding=2), 100, 0)
    assert drawn.shift.unique().tolist() == [0, 1, 2, 3, 4]
    assert drawn.flip.float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert not draw(Settings(steps=100, batch=100, flip=False), 100, 0).flip.any()


def test_flips_do_not_change_the_other_draws():
    flipped, plain = (draw(Settings(steps=10, batch=10, flip=flip), 100, 0) for flip in (True, False))
    assert torch.equal(flipped.chosen, plain.chosen)
    assert torch.equal(flipped.shift, plain.shift)


def test_no_steps_need_no_draws():
    assert draw(Settings(steps=0), 100, 0).chosen.shape == (0, 100)


def test_too_few_images_are_an_error():
    with pytest.raises(LamplighterError, match="a batch of 100 cannot be drawn from 99 images"):
        draw(Settings(steps=1), 99, 0)


def test_windows_lie_within_the_image_with_the_usual_areas_and_shapes():
    aspects = torch.tensor([1.0, 1.5, 0.7, 3.0]).repeat(500)
    top, left, height, width = windows(aspects, torch.Generator().manual_seed(0)).unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 1 + 1e-6).all()
    assert (left + width <= 1 + 1e-6).all()
    area, shape = height * width, aspects * width / height
    assert (area >= 0.08 - 1e-6).all()
    assert (shape >= 3 / 4 - 1e-5).all()
    assert (shape <= 4 / 3 + 1e-5).all()


def test_windows_are_distributed_as_torchvisions():
    transforms = pytest.importorskip("torchvision.transforms")
    image = torch.empty(3, 200, 300)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = [transforms.RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(2000)]
    theirs = torch.tensor(theirs) / torch.tensor([200, 300, 200, 300])
    ours = windows(torch.full((2000,), 1.5), torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours.mean(0), theirs.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(ours.std(0), theirs.std(0), rtol=0, atol=0.02)


def test_an_image_too_long_for_any_window_gives_its_middle():
    top, left, height, width = windows(torch.tensor([100.0]), torch.Generator().manual_seed(0))[0].tolist()
    assert (top, height) == pytest.approx((0, 1))
    assert width == pytest.approx(4 / 3 / 100)
    assert left == pytest.approx((1 - width) / 2)
