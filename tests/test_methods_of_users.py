"""Methods that users write: what they may return, what they may not, and what `proportional` does for them."""

import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lamplighter as ll
from lamplighter.allocation import proportional
from oracles import level, rounded


def weights():
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(4, 8, generator=generator) for name in ("a", "b")}


def answers(answer):
    return lambda spectra, shapes, keep: answer


def refused(match, method, **options):
    """Neither function accepts the method, and no weight changes."""
    given = weights()
    for function in (ll.allocate, ll.prune):
        with pytest.raises(ll.LamplighterError, match=match) as caught:
            function(given, 0.5, method, **options)
        assert caught.value.hint
    assert all(torch.equal(given[name], weight) for name, weight in weights().items())
    return caught.value


@pytest.mark.parametrize("kind", [int, np.int64, np.int32, np.uint8, np.uint64])
def test_whole_numbers_of_any_kind_are_budgets(kind):
    method = answers({"b": kind(20), "a": kind(12)})
    budgets = ll.allocate(weights(), 0.5, method)
    assert list(budgets.items()) == [("a", 12), ("b", 20)]
    assert {type(budget) for budget in budgets.values()} == {int}
    assert ll.prune(weights(), 0.5, method).kept == {"a": 12, "b": 20}


def test_small_integers_of_numpy_do_not_overflow_in_the_sum():
    given = {"a": torch.randn(10, 20), "b": torch.randn(10, 20)}
    assert ll.allocate(given, 0.5, answers({"a": np.uint8(100), "b": np.uint8(100)})) == {"a": 100, "b": 100}


@pytest.mark.parametrize("odd", [16.0, np.float64(16), True, np.True_, "16", None, torch.tensor(16), Fraction(16)])
def test_what_is_no_whole_number_is_no_budget(odd):
    refused("weights of a, expected a whole number", answers({"a": odd, "b": 16}))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({0: 16, "b": 16}, "0, a$"),
        ({0: 16, "b": 16, None: 0, ("x",): 0}, r"\('x',\), 0, None and 1 more$"),
        ({"a": 16, "b": 16} | {f"x{place:02}": 0 for place in range(30)}, "x00, x01, x02 and 27 more$"),
        ({}, "a, b$"),
    ],
)
def test_keys_that_are_not_the_layers_are_told(answer, told):
    error = refused("not of the layers that count", answers(answer))
    assert re.search(told, error.message)


def widen(spectra):
    for name in spectra:
        spectra.bounds[name] = (0, 32)


def replace(spectra):
    spectra.bounds = dict.fromkeys(spectra, (0, 32))


def clear(spectra):
    spectra.bounds.clear()


@pytest.mark.parametrize("write", [widen, replace, clear])
def test_a_method_that_writes_the_bounds_is_held_to_those_it_was_given(write):
    def greedy(spectra, shapes, keep):
        write(spectra)
        return {"a": 32, "b": 0}

    refused("keeps 32 weights of a, expected 0 to 24", greedy, max_density=0.75)
    refused("keeps 0 weights of b, expected 8 to 32", greedy, min_density={"b": 0.25})


@pytest.mark.parametrize("write", [widen, replace, clear])
def test_rows_keep_to_the_bounds_that_a_method_wrote_over(write):
    def method(spectra, shapes, keep):
        write(spectra)
        return {"a": 13, "b": 19}

    # The nearest whole rows of b are 20 weights; where only 19 are allowed, the row goes to a.
    assert ll.allocate(weights(), 0.5, method, pattern="row", max_density={"b": 0.6}) == {"a": 16, "b": 16}
    assert ll.allocate(weights(), 0.5, method, pattern="row") == {"a": 12, "b": 20}


@pytest.mark.parametrize("method", [["lamp"], {"lamp"}, {"lamp": 1}, 3, None, b"lamp"])
def test_a_method_that_is_neither_text_nor_function_is_an_error(method):
    refused("unknown method", method)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("uniform_plus", "uniform+"),
        ("uniformplus", "uniform+"),
        ("Uniform Plus", "uniform+"),
        ("uniform-plus", "uniform+"),
        ("uniform_", "uniform"),
        ("LAMP", "lamp"),
        ("er_k", "erk"),
    ],
)
def test_the_hint_tells_the_method_that_was_meant(wrong, meant):
    assert refused(wrong, wrong).hint.startswith(f"did you mean {meant}? ")


