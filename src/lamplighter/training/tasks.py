"""The loss of a step: which images or words it takes, and what the network should have answered.

What a task needs stands in tables, static tensors on the device, and the step is a tensor too, so that nothing has to
be handed over while training runs and a recorded step stays valid.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamplighter.data.dataset import Corpus, Dataset
from lamplighter.errors import LamplighterError
from lamplighter.models.transformer_xl import Memory, TransformerXL
from lamplighter.training import augment
from lamplighter.training.draws import Draws, draw
from lamplighter.training.settings import Settings


class Task(NamedTuple):
    """Two functions: what a step (of shape (1,)) takes from the tables, and the mean loss of a network on that.

    Only the second is compiled. What it is given has the same shapes however many steps a phase of training has, so
    that phases of all lengths share the compiled code.
    """

    take: Callable[[Tensor], Any]
    loss: Callable[[nn.Module, Any], Tensor]


class ImageTables(NamedTuple):
    """Images on the device, and the draws of every step, or of one."""

    images: Tensor
    labels: Tensor
    draws: Draws
    scale: Tensor
    offset: Tensor
    padding: int
    crop: int | None


class TextTables(NamedTuple):
    """Text in columns that are read in parallel, and the memory between segments."""

    columns: Tensor
    states: Tensor
    filled: Tensor
    length: int
    segments: int


def task(
    model: nn.Module, data: Dataset | Corpus, settings: Settings, seed: int, *, rank: int = 0, world: int = 1
) -> Task:
    """The task for a dataset, with its tables on the device of the data.

    Args:
        model: the network; the size of its memory is read from it where it has one.
        data: what to train on.
        settings: of the phase.
        seed: of the order of images and their augmentation. Text is always read in order.
        rank: which share of each batch of images this process takes.
        world: how many processes share a batch.
    """
    if isinstance(data, Dataset):
        return Task(partial(image_step, image_tables(data, settings, seed, rank, world)), image_loss)
    if not isinstance(model, TransformerXL):
        raise LamplighterError(f"{type(model).__name__} cannot be trained on text", "use transformer_xl")
    tables = text_tables(model, data, settings)
    return Task(lambda step: (tables, step), text_loss)


def image_tables(data: Dataset, settings: Settings, seed: int, rank: int = 0, world: int = 1) -> ImageTables:
    """Draw what happens in every step, and put it beside the images."""
    if settings.batch % world:
        raise LamplighterError(f"a batch of {settings.batch} cannot be shared evenly by {world} processes")
    device = data.train_images.device
    aspects = None if data.train_aspects is None else data.train_aspects.cpu()
    drawn = draw(settings, len(data.train_images), seed, aspects)
    draws = Draws(*(part[:, rank::world].contiguous().to(device) for part in drawn))
    scale, offset = augment.constants(data.mean, data.std, device)
    return ImageTables(data.train_images, data.train_labels, draws, scale, offset, settings.padding, settings.crop)


def image_step(tables: ImageTables, step: Tensor) -> ImageTables:
    """The tables with the draws of one step alone."""
    return tables._replace(draws=Draws(*(part.index_select(0, step).squeeze(0) for part in tables.draws)))


def image_batch(tables: ImageTables) -> tuple[Tensor, Tensor]:
    """The images of one step, augmented and normalised, and their labels."""
    chosen, shift, flip, window = tables.draws
    if tables.crop is None:
        pixels = augment.cut(tables.images, chosen, shift, flip, tables.padding)
    else:
        pixels = augment.cut_and_resize(tables.images, chosen, window, flip, tables.crop)
    return augment.normalise(pixels, tables.scale, tables.offset), tables.labels[chosen.long()]


def image_loss(model: nn.Module, tables: ImageTables) -> Tensor:
    """Cross entropy of one step's batch."""
    images, labels = image_batch(tables)
    return F.cross_entropy(model(images).float(), labels)


def in_columns(tokens: Tensor, count: int) -> Tensor:
    """The text cut into `count` equal parts that are read in parallel; the rest is dropped."""
    return tokens[: len(tokens) // count * count].view(count, -1)


def text_tables(model: TransformerXL, data: Corpus, settings: Settings) -> TextTables:
    """Columns of the training text, and an empty memory."""
    columns = in_columns(data.train, settings.batch).contiguous()
    segments = (columns.shape[1] - 1) // settings.length
    if segments < 1:
        parts = f"{settings.batch} columns of more than {settings.length}"
        raise LamplighterError(f"{len(data.train):,} words of {data.name} do not fill {parts}")
    memory = model.fresh_memory(settings.batch)
    return TextTables(columns, memory.states, memory.filled, settings.length, segments)


def text_loss(model: nn.Module, taken: tuple[TextTables, Tensor]) -> Tensor:
    """Cross entropy of a step's segment. The memory goes on to the next segment and is emptied before the first."""
    tables, step = taken
    segment = step % tables.segments
    places = segment * tables.length + torch.arange(tables.length + 1, device=step.device)
    words = tables.columns.index_select(1, places).long()
    filled = tables.filled * (segment != 0).squeeze()
    logits, memory = model(words[:, :-1], Memory(tables.states, filled))
    loss = F.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())
    with torch.no_grad():
        tables.states.copy_(memory.states)
        tables.filled.copy_(memory.filled)
    return loss
