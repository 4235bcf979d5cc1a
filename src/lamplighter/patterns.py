"""Patterns: the same count in every row, or N of every M consecutive inputs.

A matrix (outputs, inputs) has a row for each output, and its inputs are its columns. The inputs of a convolution are
its input channels: groups of M run along them at each position of the kernel, as sparse convolutions take them. The
weight of a grouped convolution is taken as it is stored.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from lamplighter import bits
from lamplighter.errors import LamplighterError
from lamplighter.formats import FORMATS
from lamplighter.problem import Problem

ROWS_AT_ONCE = 1 << 22  # entries that are sorted at once
FEW = 8  # so many entries of a row are sooner compared with each other than sorted


def parse_pattern(pattern: str) -> tuple[int, int] | None:
    """(N, M) of "N:M", None for "row".

    >>> parse_pattern("2:4")
    (2, 4)
    """
    found = re.fullmatch(r"(\d+):(\d+)", pattern) if isinstance(pattern, str) else None
    if pattern != "row" and (found is None or not 0 < int(found[1]) <= int(found[2])):
        raise LamplighterError(f"unknown pattern {pattern!r}", 'use "row", or "N:M" with 0 < N <= M such as "2:4"')
    return (int(found[1]), int(found[2])) if found else None


def group_budgets(problem: Problem, n: int, m: int) -> dict[str, int]:
    """N of every M inputs: the same density everywhere. All layers must have a multiple of M inputs."""
    _check_inputs(problem, m)
    budgets = {name: size // m * n for name, size in problem.sizes.items()}
    total = sum(budgets.values())
    if problem.keep != total:
        size = sum(problem.sizes.values())
        raise LamplighterError(
            f'pattern "{n}:{m}" keeps {total:,} weights, but the sparsity asks to keep {problem.keep:,}',
            f"use sparsity={float(Fraction(size - total, size))!r}",
        )
    with problem.ranks.together():
        _check_groups(problem, budgets, n, m)
    return budgets


def _check_groups(problem: Problem, budgets: Mapping[str, int], n: int, m: int) -> None:
    """An error if some group has fewer than n alive, or a layer may not keep what the pattern keeps."""
    for layer, weight in problem.weights:
        name, budget = layer.name, budgets[layer.name]
        alive = problem.source.alive.get(name)
        if alive is not None and (least := fewest_alive(weight.shape, alive, m, layer.output_axis)) < n:
            raise LamplighterError(
                f'pattern "{n}:{m}" keeps {n} of every {m} inputs, but of some in {name} only {least} are alive',
                "weights pruned earlier do not come back: prune with this pattern from the first round on",
            )
        floor, cap = problem.spectra.bounds[name]
        if not floor <= budget <= cap:
            raise LamplighterError(
                f'pattern "{n}:{m}" keeps {budget:,} weights of {name}, expected {floor:,} to {cap:,}',
                "weights pruned earlier do not come back; densities asked for must agree with the pattern",
            )


def _check_inputs(problem: Problem, m: int) -> None:
    """An error if some layers cannot be divided into groups of m inputs; those without any entry always can."""
    sizes = problem.sizes
    inputs = {layer.name: _inputs(layer.shape, layer.output_axis) for layer in problem.layers if sizes[layer.name]}
    odd = [name for name, count in inputs.items() if count % m]
    if odd:
        first, more = odd[0], f" ({len(odd) - 1:,} other layers likewise)" if len(odd) > 1 else ""
        others = f", and the {len(odd) - 3:,} others" if len(odd) > 3 else ""
        raise LamplighterError(
            f"{first} has {inputs[first]:,} inputs for each output, which is no multiple of {m}{more}",
            f"leave them out: exclude={odd[:3]}{others}" if more else f"leave it out: exclude={first!r}",
        )


def _inputs(shape: Sequence[int], axis: int) -> int:
    """How many inputs a layer has for each output (at each position of the kernel); a vector has one."""
    return shape[1 - axis] if len(shape) > 1 else 1


def whole_rows(problem: Problem, budgets: dict[str, int]) -> dict[str, int]:
    """The nearest budgets that give every row of a layer the same count, as far as their sum allows."""
    rows = {layer.name: max(layer.shape[layer.output_axis], 1) for layer in problem.layers}
    bounds = problem.spectra.bounds
    whole = {n: max(b // rows[n] * rows[n], bounds[n][0]) for n, b in budgets.items()}
    left = sum(budgets.values()) - sum(whole.values())
    while left:
        room = {n: min(bounds[n][1] - whole[n], rows[n]) for n in budgets if bounds[n][1] > whole[n]}
        fitting = [n for n in room if room[n] == rows[n] <= left]
        chosen = max(fitting or room, key=lambda n: (budgets[n] - whole[n]) / rows[n])
        more = min(room[chosen], left)
        whole[chosen] += more
        left -= more
    return whole


def select_pattern(problem: Problem, budgets: Mapping[str, int], pattern: str) -> dict[str, Tensor]:
    """The packed masks that keep each layer's budget by the pattern."""
    groups = parse_pattern(pattern)
    packed = {}
    for layer, _ in problem.weights:
        tensor, alive = problem.source.tensors[layer.name], problem.source.alive.get(layer.name)
        part = problem.parts.get(layer.name)
        if groups is not None:
            packed[layer.name] = select_groups(tensor, alive, *groups, layer.output_axis)
        elif part is None:
            packed[layer.name] = select_rows(tensor, alive, budgets[layer.name], layer.output_axis)
        else:
            living = part.along(layer.output_axis, living_rows(tensor, alive, layer.output_axis))
            counts = row_counts(living, budgets[layer.name])
            here = [counts[row] for row in part.places[layer.output_axis].tolist()]
            packed[layer.name] = keep_in_rows(tensor, alive, here, layer.output_axis)
    return packed


