"""Everything in a model or mapping that could be pruned, under every name it has."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lamplighter.errors import LamplighterError
from lamplighter.modules import (
    computed_weights,
    inputs_first,
    join,
    kind_of,
    kind_of_packing,
    named_modules,
    packed_buffers,
    packs_weight,
    stack_output_axis,
)
from lamplighter.naming import is_expert_stack, natural_key


@dataclass(eq=False)
class Candidate:
    """A parameter that could be chosen, under every name it has, and what its holders say it is.

    A weight that its module keeps packed has no tensor: an empty one stands for it, and `packed_in` names the module's
    class.
    """

    parameter: Tensor
    names: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    output_axis: int = 0
    computed: bool = False
    packed_in: str = ""

    @property
    def prunable(self) -> bool:
        return "embedding" not in self.kinds and bool(self.kinds & {"matrix", "stack"})


def survey(weights_or_model: object) -> list[Candidate]:
    """The candidates of a Module or a mapping of names to tensors; anything else is an error."""
    if isinstance(weights_or_model, nn.Module):
        return _survey_module(weights_or_model)
    if isinstance(weights_or_model, Mapping):
        return _survey_mapping(weights_or_model)
    raise LamplighterError(
        f"expected a Module or a mapping of names to tensors, got {_describe(weights_or_model)}",
        "pass the model itself, or a dict such as {'weight': tensor}",
    )


def _survey_mapping(weights: Mapping[object, object]) -> list[Candidate]:
    entries: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise LamplighterError(
                f"entry {name!r} of the mapping holds {_describe(tensor)}; expected a name and a Tensor",
                "pass a mapping of parameter names to tensors",
            )
        entries[name] = tensor
    found: dict[object, Candidate] = {}
    for name in sorted(entries, key=natural_key):
        tensor = entries[name]
        candidate = found.setdefault(_identity(tensor), Candidate(tensor))
        candidate.names.append(name)
        stacked = not is_lazy(tensor) and is_expert_stack(name, tensor.shape)
        _note(candidate, "stack" if stacked else "matrix", stack_output_axis(name, entries) if stacked else 0)
    return list(found.values())


def _survey_module(model: nn.Module) -> list[Candidate]:
    found: dict[object, Candidate] = {}
    computed: list[Candidate] = []
    packed: list[Candidate] = []
    for path, module in named_modules(model):
        if packs_weight(path, module):
            packed.append(_packed_candidate(path, module))
        hidden = computed_weights(module)
        for name, sources in hidden.items():
            names = [join(path, each) for each in (name, *sources)]
            source = next(iter(sources.values()))
            computed.append(Candidate(source, names, {kind_of(path, module, name, source)}, computed=True))
        inside = {source for sources in hidden.values() for source in sources}
        for name, tensor in (*module.named_parameters(recurse=False, remove_duplicate=False), *packed_buffers(module)):
            if name in inside:
                continue
            candidate = found.setdefault(_identity(tensor), Candidate(tensor))
            candidate.names.append(join(path, name))
            kind = kind_of(path, module, name, tensor)
            stacked = kind == "stack"
            _note(
                candidate, kind, stack_output_axis(name, module._parameters) if stacked else int(inputs_first(module))
            )
    return [*found.values(), *computed, *packed]


def _packed_candidate(path: str, module: nn.Module) -> Candidate:
    kind = type(module)
    names, kinds = [join(path, "weight")], {kind_of_packing(module)}
    return Candidate(torch.empty(0), names, kinds, packed_in=f"{kind.__module__}.{kind.__qualname__}")


def _note(candidate: Candidate, kind: str, output_axis: int) -> None:
    if not candidate.kinds & {"matrix", "stack"}:
        candidate.output_axis = output_axis
    candidate.kinds.add(kind)


def _identity(tensor: Tensor) -> object:
    """What two names have in common when they mean the same weights: the object, or the very same memory."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.is_meta:
        return id(tensor)
    if tensor.is_quantized or tensor.numel() == 0:
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _describe(given: object) -> str:
    if isinstance(given, type):
        return f"the class {given.__name__}"
    shape = f" of shape {tuple(given.shape)}" if isinstance(given, Tensor) and not is_lazy(given) else ""
    return f"a {type(given).__name__}{shape}"
