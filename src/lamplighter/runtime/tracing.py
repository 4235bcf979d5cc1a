"""From a PyTorch model to a network of the runtime: exported, and written down node by node."""

from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from lamplighter.runtime.network import Network
from lamplighter.runtime.operators import HANDLERS
from lamplighter.runtime.tracer import Tracer, UnsupportedError


def exported(model: nn.Module | ExportedProgram, example: Tensor) -> ExportedProgram:
    """The model as a program of PyTorch's operators, for inputs of the example's shape, in evaluation mode."""
    if isinstance(model, ExportedProgram):
        return model
    training = {module for module in model.modules() if module.training}
    model.eval()
    try:
        with torch.no_grad():
            return torch.export.export(model, (example,))
    finally:
        for module in training:
            module.training = True


def trace(program: ExportedProgram) -> Network:
    """Write an exported program down as a network, batch norms folded, ReLUs and additions taken in."""
    tracer = Tracer(program)
    for node in program.graph.nodes:
        if node.op == "call_function":
            handler = _handler(str(node.target))
            if handler is None:
                raise UnsupportedError(f"the operator {node.target}")
            tracer.values[node.name] = handler(tracer, node)
    return tracer.finish()


def _handler(name: str) -> Callable[[Tracer, fx.Node], int] | None:
    """What writes an operator down. One that works in place is done anew instead."""
    operator, _, overload = name.rpartition(".")
    return HANDLERS.get(name) or HANDLERS.get(f"{operator.removesuffix('_')}.{overload}")
