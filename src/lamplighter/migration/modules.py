"""Taking over live models from `torch.nn.utils.prune`."""

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod

from lamplighter.errors import LamplighterError
from lamplighter.masks import Masks
from lamplighter.migration.forms import kept_by
from lamplighter.modules import join, named_modules
from lamplighter.targets import Layer, find_layers


def adopt(model: nn.Module) -> Masks:
    """Make what `torch.nn.utils.prune` has pruned permanent, in place, and return the masks.

    Every weight keeps the value that the model computed with: what was masked is 0 now, nothing else changes by a bit.
    Parameters get their names back and stay the same objects in the same memory, so an optimizer goes on with them;
    `masks.hold(optimizer)` then keeps zeros at zero. Other layers that count by default are part of the masks, with
    what is not zero in them.

    Args:
        model: a module, of which some modules were pruned by functions of `torch.nn.utils.prune`.

    >>> from torch.nn.utils import prune
    >>> model = nn.Sequential(prune.l1_unstructured(nn.Linear(4, 2), "weight", amount=0.5))
    >>> masks = adopt(model)
    >>> masks.kept, list(model.state_dict())
    ({'0.weight': 4}, ['0.bias', '0.weight'])
    """
    found = _pruned(model)
    if not found:
        raise LamplighterError(
            "nothing in the model is pruned by torch.nn.utils.prune",
            "what was made permanent with prune.remove is 0 already: use ll.read_sparse(model.state_dict())",
        )
    kept = {
        full: kept_by(full, getattr(module, f"{name}_orig").detach(), getattr(module, f"{name}_mask"))
        for full, (module, name) in found.items()
    }
    for full, (module, name) in found.items():
        _make_permanent(module, name, kept[full])
    others = {layer.name: layer.weight != 0 for layer in _layers(model)}
    return Masks({**others, **kept}).apply(model)


def _pruned(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """What is pruned, by the full name that it will have again."""
    return {
        join(path, hook._tensor_name): (module, hook._tensor_name)
        for path, module in named_modules(model)
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, BasePruningMethod)
    }


def _make_permanent(module: nn.Module, name: str, kept: Tensor) -> None:
    """As `torch.nn.utils.prune.remove`, but in the parameter's own memory, and without a product that makes -0."""
    for key, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name:
            del module._forward_pre_hooks[key]
    parameter = module._parameters.pop(f"{name}_orig")
    assert parameter is not None
    del module._buffers[f"{name}_mask"]
    delattr(module, name)
    with torch.no_grad():
        parameter.masked_fill_(~kept, 0)
    setattr(module, name, parameter)


def _layers(model: nn.Module) -> list[Layer]:
    """The layers that count by default, if there are any."""
    try:
        return find_layers(model)
    except LamplighterError:
        return []
