"""Densities that the user asks for, as bounds on how many weights each layer keeps."""

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any

from lamplighter.errors import LamplighterError
from lamplighter.naming import closest, compile_glob
from lamplighter.spectra import Spectra

Densities = float | Mapping[str, float] | None


@dataclass(frozen=True)
class Constraints:
    """Densities that the user asks of some layers or all. Where several are asked of a layer, it keeps to all of them.

    An entry that is a layer's full name counts before those that are globs; of several globs the last that matches.
    """

    least: Densities
    most: Densities
    fixed: Mapping[str, float] | None

    def bounds(self, spectra: Spectra, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """How few and how many weights each layer may keep; the lower bound is above the upper where none will do."""
        least = _densities(self.least, sizes, "min_density")
        most = _densities(self.most, sizes, "max_density")
        fixed = _densities(self.fixed, sizes, "densities")
        bounds = {}
        for name, spectrum in spectra.items():
            size = sizes[name]
            floor, cap = math.ceil(least.get(name, 0) * size), math.floor(most.get(name, 1) * size)
            if name in fixed and floor <= cap:
                agree = least.get(name, 0) <= fixed[name] <= most.get(name, 1)
                floor = cap = _fixed(name, fixed[name] * size, (floor, cap), size, agree=agree)
            bounds[name] = (floor, min(cap, spectrum.size))
        return bounds


def _fixed(name: str, asked: Fraction, allowed: tuple[int, int], size: int, *, agree: bool) -> int:
    """The whole number nearest to what is asked; an error if the other densities do not allow it.

    Where the densities `agree`, only rounding leads out of what is allowed, and the nearest number allowed is taken.
    """
    floor, cap = allowed
    count = round(asked)
    missed = max(floor - count, count - cap)
    if missed > 0 and not agree:
        too = f"{missed:,} weight{'' if missed == 1 else 's'} too {'few' if count < floor else 'many'}"
        raise LamplighterError(
            f"densities fixes {name} at {count:,} of its {size:,} weights, but min_density and max_density allow "
            f"{floor:,} to {cap:,}: {too}",
            "change one of them for this layer; in each an entry under the layer's full name counts before globs",
        )
    return min(max(count, floor), cap)


def _densities(given: Densities, sizes: Mapping[str, int], what: str) -> dict[str, Fraction]:
    """Densities by layer, as the decimal fractions that the user wrote."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return dict.fromkeys(sizes, _decimal(given, what))
    found: dict[str, Fraction] = {}
    for glob in sorted(given, key=lambda each: each in sizes):  # full names last, so that they win; else as given
        if not isinstance(glob, str):
            raise LamplighterError(
                f"{what} names {reprlib.repr(glob)}, a {type(glob).__name__}, expected a layer's name or a glob",
                f"name layers by text, such as {what}={{{next(iter(sizes))!r}: 0.1}}",
            )
        names = [glob] if glob in sizes else list(filter(compile_glob(glob).match, sizes))
        if not names:
            raise LamplighterError(f"{what} names {glob!r}, which is none of the layers", closest(glob, sizes))
        found |= dict.fromkeys(names, _decimal(given[glob], f"{what}[{glob!r}]"))
    return found


def _decimal(density: object, what: str) -> Fraction:
    return Fraction(str(checked_fraction(density, what)))


def checked_fraction(value: object, what: str) -> float:
    """The value, if it is a number from 0 to 1."""
    number: Any = value
    # Compared before it is converted: no float is as large as a whole number may be.
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= number <= 1:
        raise LamplighterError(f"{what} is {_shown(value)}, expected a number from 0 to 1", f"for example {what}=0.9")
    return float(number)


def _shown(value: object) -> str:
    """The value as Python writes it, cut where that is long."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a whole number of thousands of digits"
