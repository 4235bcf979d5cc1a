"""From budgets to masks: which entries of each layer are kept, as packed bits, and the rest set to zero."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from lamplighter import bits
from lamplighter.errors import LamplighterError
from lamplighter.formats import FORMATS
from lamplighter.kernels import Run, kernels_for
from lamplighter.reading import Piece, Tensors, parallel, pieces, run_of
from lamplighter.spectra import Cut

ROWS_AT_ONCE = 1 << 22  # entries that are sorted at once for a pattern


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


def parse_pattern(pattern: str) -> tuple[int, int] | None:
    """(N, M) of "N:M", None for "row".

    >>> parse_pattern("2:4")
    (2, 4)
    """
    found = re.fullmatch(r"(\d+):(\d+)", pattern) if isinstance(pattern, str) else None
    if pattern != "row" and (found is None or not 0 < int(found[1]) <= int(found[2])):
        raise LamplighterError(f"unknown pattern {pattern!r}", 'use "row", or "N:M" with 0 < N <= M such as "2:4"')
    return (int(found[1]), int(found[2])) if found else None


def codes_of(tensor: Tensor) -> Tensor:
    """The magnitudes as integers that sort like them."""
    form = FORMATS[tensor.dtype]
    return tensor.contiguous().view(form.bits) & form.code_mask


def select_groups(tensor: Tensor, alive: Tensor | None, n: int, m: int, axis: int) -> Tensor:
    """The packed mask that keeps the n largest of every m consecutive inputs of a row; of equals the later ones."""
    rows, living = _rows(tensor, alive, axis)
    keep = _largest_in_steps(rows.reshape(-1, m), None if living is None else living.reshape(-1, m), n)
    return _packed(keep, tensor, axis)


def fewest_alive(shape: torch.Size, alive: Tensor, m: int, axis: int) -> int:
    """How many are alive in the group of m consecutive inputs that has the fewest."""
    groups = bits.unpack(alive, shape).movedim(axis, 0).reshape(-1, m)
    return int(groups.sum(1).min()) if len(groups) else m


def select_rows(tensor: Tensor, alive: Tensor | None, budget: int, axis: int) -> Tensor:
    """The packed mask that keeps the largest of every row, the same count in each (as far as that many are alive).

    Where the budget is not a multiple of the number of rows, the first rows keep one more.
    """
    rows, living = _rows(tensor, alive, axis)
    most = [rows.shape[1]] * len(rows) if living is None else living.sum(1).tolist()
    counts = torch.tensor(row_counts(most, budget), device=tensor.device).unsqueeze(1)
    return _packed(_largest_in_steps(rows, living, counts), tensor, axis)


def _rows(tensor: Tensor, alive: Tensor | None, axis: int) -> tuple[Tensor, Tensor | None]:
    """Magnitude codes and live entries with one row for each output."""
    rows = codes_of(tensor).movedim(axis, 0)
    living = None if alive is None else bits.unpack(alive, tensor.shape).movedim(axis, 0).flatten(1)
    return rows.reshape(len(rows), -1), living


def _packed(keep: Tensor, tensor: Tensor, axis: int) -> Tensor:
    shape = (tensor.shape[axis], *tensor.shape[:axis], *tensor.shape[axis + 1 :])
    return bits.pack(keep.view(shape).movedim(0, axis))


def row_counts(alive: list[int], budget: int) -> list[int]:
    """How many entries each row keeps: the same, capped by what is alive; what is left over goes to the first rows.

    >>> row_counts([4, 1, 4], 7)
    [3, 1, 3]
    """
    level, high = 0, max(alive, default=0)
    while level < high:
        middle = (level + high + 1) // 2
        if sum(min(a, middle) for a in alive) <= budget:
            level = middle
        else:
            high = middle - 1
    counts = [min(a, level) for a in alive]
    left = budget - sum(counts)
    for row, a in enumerate(alive):
        if left and a > level:
            counts[row] += 1
            left -= 1
    return counts


def _largest_in_steps(codes: Tensor, alive: Tensor | None, count: int | Tensor) -> Tensor:
    """`_largest`, some rows at a time, so that sorting takes bounded memory."""
    keep = torch.empty(codes.shape, dtype=torch.bool, device=codes.device)
    step = max(ROWS_AT_ONCE // max(codes.shape[1], 1), 1)
    for start in range(0, len(codes), step):
        part = slice(start, start + step)
        wanted = count if isinstance(count, int) else count[part]
        keep[part] = _largest(codes[part], None if alive is None else alive[part], wanted)
    return keep


def _largest(codes: Tensor, alive: Tensor | None, count: int | Tensor) -> Tensor:
    """Which entries of each row are its `count` largest live ones; of equals the later ones."""
    keys = codes.to(torch.int64) + 1
    if alive is not None:
        keys = keys * alive
    order = keys.argsort(dim=1, stable=True)
    places = torch.arange(codes.shape[1], device=codes.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, places)
    keep = rank >= codes.shape[1] - count
    return keep if alive is None else keep & alive
