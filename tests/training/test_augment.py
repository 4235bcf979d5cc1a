"""Batched augmentation does to each image what its definition says, pixel by pixel."""

import pytest
import torch
import torch.nn.functional as F

from lamplighter.training.augment import constants, cut, cut_and_resize, normalise


@pytest.fixture
def images():
    return torch.randint(1, 256, (7, 6, 5, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("padding", [0, 1, 2])
def test_cut_is_padding_then_cropping_then_mirroring(images, padding):
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(7, (40,), generator=generator, dtype=torch.int32)
    shift = torch.randint(2 * padding + 1, (40, 2), generator=generator, dtype=torch.uint8)
    flip = torch.rand(40, generator=generator) < 0.5
    found = cut(images, index, shift, flip, padding)
    assert found.dtype == torch.uint8
    for place in range(40):
        top, left = shift[place].tolist()
        padded = F.pad(images[index[place]], (0, 0, padding, padding, padding, padding))
        expected = padded[top : top + 6, left : left + 5]
        assert torch.equal(found[place], expected.flip(1) if flip[place] else expected)


def test_the_middle_cut_is_the_image_itself(images):
    index = torch.arange(7)
    middle = torch.full((7, 2), 4, dtype=torch.uint8)
    assert torch.equal(cut(images, index, middle, torch.zeros(7, dtype=torch.bool), 4), images)


def test_cut_and_resize_of_everything_is_a_resized_image():
    images = torch.randint(256, (3, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(3, -1)
    flip = torch.tensor([False, True, False])
    found = cut_and_resize(images, torch.arange(3), whole, flip, 5)
    expected = F.interpolate(images.permute(0, 3, 1, 2).float(), size=5, mode="bilinear").permute(0, 2, 3, 1)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1].flip(1))


def test_cut_and_resize_of_a_part_is_that_part():
    images = torch.randint(256, (1, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    window = torch.tensor([[0.25, 0.5, 0.5, 0.375]])
    flip = torch.tensor([False])
    found = cut_and_resize(images, torch.zeros(1, dtype=torch.int32), window, flip, 12)
    rows = (torch.arange(12) + 0.5) / 12 * 4 + 2 - 0.5
    columns = (torch.arange(12) + 0.5) / 12 * 3 + 4 - 0.5
    for i, j in ((0, 0), (5, 7), (11, 11)):
        y, x = rows[i].clamp(0, 7), columns[j].clamp(0, 7)
        top, left = int(y), int(x)
        down, right = min(top + 1, 7), min(left + 1, 7)
        a, b = y - top, x - left
        corner = images[0].float()
        upper = corner[top, left] * (1 - b) + corner[top, right] * b
        lower = corner[down, left] * (1 - b) + corner[down, right] * b
        torch.testing.assert_close(found[0, i, j], upper * (1 - a) + lower * a, rtol=1e-4, atol=1e-3)


def test_normalise_gives_channels_last_with_the_mean_gone(images):
    mean, std = (0.5, 0.25, 0.125), (0.2, 0.3, 0.4)
    scale, offset = constants(mean, std, torch.device("cpu"))
    found = normalise(images, scale, offset)
    assert found.shape == (7, 3, 6, 5)
    assert found.is_contiguous(memory_format=torch.channels_last)
    for colour in range(3):
        expected = (images[..., colour].double() / 255 - mean[colour]) / std[colour]
        torch.testing.assert_close(found[:, colour].double(), expected, rtol=1e-5, atol=1e-5)
