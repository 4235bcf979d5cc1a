"""Layer-adaptive sparsity for any PyTorch model, exact at any size."""

from importlib import import_module
from typing import TYPE_CHECKING

from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.version import __version__

if TYPE_CHECKING:
    from lamplighter import schedules
    from lamplighter.evidence import gradients, input_norms
    from lamplighter.masks import Masks
    from lamplighter.pruning import allocate, prune
    from lamplighter.training.rounds import rounds

__all__ = [
    "LamplighterError",
    "LamplighterWarning",
    "Masks",
    "__version__",
    "allocate",
    "gradients",
    "input_norms",
    "prune",
    "rounds",
    "schedules",
]

# Where the names live that need torch: loaded when first used, so that `lamp --help` need not wait for it.
_HOMES = {
    "Masks": "lamplighter.masks",
    "allocate": "lamplighter.pruning",
    "gradients": "lamplighter.evidence",
    "input_norms": "lamplighter.evidence",
    "prune": "lamplighter.pruning",
    "rounds": "lamplighter.training.rounds",
}


def __getattr__(name: str) -> object:
    if name == "schedules":
        return import_module("lamplighter.schedules")
    if name not in _HOMES:
        raise AttributeError(f"module 'lamplighter' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
