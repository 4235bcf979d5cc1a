"""Patterns: N of every M along the inputs, or the same number in every row."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lamplighter as ll


def n_of_m(weight, n, m):
    """Brute force: in each group of m inputs of a row the n largest stay; of equal ones the lower index goes."""
    rows = weight.double().abs().reshape(weight.shape[0], -1).tolist()
    mask = []
    for row in rows:
        for start in range(0, len(row), m):
            group = range(start, start + m)
            kept = sorted(group, key=lambda index: (row[index], index))[m - n :]
            mask += [index in kept for index in group]
    return torch.tensor(mask).view(weight.shape)


def top_of_rows(weight, count):
    """Brute force: in each row the `count` largest stay; of equal ones the lower index goes."""
    rows = weight.double().abs().reshape(weight.shape[0], -1).tolist()
    kept = [sorted(range(len(row)), key=lambda index: (row[index], index))[len(row) - count :] for row in rows]
    return torch.tensor([[i in keep for i in range(len(row))] for keep, row in zip(kept, rows, strict=True)]).view(
        weight.shape
    )


@given(st.integers(0, 10_000), st.sampled_from([(2, 4), (1, 4), (1, 2), (4, 8), (3, 4)]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_group_keeps_its_largest(seed, pattern, ties):
    n, m = pattern
    generator = torch.Generator().manual_seed(seed)
    weights = {"line": torch.randn(5, 24, generator=generator), "conv": torch.randn(3, 8, 3, 2, generator=generator)}
    if ties:
        weights = {name: weight.round() for name, weight in weights.items()}
    expected = {name: n_of_m(weight, n, m) for name, weight in weights.items()}
    masks = ll.prune(weights, 1 - n / m, pattern=f"{n}:{m}")
    for name, mask in expected.items():
        assert torch.equal(masks[name], mask)
        assert torch.equal(weights[name] != 0, mask & (weights[name] != 0))


def test_ties_in_a_group_lose_the_lower_index():
    weight = torch.tensor([[1.0, -1.0, 1.0, 1.0, 0.0, 2.0, 2.0, -2.0]])
    masks = ll.prune({"a": weight}, 0.5, pattern="2:4")
    assert masks["a"].tolist() == [[False, False, True, True, False, False, True, True]]
    assert weight.tolist() == [[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 2.0, -2.0]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_groups_in_every_dtype_and_memory_format(dtype):
    weight = torch.randn(16, 12, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = n_of_m(weight, 2, 4)
    for other in (weight.clone(), weight.t().contiguous().t()):
        assert torch.equal(ll.prune({"a": other}, 0.5, pattern="2:4")["a"], expected)


def test_allocate_tells_the_budgets_of_a_pattern():
    weights = {"a": torch.ones(2, 8), "b": torch.ones(4, 4)}
    assert ll.allocate(weights, 0.5, pattern="2:4") == {"a": 8, "b": 8}
    assert ll.allocate(weights, 0.75, pattern="1:4") == {"a": 4, "b": 4}


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.booleans())
@settings(max_examples=40, deadline=None)
@pytest.mark.filterwarnings("ignore::lamplighter.LamplighterWarning")
def test_rows_keep_the_same_number_each(seed, sparsity, ties):
    generator = torch.Generator().manual_seed(seed)
    weights = {"line": torch.randn(5, 12, generator=generator), "conv": torch.randn(3, 4, 2, 2, generator=generator)}
    if ties:
        weights = {name: weight.round() for name, weight in weights.items()}
    expected = {name: top_of_rows(w, round((1 - sparsity) * w[0].numel())) for name, w in weights.items()}
    masks = ll.prune(weights, sparsity, "uniform", pattern="row")
    assert all(torch.equal(masks[name], mask) for name, mask in expected.items())


def test_transposed_weights_group_along_their_inputs():
    torch.manual_seed(0)
    layer = torch.nn.ConvTranspose2d(8, 4, 3, bias=False)
    # Stored as (inputs, outputs, height, width): the outputs are rows, so they move to the front.
    expected = n_of_m(layer.weight.detach().transpose(0, 1).contiguous(), 2, 4).transpose(0, 1)
    masks = ll.prune(torch.nn.Sequential(layer), 0.5, pattern="2:4")
    assert torch.equal(masks["0.weight"], expected)


@pytest.mark.parametrize(
    ("sparsity", "pattern", "shape", "named"),
    [
        (0.6, "2:4", (4, 8), "2:4"),
        (0.5, "1:4", (4, 8), "1:4"),
        (0.5, "2:4", (4, 6), "a.weight"),
        (0.5, "2:4", (4, 3, 3, 3), "a.weight"),
        (0.5, "4:2", (4, 8), "4:2"),
        (0.5, "0:4", (4, 8), "0:4"),
        (0.5, "two of four", (4, 8), "two of four"),
        (0.5, "column", (4, 8), "column"),
    ],
)
def test_patterns_that_do_not_fit_are_errors(sparsity, pattern, shape, named):
    weights = {"a.weight": torch.randn(shape), "z.weight": torch.randn(4, 8)}
    before = {name: weight.clone() for name, weight in weights.items()}
    for function in (ll.allocate, ll.prune):
        with pytest.raises(ll.LamplighterError, match=named):
            function(weights, sparsity, pattern=pattern)
    assert all(torch.equal(weights[name], before[name]) for name in weights)


def groups_with_one_alive():
    alive = torch.ones(2, 8, dtype=torch.bool)
    alive[0, :3] = False
    return {"a": torch.randn(2, 8, generator=torch.Generator().manual_seed(0))}, ll.Masks({"a": alive})


def test_a_group_with_too_few_alive_is_an_error():
    weights, masks = groups_with_one_alive()
    before = weights["a"].clone()
    for function in (ll.allocate, ll.prune):
        with pytest.raises(ll.LamplighterError, match="a"):
            function(weights, 0.5, pattern="2:4", masks=masks)
    assert torch.equal(weights["a"], before)
    assert ll.prune(weights, 0.75, pattern="1:4", masks=masks).total_kept == 4


def test_a_pattern_in_a_later_round_ranks_what_is_alive():
    weights, masks = groups_with_one_alive()
    mask = ll.prune(weights, 0.75, pattern="1:4", masks=masks)["a"]
    assert mask[0, :4].tolist() == [False, False, False, True]
    assert mask.view(2, 2, 4).sum(-1).tolist() == [[1, 1], [1, 1]]


@given(st.integers(0, 100_000))
@settings(max_examples=150, deadline=None)
@pytest.mark.filterwarnings("ignore::lamplighter.LamplighterWarning")
def test_rows_keep_to_the_bounds_and_the_total_or_refuse(seed):
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    shapes = {f"l.{place}": (draw.randint(1, 4), draw.randint(1, 4)) for place in range(draw.randint(1, 3))}
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    total = sum(weight.numel() for weight in weights.values())
    keep = draw.randint(0, total)
    low, high = draw.choice([0.0, 0.1, 0.25, 0.5]), draw.choice([1.0, 0.75, 0.6, 0.5])
    options = {"method": draw.choice(["lamp", "uniform", "erk"]), "min_density": low, "max_density": high}
    try:
        budgets = ll.allocate(weights, (total - keep) / total, pattern="row", **options)
    except ll.LamplighterError:
        return
    masks = ll.prune(weights, (total - keep) / total, pattern="row", **options)
    assert masks.kept == budgets
    assert sum(budgets.values()) == keep
    for name, weight in weights.items():
        assert low * weight.numel() <= budgets[name] <= high * weight.numel()
        rows = masks[name].sum(1)
        assert rows.max() - rows.min() <= 1