def test_layers_without_a_share_take_what_the_others_cannot():
    assert proportional({"a": 0, "b": 1}, {"a": (0, 10), "b": (0, 5)}, 9) == {"a": 4, "b": 5}
    assert proportional({"a": 0, "b": 1}, {"a": (0, 10), "b": (0, 5)}, 5) == {"a": 0, "b": 5}
    assert proportional({"a": 0, "b": 0}, {"a": (0, 10), "b": (0, 5)}, 15) == {"a": 10, "b": 5}


def test_layers_without_a_share_divide_by_room_with_ties_to_the_earlier():
    room = {"a": (0, 10), "b": (2, 22), "c": (0, 5)}
    assert proportional({"a": 0, "b": 0, "c": 1}, room, 22) == {"a": 5, "b": 12, "c": 5}
    assert proportional({"a": 0, "b": 0, "c": 0}, {"a": (0, 3), "b": (0, 3), "c": (0, 3)}, 5) == {
        "a": 2,
        "b": 2,
        "c": 1,
    }


def test_shares_may_be_floats_and_fractions_and_are_exact():
    bounds = {"a": (0, 100), "b": (0, 100)}
    for third in (Fraction(1, 3), np.float32(0.5), np.int64(1)):
        assert proportional({"a": third, "b": 2 * third}, bounds, 99) == {"a": 33, "b": 66}
    assert proportional({"a": 0.1, "b": 0.2}, bounds, 99) == {"a": 33, "b": 66}
    assert proportional({"a": 1e-300, "b": 1e300}, bounds, 99) == {"a": 0, "b": 99}
    large = {"a": (0, 10**20), "b": (0, 10**20)}
    ideal = Fraction(0.1) / (Fraction(0.1) + Fraction(0.3)) * 10**20
    assert abs(proportional({"a": 0.1, "b": 0.3}, large, 10**20)["a"] - ideal) < 1
    third, large = Fraction(1, 3), {"a": (0, 10**30), "b": (0, 10**30)}
    assert proportional({"a": third, "b": 1}, large, 4 * 10**20) == {"a": 10**20, "b": 3 * 10**20}
    assert proportional({"a": 10**400, "b": 2 * 10**400}, bounds, 99) == {"a": 33, "b": 66}
    assert proportional({"a": np.int64(2**62), "b": np.int64(2**62)}, bounds, 50) == {"a": 25, "b": 25}


@pytest.mark.parametrize("share", [float("nan"), float("inf"), -1, -0.5, np.float32("nan"), "1", None, True, 1j])
def test_a_share_that_is_no_finite_number_from_zero_up_is_an_error(share):
    with pytest.raises(ll.LamplighterError, match="the share of b is"):
        proportional({"a": 1, "b": share}, {"a": (0, 10), "b": (0, 5)}, 9)


def test_shares_and_bounds_must_be_of_the_same_layers():
    with pytest.raises(ll.LamplighterError, match="not of the same layers: c, b\n"):
        proportional({"a": 1, "c": 1}, {"a": (0, 10), "b": (0, 5)}, 9)


parts = st.one_of(
    st.integers(0, 3), st.floats(0, 2, allow_subnormal=False), st.fractions(0, 2, max_denominator=7), st.just(0)
)


@given(st.lists(st.tuples(parts, st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=6), st.data())
@settings(max_examples=300, deadline=None)
def test_budgets_are_proportional_within_their_bounds_by_definition(layers, data):
    shares = [Fraction(share) for share, _, _ in layers]
    low, high = [floor for _, floor, _ in layers], [floor + room for _, floor, room in layers]
    keep = data.draw(st.integers(sum(low), sum(high)))
    names = [f"l{place}" for place in range(len(layers))]
    found = proportional(
        {name: share for name, (share, _, _) in zip(names, layers, strict=True)},
        dict(zip(names, zip(low, high, strict=True), strict=True)),
        keep,
    )
    full = sum(most if share else least for share, least, most in zip(shares, low, high, strict=True))
    if keep <= full:
        ideal = level(shares, low, high, keep)
    else:
        rooms = [0 if share else most - least for share, least, most in zip(shares, low, high, strict=True)]
        held = [most if share else least for share, least, most in zip(shares, low, high, strict=True)]
        ideal = [h + Fraction(room * (keep - full), sum(rooms)) for h, room in zip(held, rooms, strict=True)]
    assert list(found.values()) == rounded(ideal, keep)
    assert sum(found.values()) == keep
    assert all(least <= budget <= most for least, budget, most in zip(low, found.values(), high, strict=True))
