"""Layer-adaptive sparsity for any PyTorch model, exact at any size."""

from lamplighter import schedules
from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.evidence import gradients, input_norms
from lamplighter.masks import Masks
from lamplighter.pruning import allocate, prune
from lamplighter.training.rounds import rounds
from lamplighter.version import __version__

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
