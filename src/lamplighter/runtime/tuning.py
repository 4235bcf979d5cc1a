"""How each convolution is best carried out: measured on this machine, or guessed."""

import time
from collections.abc import Callable
from math import ceil

from lamplighter.runtime.build import ISAS
from lamplighter.runtime.steps import Choice, Convolution, Step, conv_step, gapless

# The most vectors of a plane that groups of 1, 2 and 4 channels hold in 32 registers, and in 16.
MANY: dict[int, tuple[int, ...]] = {1: (16, 8), 2: (12, 6), 4: (6, 3)}
FEW: dict[int, tuple[int, ...]] = {1: (12, 6), 2: (6, 3), 4: (2,)}


def options(conv: Convolution, isa: int) -> list[Choice]:
    """All ways that are worth measuring."""
    if conv.y.planes.span == 1:
        ways = [Choice("dot", longest(isa))]
        density = conv.node.weight.density
        return [*ways, Choice("dense", longest(isa))] if gapless(conv.x.planes) and density > 0.1 else ways
    found = []
    for lanes in _lanes(conv.y.planes.span, isa):
        for group, most in _room(isa).items():
            if group <= conv.entries.outputs:
                found += [Choice("conv", lanes, group, block) for block in _blocks(conv, lanes, most)]
    return found


def guess(conv: Convolution, isa: int) -> Choice:
    """The way that is best more often than others: channels together where they share much."""
    found = options(conv, isa)
    if found[0].way != "conv":
        return found[-1] if conv.node.weight.density > 0.4 else found[0]
    density = conv.node.weight.density
    group = 4 if density > 0.3 else 2 if density > 0.1 else 1
    return next((choice for choice in found if choice.group == group), found[0])


def fastest(
    conv: Convolution, isa: int, threads: int, run: Callable[[Step], None], seconds: float
) -> tuple[Choice, float]:
    """The way that took least time, and the time.

    Args:
        conv: the convolution.
        isa: the instruction set.
        threads: how many work together.
        run: carries out a step.
        seconds: how long each way is measured for.
    """
    timed = {choice: conv_step(conv, choice, threads) for choice in options(conv, isa)}
    best = dict.fromkeys(timed, float("inf"))
    for _ in range(3):  # in turns, so that a disturbance does not hit one of them alone
        for choice, step in timed.items():
            best[choice] = min(best[choice], _quickest(lambda step=step: run(step), seconds / 3))  # type: ignore[misc]
    choice = min(best, key=best.__getitem__)
    return choice, best[choice]


def _quickest(work: Callable[[], None], seconds: float) -> float:
    least, end = float("inf"), time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        work()
        now = time.perf_counter()
        least = min(least, now - began)
        if now >= end:
            return least


def longest(isa: int) -> int:
    """Floats in the longest vectors of an instruction set."""
    return {ISAS["avx512"]: 16, ISAS["avx2"]: 8}.get(isa, 4)


def _lanes(span: int, isa: int) -> list[int]:
    most = longest(isa)
    if span <= 8:
        return [min(most, 8), *([4] if span <= 4 < most else [])]
    return [16, 8] if most == 16 and span <= 64 else [most]


def _room(isa: int) -> dict[int, tuple[int, ...]]:
    from platform import machine  # noqa: PLC0415

    return MANY if isa == ISAS["avx512"] or machine() in ("aarch64", "arm64") else FEW


def _blocks(conv: Convolution, lanes: int, most: tuple[int, ...]) -> list[int]:
    """Block sizes that share a plane's vectors out evenly."""
    vectors = ceil(conv.y.planes.span / lanes)
    return list(dict.fromkeys(ceil(vectors / ceil(vectors / limit)) for limit in most))
