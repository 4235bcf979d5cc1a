"""Layer-adaptive sparsity for any PyTorch model, exact at any size."""

from importlib import import_module
from typing import TYPE_CHECKING

from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.version import __version__

if TYPE_CHECKING:
    from lamplighter import schedules
    from lamplighter.checkpoint.checkpoint import Checkpoint
    from lamplighter.checkpoint.packed_models import load_packed
    from lamplighter.checkpoint.packed_packing import pack
    from lamplighter.checkpoint.packed_unpacking import unpack
    from lamplighter.checkpoint.packed_verifying import verify
    from lamplighter.checkpoint.prune import prune_checkpoint
    from lamplighter.evidence import gradients, input_norms
    from lamplighter.masks import Masks
    from lamplighter.migration.modules import adopt
    from lamplighter.migration.reading import read_sparse
    from lamplighter.migration.writing import migrate
    from lamplighter.pruning import allocate, prune
    from lamplighter.runtime.compiling import compile  # noqa: A004 - its public name
    from lamplighter.training.rounds import rounds

__all__ = [
    "Checkpoint",
    "LamplighterError",
    "LamplighterWarning",
    "Masks",
    "__version__",
    "adopt",
    "allocate",
    "compile",
    "gradients",
    "input_norms",
    "load_packed",
    "migrate",
    "pack",
    "prune",
    "prune_checkpoint",
    "read_sparse",
    "rounds",
    "schedules",
    "unpack",
    "verify",
]

# Where the names live that need torch: loaded when first used, so that `lamp --help` need not wait for it.
_HOMES = {
    "Checkpoint": "lamplighter.checkpoint.checkpoint",
    "Masks": "lamplighter.masks",
    "adopt": "lamplighter.migration.modules",
    "allocate": "lamplighter.pruning",
    "compile": "lamplighter.runtime.compiling",
    "gradients": "lamplighter.evidence",
    "input_norms": "lamplighter.evidence",
    "load_packed": "lamplighter.checkpoint.packed_models",
    "migrate": "lamplighter.migration.writing",
    "pack": "lamplighter.checkpoint.packed_packing",
    "prune": "lamplighter.pruning",
    "prune_checkpoint": "lamplighter.checkpoint.prune",
    "read_sparse": "lamplighter.migration.reading",
    "rounds": "lamplighter.training.rounds",
    "unpack": "lamplighter.checkpoint.packed_unpacking",
    "verify": "lamplighter.checkpoint.packed_verifying",
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
