"""From budgets to masks: which entries of each layer are kept, as packed bits, and the rest set to zero."""

from collections.abc import Mapping

import torch
from torch import Tensor

from lamplighter.kernels import Run, batches, kernels_for
from lamplighter.reading import Tensors, run_of
from lamplighter.spectra import Cut


def select(source: Tensors, cuts: Mapping[str, Cut], *, erase: bool) -> dict[str, Tensor]:
    """Cut every layer: its packed mask; what is not kept becomes +0.0 in place if `erase`."""
    # All of what stays is allocated first: between what comes and goes it would leave holes.
    masks = {
        n: torch.empty((t.numel() + 7) // 8, dtype=torch.uint8, device=t.device) for n, t in source.tensors.items()
    }
    done = _select_batches(source, cuts, masks, erase=erase)
    for name, cut in cuts.items():
        tensor = source.tensors[name]
        if name not in done:
            run = run_of(tensor, source.alive.get(name))
            kernels_for(run).select(run, cut.code, cut.drop, masks[name], erase=erase)
            if erase:
                _write_back(tensor, run)
    return masks


def _select_batches(
    source: Tensors, cuts: Mapping[str, Cut], masks: Mapping[str, Tensor], *, erase: bool
) -> Mapping[str, Run]:
    """The same for what can be read many layers at a time; which layers these are."""
    done: dict[str, Run] = {}
    for batch in batches(source.in_place(cuts)):
        runs, kernels = list(batch.values()), kernels_for(next(iter(batch.values())))
        each = [(cuts[name].code, cuts[name].drop) for name in batch]
        kernels.select_many(runs, each, [masks[name] for name in batch], erase=erase)
        for name, run in batch.items():
            if erase:
                _write_back(source.tensors[name], run)
        done |= batch
    return done


def erase(tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
    """Set to +0.0 in place what the packed masks do not keep."""
    for name, tensor in tensors.items():
        run = run_of(tensor, masks[name])
        kernels_for(run).erase(run)
        _write_back(tensor, run)


def _write_back(tensor: Tensor, run: Run) -> None:
    if not tensor.is_contiguous():
        tensor.copy_(run.entries.view(tensor.shape))
    elif not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)  # written to behind torch's back: autograd should know
