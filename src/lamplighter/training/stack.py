"""Several networks of one form trained as one: their parameters stacked, their operations batched.

A convolution over k networks becomes one convolution of k groups, everything else one operation on tensors that are k
times as large; gradients of one network do not depend on the others.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lamplighter.data.dataset import Corpus, Dataset
from lamplighter.errors import LamplighterError
from lamplighter.training import update as plain_update
from lamplighter.training.draws import Draws
from lamplighter.training.fit import compiled
from lamplighter.training.flat import Flat, lay_out
from lamplighter.training.pruned import kept_entries
from lamplighter.training.settings import Settings
from lamplighter.training.tasks import ImageTables, image_batch, image_step, image_tables
from lamplighter.training.trial import HALVED, groups, update_module

_CASTING = (*HALVED, nn.BatchNorm2d)


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
        self._form = copy.deepcopy(models[0]).train()
        # Autocast does not reach operations under vmap, so layers cast their inputs to what their weights are in.
        for layer in self._form.modules():
            if isinstance(layer, _CASTING):
                layer.register_forward_pre_hook(_as_weight)
        self.tables = _stack_tables([image_tables(data, settings, seed) for seed in seeds])
        self._loss_of = compiled(self._losses_of, settings)
        kept = [kept_entries(model, own) for model, own in zip(models, masks, strict=True)]
        self._names: list[list[str]] = []
        self._flats: list[Flat] = []
        self._leaves: dict[str, Tensor] = {}
        for dtype, names in groups(models[0], settings.precision):
            entries = [_stack_kept([own.get(name) for own in kept]) for name in names]
            flat = lay_out(self._stacked(names), entries, dtype)
            for name, place in zip(names, flat.views(flat.working), strict=True):
                self._leaves[name] = place.requires_grad_()
            self._names.append(names)
            self._flats.append(flat)
        self._buffers = {name: torch.stack(values) for name, values in self._columns("named_buffers").items()}
        self._rule = plain_update.rule(settings)
        self._rows = plain_update.table(settings, self.device)
        self._update = update_module(self.device).update
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

    def _losses_of(self, leaves: dict[str, Tensor], tables: ImageTables) -> Tensor:
        """The mean loss of each network's batch."""
        count = len(self.models)
        images, labels = image_batch(tables)
        split = images.view(count, -1, *images.shape[1:])

        def run(parameters: dict[str, Tensor], buffers: dict[str, Tensor], batch: Tensor) -> Tensor:
            logits: Tensor = functional_call(self._form, (parameters, buffers), (batch,))
            return logits

        logits = vmap(run, randomness="different")(leaves, self._buffers, split)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), labels, reduction="none")
        return losses.view(count, -1).mean(1)

    def step(self) -> None:
        """One step of every network."""
        losses = self._loss_of(self._leaves, image_step(self.tables, self._step))
        leaves = [self._leaves[name] for names in self._names for name in names]
        gradients = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        begin = 0
        for flat in self._flats:
            end = begin + len(flat.shapes)
            flat.take(gradients[begin:end])
            begin = end
            self._update(flat, self._rule, self._rows, self._step, self._whole)
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


def _as_weight(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    assert isinstance(layer, _CASTING)
    return tuple(value.to(layer.weight.dtype) for value in inputs)


def _stack_tables(each: Sequence[ImageTables]) -> ImageTables:
    """One set of tables in which a step's batch is every network's batch, one after another."""
    draws = Draws(*(torch.cat(parts, 1) for parts in zip(*(tables.draws for tables in each), strict=True)))
    return each[0]._replace(draws=draws)


def _stack_kept(each: Sequence[Tensor | None]) -> Tensor | None:
    known = next((entries for entries in each if entries is not None), None)
    if known is None:
        return None
    return torch.stack([torch.ones_like(known) if entries is None else entries for entries in each])
