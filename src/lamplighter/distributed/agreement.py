"""That all processes ask the same, and that all end with an error where one does."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from lamplighter.distributed.collectives import LostProcessError, digest, largest
from lamplighter.distributed.parts import Part
from lamplighter.distributed.source import Spread
from lamplighter.errors import LamplighterError
from lamplighter.formats import Ints
from lamplighter.parts import Parts


class Ranks:
    """The processes that share a model: one group for each dimension of its mesh, or that of its replicas."""

    def __init__(self, groups: Sequence[ProcessGroup]) -> None:
        self.groups = tuple(groups)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what may fail in some processes only: then all end with an error."""
        trouble: Exception | None = None
        try:
            yield
        except LostProcessError:
            raise
        except Exception as error:  # whatever it is, the others must not wait for us
            trouble = error
        failed = bool(largest(np.array([trouble is not None], np.int64), self.groups)[0])
        if trouble is not None:
            raise trouble
        if failed:
            raise LamplighterError(
                "another of the processes that share this model cannot go on", "its own message says why"
            )

    def agree(self, on: Callable[[], Mapping[str, str]]) -> None:
        """An error in all processes unless all say the same, under the same headings."""
        with self.together():
            said_by_heading = on()
        differing = self.differing([digest(text.encode()) for text in said_by_heading.values()])
        if differing:
            heading, text = list(said_by_heading.items())[differing[0]]
            said = text if len(text) <= 200 else f"{text[:200]}..."
            raise LamplighterError(
                f"the processes that share this model disagree about {heading}; process {dist.get_rank()} has {said}",
                "call with the same model and the same arguments in all of them",
            )

    def differing(self, digests: Sequence[int]) -> list[int]:
        """Which of some digests are not the same in all processes, by their places."""
        mine = np.array(digests, np.int64)
        both: Ints = largest(np.concatenate([mine, -mine]), self.groups)
        return np.flatnonzero(both[: len(mine)] != -both[len(mine) :]).tolist()

    def source(self, tensors: Mapping[str, Tensor], alive: Mapping[str, Tensor], parts: Parts) -> Spread:
        """The layers, of which these tensors lie here, as a source of spectra."""
        ours = {name: part for name, part in parts.items() if isinstance(part, Part)}
        return Spread(tensors, alive, ours, self)


def ranks_of(spread: Sequence[Tensor], replicas: Sequence[DistributedDataParallel]) -> Ranks:
    """The processes of the largest mesh of some distributed tensors, and of modules that are replicated."""
    meshes: list[DeviceMesh] = [tensor.device_mesh for tensor in spread]  # type: ignore[attr-defined]
    groups: list[ProcessGroup] = []
    if meshes:
        mesh = max(meshes, key=lambda each: each.size())  # the first of the largest
        groups += [mesh.get_group(dimension) for dimension in range(mesh.ndim) if mesh.size(dimension) > 1]
    for module in replicas:
        group = module.process_group
        if group not in groups and group.size() > 1:
            groups.append(group)
    return Ranks(groups)
