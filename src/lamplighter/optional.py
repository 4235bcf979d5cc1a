"""Packages that only some commands need: find them, or say how to install them."""

import importlib.util

from lamplighter.errors import LamplighterError


def require(purpose: str, extra: str, *packages: str) -> None:
    """Refuse to begin `purpose` when one of `packages` is not installed.

    Called before any work starts, so that nobody waits a minute to learn that a package is missing.

    Args:
        purpose: what needs the packages, as the user would name it.
        extra: the extra of this distribution that brings them.
        packages: import names.
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        names = " and ".join(missing)
        raise LamplighterError(
            f"{purpose} needs {names}, which cannot be imported here", hint=f'pip install "lamplighter[{extra}]"'
        )
