"""The oracles agree with each other and with numbers worked out by hand."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import certificates
import oracles
from strategies import keeps, models


def total_of(weights):
    return sum(value.numel() for value in weights.values())


def test_lamp_scores_of_a_worked_example():
    scores = oracles.lamp_scores(torch.tensor([[2.0, -1.0], [1.0, 0.0]]))
    assert scores == {0: Fraction(1), 2: Fraction(1, 5), 1: Fraction(1, 6), 3: Fraction(0)}


def test_lamp_scores_of_what_is_alive_leave_out_the_rest():
    alive = torch.tensor([True, False, True])
    assert oracles.lamp_scores(torch.tensor([3.0, 9.0, 4.0]), alive) == {2: Fraction(1), 0: Fraction(9, 25)}


def test_natural_order_counts_as_people_do():
    assert oracles.natural(["l.10.w", "l.2.w", "b", "a.1"]) == ["a.1", "b", "l.2.w", "l.10.w"]


@given(models(), st.data())
@settings(max_examples=80, deadline=None)
def test_removing_greedily_gives_the_one_pass_masks(weights, data):
    keep = data.draw(keeps(total_of(weights)))
    once = oracles.masks(weights, oracles.budgets(weights, keep, "lamp"))
    greedy = oracles.greedy_lamp(weights, keep)
    assert all(torch.equal(once[name], greedy[name]) for name in weights)


@given(models(), st.data())
@settings(max_examples=80, deadline=None)
def test_the_certificate_accepts_the_brute_force_budgets_and_nothing_else(weights, data):
    keep = data.draw(keeps(total_of(weights)))
    method = data.draw(st.sampled_from(["lamp", "global"]))
    budgets = oracles.budgets(weights, keep, method)
    certificates.assert_budgets(weights, budgets, keep, method)
    giver, taker = data.draw(st.sampled_from(list(budgets))), data.draw(st.sampled_from(list(budgets)))
    if giver != taker and budgets[giver] > 0 and budgets[taker] < weights[taker].numel():
        moved = budgets | {giver: budgets[giver] - 1, taker: budgets[taker] + 1}
        with pytest.raises(AssertionError):
            certificates.assert_budgets(weights, moved, keep, method)


@given(models())
@settings(max_examples=40, deadline=None)
def test_the_exact_energy_is_the_sum_of_exact_squares(weights):
    for weight in weights.values():
        values = weight.double().flatten().numpy()
        assert certificates.exact_energy(values) == sum(oracles.squares(weight), Fraction(0))


def test_the_exact_energy_of_many_values_is_that_of_integers():
    values = np.random.default_rng(0).integers(-(2**53), 2**53, 2000)
    assert certificates.exact_energy(values.astype(np.float64)) == sum(int(value) ** 2 for value in values)


def test_top_entries_agree_with_the_brute_force_masks():
    weight = torch.tensor([[1.0, -1.0, 0.0], [2.0, 1.0, -2.0]])
    for count in range(7):
        expected = oracles.masks({"a": weight}, {"a": count})["a"]
        assert certificates.top_entries(weight, count).tolist() == expected.flatten().tolist()


def test_largest_remainder_rounds_by_hand():
    weights = {"a": torch.ones(1, 3), "b": torch.ones(1, 3), "c": torch.ones(1, 4)}
    # Ideals 1.5, 1.5, 2: the tie goes to the earlier layer.
    assert oracles.budgets(weights, 5, "uniform") == {"a": 2, "b": 1, "c": 2}


def test_erk_by_hand_keeps_a_saturated_layer_dense():
    weights = {"a": torch.ones(2, 2), "b": torch.ones(10, 10)}
    # Proportional to sums of shape, 4 and 20: of 30, "a" would get 5 of its 4 weights, so "b" gets the other 26.
    assert oracles.budgets(weights, 30, "erk") == {"a": 4, "b": 26}
    assert oracles.budgets(weights, 12, "erk") == {"a": 2, "b": 10}


def test_er_ignores_the_kernel_and_erk_does_not():
    weights = {"conv": torch.ones(4, 2, 3, 3), "line": torch.ones(6, 12)}
    # er: (4 + 2) * 9 = 54 against 18; erk: 4 + 2 + 3 + 3 = 12 against 18.
    assert oracles.budgets(weights, 40, "er") == {"conv": 30, "line": 10}
    assert oracles.budgets(weights, 40, "erk") == {"conv": 16, "line": 24}


def test_uniform_plus_by_hand():
    weights = {"c1": torch.ones(2, 1, 3), "c2": torch.ones(4, 5, 1), "f1": torch.ones(2, 10), "f2": torch.ones(2, 5)}
    # "c1" is dense, "f2" keeps 2 of its 10 (0.2), the 4 others go to "c2" and "f1" alike.
    assert oracles.budgets(weights, 12, "uniform+") == {"c1": 6, "c2": 2, "f1": 2, "f2": 2}
    with pytest.raises(oracles.Infeasible):
        oracles.budgets(weights, 7, "uniform+")


@given(models(), st.data())
@settings(max_examples=60, deadline=None)
def test_shaped_budgets_sum_to_keep_and_lie_within_one_of_the_same_method_one_weight_apart(weights, data):
    total = total_of(weights)
    keep = data.draw(st.integers(0, total))
    method = data.draw(st.sampled_from(["uniform", "er", "erk"]))
    budgets = oracles.budgets(weights, keep, method)
    assert sum(budgets.values()) == keep
    assert all(0 <= budgets[name] <= weights[name].numel() for name in weights)
    if keep < total:
        more = oracles.budgets(weights, keep + 1, method)
        assert all(abs(more[name] - budgets[name]) <= 2 for name in weights)
