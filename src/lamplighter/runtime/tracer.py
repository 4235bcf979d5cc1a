"""What is known of an exported program while it is written down: constants, values, shapes."""

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from lamplighter.errors import LamplighterError
from lamplighter.runtime.drafting import Draft
from lamplighter.runtime.network import Network


class UnsupportedError(LamplighterError):
    """The runtime has no kernel for something in the model.

    Args:
        what: the operator and why.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the sparse runtime cannot run {what}",
            "it runs convolutions, linear layers, batch norm, ReLU, additions, pooling and means over the image",
        )
        self.what = what


class Tracer:
    """Goes through a program's operators in order. What an operator becomes is written to `draft`."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.constants: dict[str, Tensor] = {}
        self.values: dict[str, int] = {}
        self.draft = Draft()
        signature = program.graph_signature
        held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        constants = signature.inputs_to_lifted_tensor_constants
        for node in program.graph.nodes:
            if node.op == "placeholder" and node.name in held:
                name = held[node.name]
                found = program.state_dict.get(name, program.constants.get(name))
                assert isinstance(found, Tensor)
                self.constants[node.name] = found.detach()
                self.draft.names[node.name] = name
            elif node.op == "placeholder" and node.name in constants:
                self.constants[node.name] = program.constants[constants[node.name]].detach()
        inputs = signature.user_inputs
        if len(inputs) != 1 or len(signature.user_outputs) != 1:
            raise UnsupportedError(f"models with {len(inputs)} inputs and {len(signature.user_outputs)} outputs")
        self.input, self.output = (str(each[0]) for each in (inputs, signature.user_outputs))
        shape = self._shape(next(node for node in program.graph.nodes if node.name == self.input))
        self.images = shape[0]
        self.values[self.input] = self.draft.value(self._image(shape, "its input"))

    def finish(self) -> Network:
        """The network, once every operator is there."""
        nodes = {node.name: node for node in self.program.graph.nodes}
        shapes = (self._shape(nodes[self.input]), self._shape(nodes[self.output]))
        return self.draft.network(*shapes, self.values[self.output])

    def given(self, node: fx.Node) -> dict[str, Any]:
        """An operator's arguments by name, defaults filled in."""
        schema = node.target._schema  # type: ignore[union-attr]
        found = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
        names = [argument.name for argument in schema.arguments]
        return {**found, **dict(zip(names, node.args, strict=False)), **node.kwargs}

    def constant(self, node: fx.Node | None) -> Tensor | None:
        """A parameter or buffer."""
        if node is None:
            return None
        if node.name not in self.constants:
            raise UnsupportedError("a layer whose weights are computed")
        return self.constants[node.name]

    def value(self, node: fx.Node) -> int:
        """The value an operator made."""
        if not isinstance(node, fx.Node) or node.name not in self.values:
            raise UnsupportedError(f"arithmetic with constants ({node})")
        return self.values[node.name]

    def alone(self, node: fx.Node) -> bool:
        """Whether nothing but one operator reads this one's result."""
        return len(node.users) == 1 and node.name != self.output

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        value = node.meta["val"]
        if value.dtype != torch.float32 or not all(isinstance(size, int) for size in value.shape):
            raise UnsupportedError(f"{value.dtype} of shape {tuple(value.shape)}: it takes float32 of fixed shapes")
        return tuple(value.shape)

    def image(self, node: fx.Node) -> tuple[int, int, int]:
        """Channels, rows and columns of an operator's result."""
        return self._image(self._shape(node), str(node.target))

    def _image(self, shape: tuple[int, ...], what: str) -> tuple[int, int, int]:
        if len(shape) not in (2, 4) or shape[0] != self.images:
            raise UnsupportedError(f"{what} of shape {shape}: it takes (images, features) or (images, channels, h, w)")
        return (shape[1], shape[2], shape[3]) if len(shape) == 4 else (shape[1], 1, 1)
