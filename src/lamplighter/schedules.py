"""How sparse to be at each step of a run: plain functions step -> sparsity."""

import math
from collections.abc import Callable

from lamplighter.errors import LamplighterError

Schedule = Callable[[int], float]


def one_shot(sparsity: float) -> Schedule:
    """Everything at once: 0 at step 0, `sparsity` from step 1 on.

    Args:
        sparsity: the fraction removed.

    >>> [one_shot(0.9)(step) for step in range(3)]
    [0.0, 0.9, 0.9]
    """
    _check_fraction("sparsity", sparsity)
    return lambda step: sparsity if step >= 1 else 0.0


def geometric(rate: float = 0.2) -> Schedule:
    """The same share of the survivors at every step: 1 - (1 - rate)^step (Frankle and Carbin, 2019).

    Args:
        rate: the share of the surviving weights that a step removes.

    >>> [round(geometric(0.2)(step), 4) for step in range(4)]
    [0.0, 0.2, 0.36, 0.488]
    """
    _check_fraction("rate", rate)
    return lambda step: 1.0 - (1.0 - rate) ** max(step, 0)


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


def _between(final: float, steps: int, initial: float, begin: int, shape: Callable[[float], float]) -> Schedule:
    _check_fraction("final", final)
    _check_fraction("initial", initial)
    _check_count("steps", steps, least=1)
    _check_count("begin", begin, least=0)
    if initial > final:
        raise LamplighterError(
            f"initial sparsity {initial} is above final sparsity {final}", "what is pruned does not come back"
        )

    def sparsity_at(step: int) -> float:
        # The ends are returned as given: the formula may round them.
        if step >= begin + steps:
            return final
        left = 1.0 - (step - begin) / steps if step > begin else 1.0
        return min(max(final + (initial - final) * shape(left), initial), final) if left < 1.0 else initial

    return sparsity_at


def _check_fraction(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or not 0.0 <= value <= 1.0:
        raise LamplighterError(f"{name} is {value!r}; expected a number from 0 to 1", "0.9 removes nine weights in ten")


def _check_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise LamplighterError(f"{name} is {value!r}; expected an integer of at least {least}", "count optimizer steps")
