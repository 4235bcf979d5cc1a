"""What training reads: images with labels, or text as word numbers, as tensors on one device."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images.

    Args:
        name: as in the catalog.
        train_images: uint8, (images, height, width, 3).
        train_labels: int64, (images,).
        test_images: uint8, of the size that the network is tested on.
        test_labels: int64, (images,).
        mean: of each colour, on the scale 0 to 1; subtracted from images.
        std: of each colour; images are divided by it.
        classes: how many labels there are.
        train_aspects: width / height of each training image before it was made square, if it was; float32.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    classes: int
    train_aspects: Tensor | None = None

    def to(self, device: torch.device | str) -> Self:
        """The same data on `device`."""
        aspects = None if self.train_aspects is None else self.train_aspects.to(device)
        return replace(
            self,
            train_images=self.train_images.to(device),
            train_labels=self.train_labels.to(device),
            test_images=self.test_images.to(device),
            test_labels=self.test_labels.to(device),
            train_aspects=aspects,
        )


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text in three parts, each a sequence of word numbers (int32); `words[i]` is word i."""

    name: str
    train: Tensor
    valid: Tensor
    test: Tensor
    words: tuple[str, ...]

    def to(self, device: torch.device | str) -> Self:
        """The same text on `device`."""
        return replace(self, train=self.train.to(device), valid=self.valid.to(device), test=self.test.to(device))
