"""Patterns: N of every M along the inputs, or the same number in every row."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lamplighter as ll


def n_of_m(weight, n, m, inputs=1):
    """Brute force: in each group of m entries along the inputs the n largest stay; of equal ones the lower index goes.

    A group has the same place in all other dimensions.
    """
    mask = torch.zeros(weight.shape, dtype=torch.bool)
    others = [range(size) for axis, size in enumerate(weight.shape) if axis != inputs]
    for place in itertools.product(*others):
        for start in range(0, weight.shape[inputs], m):
            group = [(*place[:inputs], index, *place[inputs:]) for index in range(start, start + m)]
            for kept in sorted(group, key=lambda index: (weight[index].abs().item(), index))[m - n :]:
                mask[kept] = True
    return mask


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


@pytest.mark.parametrize("kind", [torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d])
def test_transposed_convolutions_group_along_their_inputs(kind):
    torch.manual_seed(0)
    layer = kind(8, 3, 3, bias=False)  # stored as (inputs, outputs, kernel)
    expected = n_of_m(layer.weight.detach(), 2, 4, inputs=0)
    assert torch.equal(ll.prune(torch.nn.Sequential(layer), 0.5, pattern="2:4")["0.weight"], expected)


def test_hugging_face_conv1d_groups_along_its_inputs():
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    layer = Conv1D(5, 8)  # stored as (inputs, outputs)
    expected = n_of_m(layer.weight.detach(), 2, 4, inputs=0)
    assert torch.equal(ll.prune(torch.nn.Sequential(layer), 0.5, pattern="2:4")["0.weight"], expected)


@pytest.mark.parametrize("kind", [torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d])
def test_convolutions_group_along_their_input_channels_at_each_position(kind):
    torch.manual_seed(0)
    layer = kind(8, 3, 3, bias=False)
    expected = n_of_m(layer.weight.detach(), 2, 4)
    mask = ll.prune(torch.nn.Sequential(layer), 0.5, pattern="2:4")["0.weight"]
    assert torch.equal(mask, expected)
    assert (mask.unflatten(1, (2, 4)).sum(2) == 2).all()


def test_grouped_convolutions_are_taken_as_stored():
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(16, 4, 3, groups=2, bias=False)  # stored with the 8 inputs of an output's own group
    expected = n_of_m(layer.weight.detach(), 2, 4)
    assert torch.equal(ll.prune(torch.nn.Sequential(layer), 0.5, pattern="2:4")["0.weight"], expected)


def test_ties_across_kernel_positions_stay_in_their_groups():
    mask = ll.prune({"a": torch.ones(1, 4, 2, 2)}, 0.5, pattern="2:4")["a"]
    assert mask[0].int().flatten(1).tolist() == [[0] * 4, [0] * 4, [1] * 4, [1] * 4]


def test_a_convolution_in_channels_last_has_the_same_groups():
    weight = torch.randn(3, 8, 3, 3, generator=torch.Generator().manual_seed(2)).round()
    expected = n_of_m(weight, 2, 4)
    other = weight.contiguous(memory_format=torch.channels_last)
    assert torch.equal(ll.prune({"a": other}, 0.5, pattern="2:4")["a"], expected)


def test_the_inputs_of_a_convolution_are_its_channels_and_not_the_kernel():
    # 2 * 3 * 4 entries for each output are a multiple of 4, the two input channels are not.
    with pytest.raises(ll.LamplighterError, match="2 inputs") as caught:
        ll.prune({"a": torch.randn(4, 2, 3, 4), "b": torch.randn(4, 8)}, 0.5, pattern="2:4")
    assert caught.value.hint == "leave it out: exclude='a'"


def test_layers_that_have_no_groups_are_named_up_to_three():
    weights = {f"l.{place}": torch.randn(4, 6) for place in range(30)} | {"z": torch.randn(4, 8)}
    with pytest.raises(ll.LamplighterError, match=r"l\.0 has 6 inputs .* \(29 other layers likewise\)") as caught:
        ll.prune(weights, 0.5, pattern="2:4")
    assert caught.value.hint == "leave them out: exclude=['l.0', 'l.1', 'l.2'], and the 27 others"


@pytest.mark.parametrize(("pattern", "sparsity"), [("row", 0.5), ("2:4", 0.5), ("1:4", 0.75)])
@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 3), (0, 3, 3, 3), (3, 0, 3, 3), (4, 4, 0), (0,)])
def test_empty_layers_take_part_in_every_pattern(pattern, sparsity, shape):
    full = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    alone = ll.prune({"b": full.clone()}, sparsity, pattern=pattern)
    given = {"a": torch.empty(shape), "b": full}
    budgets = ll.allocate(given, sparsity, pattern=pattern)
    masks = ll.prune(given, sparsity, pattern=pattern)
    assert masks["a"].shape == shape
    assert torch.equal(masks["b"], alone["b"])
    assert masks.kept == budgets == {"a": 0, **alone.kept}
    assert ll.prune(given, sparsity, pattern=pattern, masks=masks) == masks


def test_a_vector_has_one_input_for_each_output():
    given = {"a": torch.randn(4), "b": torch.randn(5, 4)}
    masks = ll.prune(given, 0.2, "uniform", pattern="row")
    assert ll.prune(given, 0.2, "uniform", pattern="row", masks=masks) == masks
    with pytest.raises(ll.LamplighterError, match="a has 1 inputs"):
        ll.prune(given, 0.5, pattern="2:4")


@pytest.mark.parametrize(
    ("pattern", "shape"), [("1:3", (400, 9999)), ("2:3", (400, 9999)), ("1:7", (7, 7)), ("3:7", (4001, 7000))]
)
def test_the_sparsity_that_the_hint_tells_works(pattern, shape):
    weights = {"a": torch.ones(shape)}
    with pytest.raises(ll.LamplighterError, match=pattern) as caught:
        ll.allocate(weights, 0.123, pattern=pattern)
    told = float(caught.value.hint.removeprefix("use sparsity="))
    n, m = map(int, pattern.split(":"))
    assert ll.allocate(weights, told, pattern=pattern) == {"a": weights["a"].numel() // m * n}


def test_densities_that_contradict_each_other_are_told_before_the_pattern():
    with pytest.raises(ll.LamplighterError, match="at least 24 and at most 8 weights: 16 weights too many"):
        ll.allocate({"a": torch.randn(4, 8)}, 0.5, pattern="2:4", min_density=0.75, max_density=0.25)


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
