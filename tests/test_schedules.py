"""Schedules: their formulas, limits and monotonicity, and the arguments they refuse."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.errors import LamplighterError
from lamplighter.schedules import LONGEST, cubic, geometric, linear, one_shot, sparsities

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


@pytest.mark.parametrize("number", [np.float32, np.float64, np.float16, Fraction])
def test_any_real_number_is_a_fraction(number):
    quarter, half = number(0.25), number(0.5)
    assert [one_shot(half)(1), geometric(half)(2)] == [0.5, 0.75]
    for make in (cubic, linear):
        schedule = make(half, 4, initial=quarter)
        assert [schedule(step) for step in range(6)] == [make(0.5, 4, initial=0.25)(step) for step in range(6)]
        assert all(type(schedule(step)) is float for step in range(6))


@pytest.mark.parametrize("whole", [np.int64, np.int8, np.uint8])
def test_any_integer_is_a_number_of_steps(whole):
    for make in (cubic, linear):
        # 127 steps from step 127 on: more than eight bits count to
        schedule, plain = make(0.9, whole(127), begin=whole(127)), make(0.9, 127, begin=127)
        assert [schedule(step) for step in range(300)] == [plain(step) for step in range(300)]


# ------------------------------------------------------------------------------------------------------- round by round


@given(schedules())
def test_without_a_count_a_schedule_runs_until_it_is_where_it_stays_and_no_longer(case):
    schedule, _, last, there = case
    if there is None:
        return
    asked = sparsities(schedule)
    assert asked == [schedule(index) for index in range(1, len(asked) + 1)]
    assert asked[-1] == last
    assert last not in asked[:-1]
    assert len(asked) <= there


def test_values_that_repeat_early_do_not_end_a_schedule():
    asked = sparsities(cubic(0.9, 3, initial=0.2, begin=4))
    assert asked[:4] == [0.2] * 4
    assert len(asked) == 7
    assert asked[-1] == 0.9


def test_geometric_goes_on_until_nothing_is_left():
    asked = sparsities(geometric())
    assert asked[:2] == [geometric()(1), geometric()(2)]
    assert asked[-2] < asked[-1] == 1.0


def test_with_a_count_a_schedule_runs_for_as_many_rounds():
    assert sparsities(linear(0.8, 4), count=2) == pytest.approx([0.2, 0.4])
    assert sparsities(one_shot(0.5), count=np.int64(3)) == [0.5, 0.5, 0.5]
    assert sparsities([0.5, 0.75]) == sparsities([0.5, 0.75], count=2) == [0.5, 0.75]


def test_arrays_are_lists_of_sparsities():
    asked = sparsities(np.linspace(0.25, 0.75, 3, dtype=np.float32))
    assert asked == [0.25, 0.5, 0.75]
    assert all(type(sparsity) is float for sparsity in asked)


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (lambda index: 1 - 1 / (index + 1), r"has not reached its last sparsity, 0\.9+, in 100,000 rounds"),
        (geometric(1e-9), "has not reached"),
        ([0.1, 0.2, 0.3].__getitem__, "asked for round 1,000,000,000, it raises IndexError"),
        (lambda index: 0.1 * index, r"asked for round 1,000,000,000, the schedule asks for sparsity 1000000\d+\.\d"),
    ],
    ids=["too far", "too slow", "raises", "no limit"],
)
def test_a_schedule_that_does_not_say_where_it_ends_needs_a_count(schedule, said):
    with pytest.raises(LamplighterError, match=f"count is None, and the schedule .*{said}") as raised:
        sparsities(schedule)
    assert "pass count=" in raised.value.hint
    assert len(sparsities(schedule, count=2)) == 2


def test_the_last_round_that_is_looked_for_is_found():
    assert len(sparsities(lambda index: min(index, LONGEST) / LONGEST)) == LONGEST
    with pytest.raises(LamplighterError, match=r"has not reached"):
        sparsities(lambda index: min(index, LONGEST + 1) / (LONGEST + 1))


@pytest.mark.parametrize("schedule", [0.5, 1, np.float32(0.5), np.array(0.5), None, "cubic", True], ids=repr)
def test_what_is_neither_a_function_nor_a_list_is_refused(schedule):
    with pytest.raises(LamplighterError, match=r"schedule is .*; expected a function") as raised:
        sparsities(schedule)
    assert "one_shot(0.9)" in raised.value.hint


@pytest.mark.parametrize("sparsity", [1.5, -0.1, math.nan, "0.5", None, True, np.float32(2), 10**400], ids=repr)
def test_a_sparsity_that_is_none_is_refused_with_its_round(sparsity):
    for schedule in ([0.0, sparsity], lambda index: [0.0, sparsity][index - 1]):
        with pytest.raises(LamplighterError, match=r"asks for sparsity .* in round 2") as raised:
            sparsities(schedule, count=2)
        assert raised.value.hint is not None


def test_a_schedule_that_was_not_called_is_told_by_what_it_returns():
    with pytest.raises(LamplighterError, match=r"asks for sparsity <function .* in round 1"):
        sparsities(geometric)


@pytest.mark.parametrize("count", [0, -1, 2.0, "2", True, np.float64(2)], ids=repr)
def test_a_count_must_be_a_positive_integer(count):
    for schedule in (one_shot(0.5), [0.5]):
        with pytest.raises(LamplighterError, match=r"count is .*; expected an integer of at least 1"):
            sparsities(schedule, count)
