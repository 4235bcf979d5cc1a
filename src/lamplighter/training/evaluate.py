"""How good a network is on the whole test set."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamplighter.data.dataset import Corpus, Dataset
from lamplighter.models.transformer_xl import TransformerXL
from lamplighter.training import augment
from lamplighter.training.numerics import autocast, numerics
from lamplighter.training.tasks import in_columns


@dataclass(frozen=True)
class Score:
    """Over `total` images or words: how many answers were right, and the mean loss."""

    correct: int
    total: int
    loss: float

    @property
    def accuracy(self) -> float:
        """Fraction of right answers."""
        return self.correct / self.total

    @property
    def perplexity(self) -> float:
        """The exponential of the mean loss."""
        return math.exp(self.loss)


def evaluate(
    model: nn.Module, data: Dataset | Corpus, *, precision: str = "fp32", batch: int = 1000, length: int = 70
) -> Score:
    """Run the network in evaluation mode over all of the test data; its mode is restored.

    Args:
        model: the network.
        data: its test part is used.
        precision: as in `Settings`.
        batch: images at once.
        length: words at once. Text is read in one piece, so that every word but the first is predicted, each from all
            that the memory holds.
    """
    device = next(model.parameters()).device
    before = model.training
    model.eval()
    try:
        with torch.no_grad(), numerics(precision, device), autocast(precision, device):
            if isinstance(data, Dataset):
                counted = _images(model, data, batch, device)
            else:
                assert isinstance(model, TransformerXL)
                counted = _text(model, data.test.to(device), length)
    finally:
        model.train(before)
    correct, loss, total = counted
    return Score(int(correct), total, float(loss) / total)


def _images(model: nn.Module, data: Dataset, batch: int, device: torch.device) -> tuple[Tensor, Tensor, int]:
    scale, offset = augment.constants(data.mean, data.std, device)
    correct = torch.zeros((), dtype=torch.int64, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    for begin in range(0, len(data.test_labels), batch):
        here, wanted = (part[begin : begin + batch].to(device) for part in (data.test_images, data.test_labels))
        _count(model(augment.normalise(here, scale, offset)), wanted, correct, loss)
    return correct, loss, len(data.test_labels)


def _text(model: TransformerXL, tokens: Tensor, length: int) -> tuple[Tensor, Tensor, int]:
    column = in_columns(tokens, 1).long()
    correct = torch.zeros((), dtype=torch.int64, device=tokens.device)
    loss = torch.zeros((), dtype=torch.float64, device=tokens.device)
    memory = model.fresh_memory(1)
    last = column.shape[1] - 1
    for begin in range(0, last, length):
        end = min(begin + length, last)
        logits, memory = model(column[:, begin:end], memory)
        _count(logits[0], column[0, begin + 1 : end + 1], correct, loss)
    return correct, loss, last


def _count(logits: Tensor, wanted: Tensor, correct: Tensor, loss: Tensor) -> None:
    correct += (logits.argmax(-1) == wanted).sum()
    loss += F.cross_entropy(logits.float(), wanted, reduction="none").double().sum()
