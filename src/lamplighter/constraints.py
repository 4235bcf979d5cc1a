"""Densities that the user asks for, as bounds on how many weights each layer keeps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real

from lamplighter.errors import LamplighterError
from lamplighter.naming import closest, compile_glob
from lamplighter.spectra import Spectra

Densities = float | Mapping[str, float] | None


@dataclass(frozen=True)
class Constraints:
    """Densities that the user asks of some layers or all."""

    least: Densities
    most: Densities
    fixed: Mapping[str, float] | None

    def bounds(self, spectra: Spectra, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """How few and how many weights each layer may keep."""
        least = _densities(self.least, sizes, "min_density")
        most = _densities(self.most, sizes, "max_density")
        fixed = _densities(self.fixed, sizes, "densities")
        bounds = {}
        for name, spectrum in spectra.items():
            size, alive = sizes[name], spectrum.size
            floor = math.ceil(least[name] * size) if name in least else 0
            cap = min(alive, math.floor(most[name] * size)) if name in most else alive
            if name in fixed:
                floor = round(fixed[name] * size)
                cap = min(alive, floor)
            bounds[name] = (floor, cap)
        return bounds


def _densities(given: Densities, sizes: Mapping[str, int], what: str) -> dict[str, Fraction]:
    """Densities by layer, as the decimal fractions that the user wrote."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        given = dict.fromkeys(sizes, given)
        return {name: _decimal(density, what) for name, density in given.items()}
    found: dict[str, Fraction] = {}
    for glob, density in given.items():
        pattern = compile_glob(glob)
        names = [name for name in sizes if pattern.match(name)]
        if not names:
            raise LamplighterError(f"{what} names {glob!r}, which is none of the layers", closest(glob, sizes))
        found |= dict.fromkeys(names, _decimal(density, f"{what}[{glob!r}]"))
    return found


def _decimal(density: object, what: str) -> Fraction:
    return Fraction(str(checked_fraction(density, what)))


def checked_fraction(value: object, what: str) -> float:
    """The value, if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise LamplighterError(f"{what} is {value!r}, expected a number from 0 to 1", f"for example {what}=0.9")
    return float(value)
