"""From budgets to masks: which entries of each layer are kept, as packed bits, and the rest set to zero."""

from collections.abc import Mapping

import torch
from torch import Tensor

from lamplighter.kernels import Run, kernels_for
from lamplighter.reading import Piece, Tensors, parallel, pieces, run_of
from lamplighter.spectra import Cut


def select(source: Tensors, cuts: Mapping[str, Cut], *, erase: bool) -> dict[str, Tensor]:
    """Cut every layer: its packed mask; what is not kept becomes +0.0 in place if `erase`."""
    masks = {
        n: torch.empty((t.numel() + 7) // 8, dtype=torch.uint8, device=t.device) for n, t in source.tensors.items()
    }
    tasks = pieces(source.tensors, cuts)
    drops = _drops(source, cuts, tasks)

    def work(piece: Piece) -> None:
        tensor = source.tensors[piece.layer]
        run = run_of(tensor, source.alive.get(piece.layer), piece)
        packed = masks[piece.layer][piece.packed]
        kernels_for(run).select(run, cuts[piece.layer].code, drops[piece], packed, erase=erase)
        if erase:
            _write_back(tensor, run)

    parallel(work, tasks)
    return masks


def _drops(source: Tensors, cuts: Mapping[str, Cut], tasks: list[Piece]) -> dict[Piece, int]:
    """How many of the entries equal to the cut are dropped in each piece: the first ones of the layer."""
    split = {t.layer for t in tasks if t.start and cuts[t.layer].drop}

    def equals(piece: Piece) -> int:
        run = run_of(source.tensors[piece.layer], source.alive.get(piece.layer), piece)
        return int(kernels_for(run).tied(run, cuts[piece.layer].code))

    counted = [t for t in tasks if t.layer in split]
    tied = dict(zip(counted, parallel(equals, counted), strict=True))
    left = {name: cut.drop for name, cut in cuts.items()}
    drops = {}
    for task in tasks:
        drops[task] = min(left[task.layer], tied.get(task, left[task.layer]))
        left[task.layer] -= drops[task]
    return drops


def erase(tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
    """Set to +0.0 in place what the packed masks do not keep."""

    def work(piece: Piece) -> None:
        tensor = tensors[piece.layer]
        run = run_of(tensor, masks[piece.layer], piece)
        kernels_for(run).erase(run)
        _write_back(tensor, run)

    parallel(work, pieces(tensors, tensors))


def _write_back(tensor: Tensor, run: Run) -> None:
    if not tensor.is_contiguous():
        tensor.copy_(run.entries.view(tensor.shape))
    elif not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)  # numpy wrote behind torch's back: autograd should know
