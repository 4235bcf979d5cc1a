"""Which weights are prunable, and what a layer is."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Layer:
    """The weights that share one budget: a parameter, or one expert's slice of a stacked parameter."""

    name: str
    parameter: Tensor
    expert: int | None = None

    @property
    def weight(self) -> Tensor:
        """The weights themselves, detached, in the parameter's own memory."""
        whole = self.parameter.detach()
        return whole if self.expert is None else whole[self.expert]
