"""Budgets and masks equal the definitions, entry by entry and bit by bit, on small weights of every kind."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import lamplighter as ll
import oracles
from strategies import DTYPES, LAYOUTS, METHODS, bits, keeps, lay_out, models

pytestmark = pytest.mark.filterwarnings("ignore::lamplighter.LamplighterWarning")


def total_of(weights):
    return sum(value.numel() for value in weights.values())


def sparsity_for(keep, total):
    sparsity = (total - keep) / total
    assert oracles.keep_of(total, sparsity) == keep
    return sparsity


def check(weights, keep, method, alive=None, importances=None, **options):
    """allocate and prune against the oracle; what infeasible constraints must do as well. Returns the masks."""
    sparsity = sparsity_for(keep, total_of(weights))
    before = {name: weight.clone() for name, weight in weights.items()}
    ranked = before if importances is None else importances
    masks = None if alive is None else ll.Masks(alive)
    try:
        expected = oracles.budgets(ranked, keep, method, alive)
    except oracles.Infeasible:
        for function in (ll.allocate, ll.prune):
            with pytest.raises(ll.LamplighterError):
                function(weights, sparsity, method, masks=masks, **options)
        assert_unchanged(weights, before)
        return None
    budgets = ll.allocate(weights, sparsity, method, masks=masks, **options)
    assert budgets == expected
    assert list(budgets) == oracles.natural(weights)
    assert sum(budgets.values()) == keep
    assert_unchanged(weights, before)
    result = ll.prune(weights, sparsity, method, masks=masks, **options)
    assert set(result) == set(weights)
    for name, mask in oracles.masks(ranked, expected, alive).items():
        assert torch.equal(result[name], mask), name
        assert_pruned(weights[name], before[name], mask)
    return result


def assert_unchanged(weights, before):
    for name, weight in weights.items():
        assert torch.equal(bits(weight), bits(before[name])), name


def assert_pruned(weight, before, mask):
    """Pruned entries are +0.0, sign bit included; the others have every bit they had."""
    assert torch.equal(bits(weight), torch.where(mask, bits(before), 0))


@given(models(), st.sampled_from(METHODS), st.data())
@settings(max_examples=300, deadline=None)
def test_budgets_and_masks_equal_the_oracle(weights, method, data):
    check(weights, data.draw(keeps(total_of(weights))), method)


@given(models(), st.data())
@settings(max_examples=150, deadline=None)
def test_later_rounds_equal_the_oracle_and_revive_nothing(weights, data):
    total, alive = total_of(weights), None
    keep = total
    for _ in range(3):
        keep = data.draw(st.integers(0, keep))
        method = data.draw(st.sampled_from(METHODS))
        masks = check(weights, keep, method, alive)
        if masks is None:
            return
        now = {name: masks[name] for name in weights}
        assert alive is None or all(not (now[name] & ~alive[name]).any() for name in weights)
        alive = now


@given(models(), st.data())
@settings(max_examples=150, deadline=None)
def test_arbitrary_masks_leave_out_what_they_pruned_even_where_it_is_not_zero(weights, data):
    seed = data.draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)
    alive = {name: torch.rand(weight.shape, generator=generator) < 0.6 for name, weight in weights.items()}
    keep = data.draw(st.integers(0, sum(int(mask.sum()) for mask in alive.values())))
    method = data.draw(st.sampled_from(METHODS))
    check(weights, keep, method, alive)


@given(models(), st.sampled_from(METHODS), st.data())
@settings(max_examples=100, deadline=None)
def test_computed_scores_equal_the_oracle(weights, method, data):
    seed = data.draw(st.integers(0, 2**16))
    steps = data.draw(st.sampled_from([1, 3, 2**20]))
    generator = torch.Generator().manual_seed(seed)
    scores = {
        name: torch.randint(0, steps + 1, weight.shape, generator=generator).float()
        for name, weight in sorted(weights.items())
    }
    keep = data.draw(keeps(total_of(weights)))
    check(weights, keep, method, importances=scores, score=lambda name, weight, evidence: scores[name])


@pytest.mark.slow
@given(models(), st.sampled_from(METHODS), st.data())
@settings(max_examples=10_000, deadline=None)
@pytest.mark.timeout(1800)
def test_budgets_and_masks_equal_the_oracle_many_times(weights, method, data):
    check(weights, data.draw(keeps(total_of(weights))), method)


@pytest.mark.slow
@given(models(), st.data())
@settings(max_examples=3_000, deadline=None)
@pytest.mark.timeout(1800)
def test_later_rounds_equal_the_oracle_many_times(weights, data):
    test_later_rounds_equal_the_oracle_and_revive_nothing.hypothesis.inner_test(weights, data)


@given(st.integers(1, 400), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_budgets_sum_to_what_round_leaves(total, sparsity):
    weights = {"a": torch.linspace(-1, 1, total).view(1, -1), "b": torch.zeros(0, 2)}
    for method in ("lamp", "global", "uniform", "er", "erk"):
        assert sum(ll.allocate(weights, sparsity, method).values()) == total - round(sparsity * total)


INDISTINGUISHABLE = {
    "a tie among near ties": ([2.0**30, 1.0], [2.0**30, 1.0, 1.0]),
    "one unit against a great energy": ([2.0**30, 1.0], [2.0**30, 2.0**-30, 1.0]),
    "subnormals beside huge": ([1e30, 1e-45], [1e30, 1e-45, 1e-45]),
    "energies one unit apart": ([16777217.0 - 1, 3.0, 1.0], [16777216.0, 3.0, 1.0, 1.0]),
    "the same score by different numbers": ([3.0, 4.0], [6.0, 8.0]),
    "different scores closer than float64": ([2.0**27, 2.0**-3], [2.0**27 + 8, 2.0**-3]),
    "a great energy of many": ([1.0] * 9 + [2.0**40], [1.0] * 10 + [2.0**40]),
    "zeros below": ([0.0, -0.0, 1.0], [0.0, 1.0, 1.0]),
}


@pytest.mark.parametrize("pair", INDISTINGUISHABLE.values(), ids=INDISTINGUISHABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("method", ["lamp", "global"])
def test_scores_that_float64_cannot_tell_apart(pair, dtype, order, method):
    for keep in range(sum(map(len, pair)) + 1):
        weights = {f"layer.{place}": torch.tensor([values], dtype=dtype) for place, values in enumerate(pair[::order])}
        check(weights, keep, method)


@pytest.mark.parametrize("order", [1, -1])
def test_float64_whose_squares_leave_its_range(order):
    pair = ([1e300, 1e-300, 3e-300], [1e300, 1e-300, 5e-324, 1e-300])[::order]
    for keep in range(8):
        check({f"w{i}": torch.tensor([values], dtype=torch.float64) for i, values in enumerate(pair)}, keep, "lamp")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["lamp", "global"])
def test_sixteen_bit_extremes(dtype, method):
    info = torch.finfo(dtype)
    values = [info.max, info.tiny, info.smallest_normal, info.max, info.tiny / 2, 1.0, 0.0]
    for keep in range(0, 17, 2):
        weights = {
            "a": torch.tensor([values], dtype=dtype),
            "b": torch.tensor([values[::-1]], dtype=dtype),
            "c": torch.tensor([[info.max], [info.max], [1.0]], dtype=dtype),
        }
        check(weights, keep, method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_duplicated_layers_share_by_the_order_of_layers(method, dtype):
    layer = torch.tensor([[0.5, -0.5, 1.0], [0.25, 1.0, -1.0]], dtype=dtype)
    for keep in range(25):
        check({f"layers.{place}.weight": layer.clone() for place in (10, 9, 2, 1)}, keep, method)


def test_layers_are_in_natural_order_whatever_the_order_of_the_mapping():
    names = [f"block.{place}.weight" for place in range(12)]
    for seed in range(5):
        shuffled = random.Random(seed).sample(names, len(names))
        budgets = ll.allocate({name: torch.ones(2, 2) for name in shuffled}, 1 - 17 / 48, "lamp")
        assert list(budgets) == names
        # Constant layers tie at 1, 1/2, 1/3, 1/4: twelve largest first, then five of the next, from the front.
        assert list(budgets.values()) == [2] * 5 + [1] * 7


@pytest.mark.parametrize("method", METHODS)
def test_odd_layers_together(method):
    for keep in range(12):
        weights = {
            "one": torch.tensor([[-3.0]]),
            "none": torch.zeros(0, 4),
            "zeros": torch.tensor([[0.0, -0.0], [-0.0, 0.0]]),
            "some": torch.tensor([[1.0, -1.0, 1.0], [0.0, 2.0, -0.0]]),
        }
        check(weights, keep, method)


@pytest.mark.parametrize("method", ["lamp", "global", "uniform", "erk"])
def test_one_dimensional_weights_count_in_a_mapping(method):
    for keep in (0, 1, 4, 7):
        check({"a": torch.tensor([1.0, -2.0, 3.0]), "b": torch.tensor([0.5, 2.0, -0.5, 0.5])}, keep, method)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_go_by_logical_index_in_every_memory_format(layout, dtype):
    values = torch.tensor([1.0, -1.0, 2.0, 1.0, 0.0, 2.0] * 4, dtype=dtype)
    for shape in ((4, 6), (2, 3, 2, 2)):
        for keep in (1, 5, 9, 13, 20):
            check({"a": lay_out(values.view(shape), layout), "b": values.flip(0).view(shape)}, keep, "lamp")


def test_pruning_a_slice_leaves_the_rest_of_its_storage_alone():
    room = torch.arange(1.0, 25.0).view(4, 6)
    before = room.clone()
    ll.prune({"a": room[1:3, ::2]}, 0.5)
    outside = torch.ones(4, 6, dtype=torch.bool)
    outside[1:3, ::2] = False
    assert torch.equal(room[outside], before[outside])
    assert int((room == 0).sum()) == 3


def test_kept_signed_zeros_and_subnormals_keep_their_bits():
    weight = torch.tensor([[-0.0, 0.0, 1e-45, -1e-45, -0.0, 1.0]])
    before = weight.clone()
    ll.prune({"a": weight}, 0.0)
    assert torch.equal(bits(weight), bits(before))
    masks = ll.prune({"a": weight}, 1 / 3)
    # Of the three zeros the two with lower indices go; the one that stays keeps its sign.
    assert masks["a"].tolist() == [[False, False, True, True, True, True]]
    assert_pruned(weight, before, masks["a"])


@given(models(), st.integers(0, 20), st.data())
@settings(max_examples=60, deadline=None)
def test_lamp_does_not_change_when_a_layer_is_rescaled_by_a_power_of_two(weights, keep, data):
    total = total_of(weights)
    keep = min(keep, total)
    weights = {name: weight.double() for name, weight in weights.items()}
    name = data.draw(st.sampled_from(list(weights)))
    factor = 2.0 ** data.draw(st.integers(-20, 20))
    scaled = weights | {name: weights[name] * factor}
    assume(torch.equal(scaled[name] / factor, weights[name]))
    sparsity = sparsity_for(keep, total)
    assert ll.allocate(weights, sparsity) == ll.allocate(scaled, sparsity)


@given(models(), st.sampled_from(["lamp", "global"]))
@settings(max_examples=40, deadline=None)
def test_lamp_and_global_are_monotone_in_keep(weights, method):
    total = total_of(weights)
    steps = [ll.allocate(weights, sparsity_for(keep, total), method) for keep in range(total + 1)]
    for fewer, more in pairwise(steps):
        assert all(fewer[name] <= more[name] for name in weights)


def test_prune_takes_a_module_and_allocate_leaves_it_alone():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(16, 5)
    )
    weights = {"0.weight": model[0].weight, "3.weight": model[3].weight}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = oracles.budgets(weights, keep=29, method="lamp")
    assert ll.allocate(model, 0.75) == expected
    masks = ll.prune(model, 0.75)
    assert {name: int(masks[name].sum()) for name in masks} == expected
    for name, value in model.state_dict().items():
        assert torch.equal(value, torch.where(masks[name], before[name], 0) if name in masks else before[name])


@given(models(), st.sampled_from(["random"]), st.data())
@settings(max_examples=20, deadline=None)
def test_random_scores_keep_the_right_number_and_repeat(weights, score, data):
    total = total_of(weights)
    sparsity = sparsity_for(data.draw(keeps(total)), total)
    first = ll.prune({name: weight.clone() for name, weight in weights.items()}, sparsity, "uniform", score)
    again = ll.prune({name: weight.clone() for name, weight in weights.items()}, sparsity, "uniform", score)
    assert first == again
    assert sum(first.kept.values()) == oracles.keep_of(total, sparsity)
