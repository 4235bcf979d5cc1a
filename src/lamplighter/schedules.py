"""How sparse to be at each step of a run: plain functions step -> sparsity."""

from collections.abc import Callable, Iterable, Iterator
from numbers import Integral, Real
from typing import Any, TypeGuard

from lamplighter.errors import LamplighterError

Schedule = Callable[[int], float]

FAR = 10**9  # a schedule is taken to stay at what it gives for this round
LONGEST = 100_000  # rounds; a schedule that has not come that far by then must be given a count


def one_shot(sparsity: float) -> Schedule:
    """Everything at once: 0 at step 0, `sparsity` from step 1 on.

    Args:
        sparsity: the fraction removed.

    >>> [one_shot(0.9)(step) for step in range(3)]
    [0.0, 0.9, 0.9]
    """
    final = _fraction("sparsity", sparsity)
    return lambda step: final if step >= 1 else 0.0


def geometric(rate: float = 0.2) -> Schedule:
    """The same share of the survivors at every step: 1 - (1 - rate)^step (Frankle and Carbin, 2019).

    Args:
        rate: the share of the surviving weights that a step removes.

    >>> [round(geometric(0.2)(step), 4) for step in range(4)]
    [0.0, 0.2, 0.36, 0.488]
    """
    share = _fraction("rate", rate)
    return lambda step: 1.0 - (1.0 - share) ** max(step, 0)


def cubic(final: float, steps: int, initial: float = 0.0, begin: int = 0) -> Schedule:
    """Fast at first, then slower: s_f + (s_i - s_f) (1 - (t - t_0) / n)^3 (Zhu and Gupta, 2017).

    Constant before step `begin` and after step `begin + steps`.

    Args:
        final: the sparsity s_f at the end.
        steps: how many steps n it takes.
        initial: the sparsity s_i at the beginning.
        begin: the step t_0 at which it begins.

    >>> [round(cubic(0.8, steps=4)(step), 4) for step in range(6)]
    [0.0, 0.4625, 0.7, 0.7875, 0.8, 0.8]
    """
    return _between(final, steps, initial, begin, lambda left: left * left * left)


def linear(final: float, steps: int, initial: float = 0.0, begin: int = 0) -> Schedule:
    """The same share of all weights at every step: s_f + (s_i - s_f) (1 - (t - t_0) / n).

    Constant before step `begin` and after step `begin + steps`.

    Args:
        final: the sparsity s_f at the end.
        steps: how many steps n it takes.
        initial: the sparsity s_i at the beginning.
        begin: the step t_0 at which it begins.

    >>> [round(linear(0.8, steps=4)(step), 4) for step in range(6)]
    [0.0, 0.2, 0.4, 0.6, 0.8, 0.8]
    """
    return _between(final, steps, initial, begin, lambda left: left)


def sparsities(schedule: Schedule | Iterable[float], count: int | None = None) -> list[float]:
    """What a schedule asks for in rounds 1, 2, ...; an error unless each is a sparsity, and none below the one before.

    Args:
        schedule: round -> sparsity, or the sparsities themselves.
        count: how many rounds; if not given, all that are listed, or until a function has reached `schedule(10**9)`.

    >>> sparsities(linear(0.6, steps=2)), sparsities(geometric(0.5), count=2)
    ([0.3, 0.6], [0.5, 0.75])
    """
    checked = None if count is None else _count("count", count, least=1)
    asked: Iterable[float]
    if not callable(schedule):
        asked = _listed(schedule, checked)
    elif checked is None:
        asked = _until_settled(schedule)
    else:
        asked = map(schedule, range(1, checked + 1))
    found = [0.0]
    for index, sparsity in enumerate(asked, start=1):
        found.append(_not_below(found[-1], sparsity, index))
    return found[1:]


def _listed(schedule: object, count: int | None) -> list[float]:
    # An array without dimensions says that it is iterable, and is not.
    if isinstance(schedule, str) or not isinstance(schedule, Iterable) or getattr(schedule, "shape", None) == ():
        raise LamplighterError(
            f"schedule is {schedule!r}; expected a function from the round to its sparsity, or a list of sparsities",
            "for example schedule=[0.5, 0.9], or schedule=ll.schedules.one_shot(0.9)",
        )
    listed = list(schedule)
    if not listed or count not in (None, len(listed)):
        raise LamplighterError(
            f"the schedule lists {len(listed)} sparsities, and count is {count!r}",
            "list at least one sparsity, and leave count out",
        )
    return listed


def _until_settled(schedule: Schedule) -> Iterator[float]:
    """The sparsities of a function up to the first that equals the one it stays at."""
    index, sparsity = 1, schedule(1)
    yield sparsity  # a function that gives no sparsity at all is found out before it is asked for a far round
    limit = _limit(schedule)
    while sparsity != limit:
        if index == LONGEST:
            raise LamplighterError(
                f"count is None, and the schedule has not reached its last sparsity, {limit}, in {LONGEST:,} rounds",
                "pass count=..., how many times to prune",
            )
        index += 1
        sparsity = schedule(index)
        yield sparsity


def _limit(schedule: Schedule) -> float:
    try:
        return _sparsity(schedule(FAR), FAR)
    except Exception as error:
        reason = error.message if isinstance(error, LamplighterError) else f"it raises {error!r}"
        raise LamplighterError(
            f"count is None, and the schedule does not say where it ends: asked for round {FAR:,}, {reason}",
            "pass count=..., how many times to prune",
        ) from error


def _not_below(before: float, sparsity: object, index: int) -> float:
    checked = _sparsity(sparsity, index)
    if checked < before:
        raise LamplighterError(
            f"the schedule goes down, from sparsity {before} to {checked} in round {index}",
            "what is pruned does not come back: let the sparsity grow from round to round",
        )
    return checked


def _sparsity(value: object, index: int) -> float:
    if _is_fraction(value):
        return float(value)
    raise LamplighterError(
        f"the schedule asks for sparsity {value!r} in round {index:,}; expected a number from 0 to 1",
        "give plain numbers: 0.9 removes nine weights in ten (of a tensor, pass .tolist())",
    )


def _between(final: float, steps: int, initial: float, begin: int, shape: Callable[[float], float]) -> Schedule:
    first, last = _fraction("initial", initial), _fraction("final", final)
    n, start = _count("steps", steps, least=1), _count("begin", begin, least=0)
    if first > last:
        raise LamplighterError(
            f"initial sparsity {initial} is above final sparsity {final}", "what is pruned does not come back"
        )

    def sparsity_at(step: int) -> float:
        # The ends are returned as given: the formula may round them.
        if step >= start + n:
            return last
        left = 1.0 - (step - start) / n if step > start else 1.0
        return min(max(last + (first - last) * shape(left), first), last) if left < 1.0 else first

    return sparsity_at


def _is_fraction(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    number: Any = value  # the types do not say that real numbers compare
    return bool(0 <= number <= 1)


def _fraction(name: str, value: object) -> float:
    if _is_fraction(value):
        return float(value)
    raise LamplighterError(f"{name} is {value!r}; expected a number from 0 to 1", "0.9 removes nine weights in ten")


def _count(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise LamplighterError(
            f"{name} is {value!r}; expected an integer of at least {least}",
            "count the rounds, or whatever steps the schedule is asked for",
        )
    return int(value)
