"""Schedules: their formulas, limits and monotonicity, and the arguments they refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.errors import LamplighterError
from lamplighter.schedules import cubic, geometric, linear, one_shot

fractions = st.floats(0.0, 1.0)
counts = st.integers(1, 50)


@st.composite
def schedules(draw):
    """Any schedule, with the sparsity it begins at, the one it tends to, and the step by which it is there, if ever."""
    kind = draw(st.sampled_from(["one_shot", "geometric", "cubic", "linear"]))
    if kind == "one_shot":
        final = draw(fractions)
        return one_shot(final), 0.0, final, 1
    if kind == "geometric":
        rate = draw(fractions)
        return geometric(rate), 0.0, 1.0 if rate > 0 else 0.0, None
    initial, final = sorted((draw(fractions), draw(fractions)))
    steps, begin = draw(counts), draw(st.integers(0, 20))
    made = (cubic if kind == "cubic" else linear)(final, steps, initial=initial, begin=begin)
    return made, initial, final, begin + steps


@given(schedules(), st.integers(0, 100))
def test_sparsity_never_goes_down(case, step):
    schedule, *_ = case
    assert schedule(step) <= schedule(step + 1)


@given(schedules(), st.integers(0, 100))
def test_sparsity_stays_between_its_limits(case, step):
    schedule, first, last, _ = case
    assert schedule(0) == first
    assert first <= schedule(step) <= last


@given(schedules(), st.integers(0, 100))
def test_the_final_sparsity_is_reached_exactly_and_kept(case, extra):
    schedule, _, last, there = case
    if there is not None:
        assert schedule(there + extra) == last


@given(fractions, st.integers(0, 60))
def test_geometric_removes_the_same_share_of_the_survivors(rate, step):
    schedule = geometric(rate)
    assert 1 - schedule(step + 1) == pytest.approx((1 - schedule(step)) * (1 - rate), abs=1e-12)


def test_geometric_by_default_removes_a_fifth_each_step():
    assert 1 - geometric()(30) == pytest.approx(0.8**30)
    assert geometric()(0) == 0.0


@pytest.mark.parametrize(
    ("step", "share"), [(10, 0.0), (15, 1 - 0.75**3), (20, 1 - 0.5**3), (25, 1 - 0.25**3), (30, 1)]
)
def test_cubic_follows_its_formula(step, share):
    assert cubic(0.9, 20, initial=0.1, begin=10)(step) == pytest.approx(0.1 + 0.8 * share)


@pytest.mark.parametrize(("step", "share"), [(10, 0.0), (15, 0.25), (20, 0.5), (25, 0.75), (30, 1)])
def test_linear_follows_its_formula(step, share):
    assert linear(0.9, 20, initial=0.1, begin=10)(step) == pytest.approx(0.1 + 0.8 * share)


@given(st.integers(-5, 10))
def test_cubic_and_linear_are_constant_before_they_begin(step):
    assert cubic(0.9, 5, initial=0.2, begin=10)(step) == 0.2
    assert linear(0.9, 5, initial=0.2, begin=10)(step) == 0.2


def test_one_shot_is_dense_at_step_zero():
    assert [one_shot(0.9)(step) for step in (0, 1, 2)] == [0.0, 0.9, 0.9]


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), float("inf"), "0.5", None, True])
def test_fractions_outside_zero_to_one_are_refused(wrong):
    for make in (
        lambda: one_shot(wrong),
        lambda: geometric(wrong),
        lambda: cubic(wrong, 5),
        lambda: linear(0.5, 5, initial=wrong),
    ):
        with pytest.raises(LamplighterError, match="expected a number from 0 to 1"):
            make()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "3", True])
def test_a_number_of_steps_must_be_a_positive_integer(wrong):
    for make in (cubic, linear):
        with pytest.raises(LamplighterError, match=r"steps is .*; expected an integer of at least 1"):
            make(0.5, wrong)


@pytest.mark.parametrize("make", [cubic, linear])
def test_begin_must_not_be_negative(make):
    with pytest.raises(LamplighterError, match="begin is -1"):
        make(0.5, 3, begin=-1)


@pytest.mark.parametrize("make", [cubic, linear])
def test_a_schedule_that_would_go_down_is_refused(make):
    with pytest.raises(LamplighterError, match=r"initial sparsity 0\.9 is above final sparsity 0\.5"):
        make(0.5, 3, initial=0.9)