def check_rows_here(problem: Problem, pattern: str) -> None:
    """An error for layers that lie in several processes otherwise than by rows: no process could tell a whole row."""
    for layer in problem.layers:
        part = problem.parts.get(layer.name)
        if part is not None and not part.only_along(layer.output_axis):
            raise LamplighterError(
                f"pattern {pattern!r} needs whole rows of {layer.name}, but its inputs lie in several processes",
                f"shard it along axis {layer.output_axis}, its outputs, or leave it out with "
                f"exclude={layer.parameter_name!r}",
            )


def _codes_of(tensor: Tensor) -> Tensor:
    """The magnitudes as integers that sort like them."""
    form = FORMATS[tensor.dtype]
    return tensor.contiguous().view(form.bits) & form.code_mask


def select_groups(tensor: Tensor, alive: Tensor | None, n: int, m: int, axis: int) -> Tensor:
    """The packed mask that keeps the n largest of every m consecutive inputs of an output; of equals the later ones."""
    codes, living = _groups(_codes_of(tensor), m, axis), None
    if alive is not None:
        living = _groups(bits.unpack(alive, tensor.shape), m, axis)
    keep = _largest_in_steps(codes, living, n)
    if tensor.dim() > 1:
        keep = keep.view(tensor.movedim(1 - axis, -1).shape).movedim(-1, 1 - axis)
    return bits.pack(keep)


def fewest_alive(shape: torch.Size, alive: Tensor, m: int, axis: int) -> int:
    """How many are alive in the group of m consecutive inputs that has the fewest."""
    groups = _groups(bits.unpack(alive, shape), m, axis)
    return int(groups.sum(1).min()) if len(groups) else m


def _groups(entries: Tensor, m: int, axis: int) -> Tensor:
    """The entries with one row for each group of m consecutive inputs, for outputs on `axis`."""
    if entries.dim() > 1:
        entries = entries.movedim(1 - axis, -1)
    return entries.reshape(-1, m)


def select_rows(tensor: Tensor, alive: Tensor | None, budget: int, axis: int) -> Tensor:
    """The packed mask that keeps the largest of every row, the same count in each (as far as that many are alive).

    Where the budget is not a multiple of the number of rows, the first rows keep one more.
    """
    return keep_in_rows(tensor, alive, row_counts(living_rows(tensor, alive, axis), budget), axis)


def living_rows(tensor: Tensor, alive: Tensor | None, axis: int) -> list[int]:
    """How many entries of each row are alive."""
    rows = tensor.shape[axis]
    if alive is None:
        return [tensor.numel() // max(rows, 1)] * rows
    found: list[int] = _rows(bits.unpack(alive, tensor.shape), axis).sum(1).tolist()
    return found


def keep_in_rows(tensor: Tensor, alive: Tensor | None, counts: Sequence[int], axis: int) -> Tensor:
    """The packed mask that keeps so many of each row, the largest; of equals the later ones."""
    codes, living = _rows(_codes_of(tensor), axis), None
    if alive is not None:
        living = _rows(bits.unpack(alive, tensor.shape), axis)
    wanted = torch.tensor(counts, dtype=torch.int64, device=tensor.device).unsqueeze(1)
    keep = _largest_in_steps(codes, living, wanted)
    return bits.pack(keep.view(tensor.movedim(axis, 0).shape).movedim(0, axis))


def _rows(entries: Tensor, axis: int) -> Tensor:
    """The entries with one row for each output."""
    rows = entries.shape[axis]
    return entries.movedim(axis, 0).reshape(rows, entries.numel() // max(rows, 1))


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
    if alive is None and isinstance(count, int) and codes.shape[1] <= FEW:
        return _largest_of_few(codes, count)
    keys = codes.to(torch.int64) + 1
    if alive is not None:
        keys = keys * alive
    order = keys.argsort(dim=1, stable=True)
    places = torch.arange(codes.shape[1], device=codes.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, places)
    keep = rank >= codes.shape[1] - count
    return keep if alive is None else keep & alive


def _largest_of_few(codes: Tensor, count: int) -> Tensor:
    """Which entries of each short row are its `count` largest; of equals the later ones.

    An entry is kept if fewer than `count` others of its row come before it: larger ones, and later ones as large.
    """
    columns = codes.t().contiguous()
    before = torch.zeros(columns.shape, dtype=torch.int8, device=codes.device)
    for later in range(1, len(columns)):
        for earlier in range(later):
            wins = columns[later].ge(columns[earlier])
            before[earlier] += wins
            before[later] += wins.logical_not_()
    return (before < count).t()
