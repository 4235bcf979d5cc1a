"""Everything random that a phase of training does to images, drawn beforehand from one seed."""

from typing import NamedTuple

import torch
from torch import Tensor

from lamplighter.errors import LamplighterError
from lamplighter.training.settings import Settings

# Random parts of photographs, as is usual on ImageNet: their share of the area, and width / height.
_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)
_TRIES = 10


class Draws(NamedTuple):
    """One row per step, one entry per image of its batch.

    Drawn on the CPU whatever trains, so that a seed means the same everywhere; seven bytes per image and step.
    """

    chosen: Tensor  # which image; int32
    shift: Tensor  # rows and columns by which the crop is moved, 0 to 2 * padding; uint8, last dimension 2
    flip: Tensor  # whether it is mirrored; bool
    window: Tensor  # top, left, height, width of the part cut out, as fractions; float32, last dimension 4; or empty


def draw(settings: Settings, images: int, seed: int, aspects: Tensor | None = None) -> Draws:
    """The draws of a whole phase: epoch after epoch a new permutation, without its last incomplete batch.

    Args:
        settings: of the phase.
        images: how many there are to choose from.
        seed: of everything drawn here.
        aspects: width / height of each image, which `crop` respects.
    """
    if images < settings.batch:
        raise LamplighterError(f"a batch of {settings.batch} cannot be drawn from {images} images")
    generator = torch.Generator().manual_seed(seed)
    per_epoch = images // settings.batch
    epochs = -(-settings.steps // per_epoch)
    parts = [_epoch(settings, images, generator, aspects) for _ in range(epochs)] or [_nothing()]
    joined = (torch.cat(column)[: settings.steps * settings.batch] for column in zip(*parts, strict=True))
    return Draws(*(column.view(settings.steps, settings.batch, *column.shape[1:]) for column in joined))


def _nothing() -> Draws:
    empty = torch.zeros(0, dtype=torch.int32)
    return Draws(empty, empty.to(torch.uint8).view(0, 2), empty.bool(), torch.zeros(0, 4))


def _epoch(settings: Settings, images: int, generator: torch.Generator, aspects: Tensor | None) -> Draws:
    count = images - images % settings.batch
    index = torch.randperm(images, generator=generator)[:count]
    shift = torch.randint(2 * settings.padding + 1, (count, 2), generator=generator, dtype=torch.uint8)
    coin = torch.rand(count, generator=generator)
    flip = (coin < 0.5) & settings.flip
    window = torch.zeros(count, 0)
    if settings.crop is not None:
        window = windows(torch.ones(count) if aspects is None else aspects[index], generator)
    return Draws(index.int(), shift, flip, window)


def windows(aspects: Tensor, generator: torch.Generator) -> Tensor:
    """A random part of each image: 8 % to all of its area, 3:4 to 4:3 in shape, anywhere within it.

    Each image has ten tries for a part that fits, then takes the largest middle part of an allowed shape.

    Args:
        aspects: width / height of each image.
        generator: of the randomness.

    Returns:
        Top, left, height, width, each as a fraction of the image's own height or width.
    """
    count = len(aspects)
    area = torch.empty(_TRIES, count).uniform_(*_AREA, generator=generator)
    low, high = (torch.tensor(bound).log().item() for bound in _ASPECT)
    shape = torch.empty(_TRIES, count).uniform_(low, high, generator=generator).exp()
    # With the image's height as the unit: width * height = area * aspect, width / height = shape.
    height = (area * aspects / shape).sqrt()
    width = height * shape / aspects
    fits = (height <= 1) & (width <= 1)
    first = fits.to(torch.uint8).argmax(0, keepdim=True)
    height, width = (values.gather(0, first)[0] for values in (height, width))
    nearest = aspects.clamp(*_ASPECT)
    whole_height, whole_width = (aspects / nearest).clamp(max=1), (nearest / aspects).clamp(max=1)
    place = torch.rand(2, count, generator=generator)
    any_fits = fits.any(0)
    height, width = torch.where(any_fits, height, whole_height), torch.where(any_fits, width, whole_width)
    place = torch.where(any_fits, place, torch.full_like(place, 0.5))
    return torch.stack((place[0] * (1 - height), place[1] * (1 - width), height, width), 1)
