"""Several networks of one form trained as one: their parameters stacked, their operations batched.

The images of all networks go through layers that know which belong to which (see `stacked_layers`); gradients of one
network do not depend on the others.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamplighter.data.dataset import Corpus, Dataset
from lamplighter.errors import LamplighterError
from lamplighter.training import update as plain_update
from lamplighter.training.draws import Draws
from lamplighter.training.fit import compiled
from lamplighter.training.flat import Flat, lay_out
from lamplighter.training.pruned import kept_entries
from lamplighter.training.settings import Settings
from lamplighter.training.stacked_layers import is_plain, join_blocks, stack_layers, unstackable
from lamplighter.training.tasks import ImageTables, image_batch, image_step, image_tables
from lamplighter.training.trial import groups, owners, shared_out, update_module


def stacks_well(model: nn.Module, settings: Settings) -> bool:
    """Whether training stacked on CUDA is the fastest: in bf16, with kernels for all convolutions."""
    if settings.precision != "bf16" or settings.clip is not None or unstackable(model) is not None:
        return False
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    return all(is_plain(layer) and (layer.in_channels % 16 == 0 or layer.in_channels < 16) for layer in layers)


class Stack:
    """Networks of one form in training together, on images.

    Args:
        models: the networks, unchanged until `finish`.
        data: images, on the networks' device.
        settings: of the phase, for all.
        masks: for each network, as `fit` takes them.
        seeds: for each network, of its data's order and augmentation.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        data: Dataset | Corpus,
        settings: Settings,
        masks: Sequence[Mapping[str, Tensor] | None],
        seeds: Sequence[int],
    ) -> None:
        if not isinstance(data, Dataset):
            raise LamplighterError("stacked training is for images", "train on text with method='branches'")
        if settings.clip is not None:
            raise LamplighterError("stacked training cannot clip gradients", "leave out clip")
        self.models = models
        self.settings = settings
        self.device = next(models[0].parameters()).device
        self._network = stack_layers(models[0], len(models))
        self.tables = _stack_tables([image_tables(data, settings, seed) for seed in seeds])
        self._loss_of = compiled(self._losses_of, settings)
        kept = [kept_entries(model, own) for model, own in zip(models, masks, strict=True)]
        self._names: list[list[str]] = []
        self._flats: list[Flat] = []
        self._leaves: list[nn.Parameter] = []
        users = owners(self._network)
        for dtype, names in groups(models[0], settings.precision):
            entries = [_stack_kept([own.get(name) for own in kept]) for name in names]
            flat = lay_out(self._stacked(names), entries, dtype)
            for name, place in zip(names, flat.views(flat.working), strict=True):
                self._leaves.append(leaf := nn.Parameter(place))
                for module, attribute in users[name]:
                    setattr(module, attribute, leaf)
            self._names.append(names)
            self._flats.append(flat)
        for name, values in self._columns("named_buffers").items():
            path, _, attribute = name.rpartition(".")
            setattr(self._network.get_submodule(path), attribute, torch.stack(values))
        self._buffers = dict(self._network.named_buffers())
        join_blocks(self._network)
        self._rule = plain_update.rule(settings)
        self._rows = plain_update.table(settings, self.device)
        self._rules = update_module(self.device)
        self._whole = torch.ones(1, device=self.device)
        self._step = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._losses = torch.zeros(settings.steps, len(models), device=self.device)

    def _columns(self, kind: str) -> dict[str, list[Tensor]]:
        """For each parameter or buffer, its value in every network."""
        each = [dict(getattr(model, kind)()) for model in self.models]
        return {name: [own[name].detach() for own in each] for name in each[0]}

    def _stacked(self, names: Sequence[str]) -> list[Tensor]:
        columns = self._columns("named_parameters")
        return [torch.stack(columns[name]) for name in names]

    def _losses_of(self, network: nn.Module, tables: ImageTables) -> Tensor:
        """The mean loss of each network's batch."""
        images, labels = image_batch(tables)
        losses = F.cross_entropy(network(images).float(), labels, reduction="none")
        return losses.view(len(self.models), -1).mean(1)

    def step(self) -> None:
        """One step of every network."""
        losses = self._loss_of(self._network, image_step(self.tables, self._step))
        gradients = torch.autograd.grad(losses.sum(), self._leaves, allow_unused=True)
        for flat, own in shared_out(gradients, self._flats):
            self._rules.update_from(flat, own, self._rule, self._rows, self._step, self._whole)
        self._losses.index_copy_(0, self._step, losses.detach().view(1, -1))
        self._step += 1

    @torch.no_grad()
    def reset(self) -> None:
        """Back to before the first step."""
        for flat, names in zip(self._flats, self._names, strict=True):
            flat.load(self._stacked(names))
        for name, values in self._columns("named_buffers").items():
            self._buffers[name].copy_(torch.stack(values))
        self._step.zero_()

    @torch.no_grad()
    def finish(self) -> list[Tensor]:
        """Write what has been trained into the networks; the losses of every step for each."""
        for place, model in enumerate(self.models):
            parameters = dict(model.named_parameters())
            for flat, names in zip(self._flats, self._names, strict=True):
                for name, values in zip(names, flat.views(flat.master), strict=True):
                    parameters[name].copy_(values[place])
            for name, buffer in model.named_buffers():
                buffer.copy_(self._buffers[name][place])
            model.train()
        return list(self._losses.cpu().unbind(1))


def _stack_tables(each: Sequence[ImageTables]) -> ImageTables:
    """One set of tables in which a step's batch is every network's batch, one after another."""
    draws = Draws(*(torch.cat(parts, 1) for parts in zip(*(tables.draws for tables in each), strict=True)))
    return each[0]._replace(draws=draws)


def _stack_kept(each: Sequence[Tensor | None]) -> Tensor | None:
    known = next((entries for entries in each if entries is not None), None)
    if known is None:
        return None
    return torch.stack([torch.ones_like(known) if entries is None else entries for entries in each])
