"""Pruned networks on ordinary processors: sparse kernels, and files that run without torch."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lamplighter.runtime.compiled import Compiled, load
    from lamplighter.runtime.compiling import Fast, compile  # noqa: A004 - its public name

__all__ = ["Compiled", "Fast", "compile", "load"]

# Loaded when first used: `compile` needs torch, `load` must not.
_HOMES = {
    "Compiled": "lamplighter.runtime.compiled",
    "Fast": "lamplighter.runtime.compiling",
    "compile": "lamplighter.runtime.compiling",
    "load": "lamplighter.runtime.compiled",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'lamplighter.runtime' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
