"""Memory for the values of a network: planes of the same form are used again once nothing reads them any more."""

from dataclasses import dataclass

from lamplighter.runtime.layout import Key, Planes, source, strided
from lamplighter.runtime.network import Conv, Network
from lamplighter.runtime.operation import Floats, aligned


@dataclass(frozen=True)
class Place:
    """A value and where it lies.

    Args:
        planes: its form.
        memory: all of it, with the zeros around.
    """

    planes: Planes
    memory: Floats

    @property
    def address(self) -> int:
        """Of the first position of the first channel."""
        return int(self.memory.ctypes.data) + 4 * self.planes.margin


def allocate(network: Network, planes: dict[Key, Planes]) -> dict[Key, Place]:
    """Memory for every value and view.

    What lies between the images stays zero as long as all that is put there has the same form, so only then is memory
    used again.
    """
    last = _last_use(network)
    places: dict[Key, Place] = {(0, 0): Place(planes[0, 0], aligned(planes[0, 0].size))}
    free: dict[Planes, list[Floats]] = {}
    for step, node in enumerate(network.nodes):
        made: list[Key] = [(0, node.y)]
        if isinstance(node, Conv) and strided(node):
            made.insert(0, source(step, node))
        for key in made:
            room = free.get(planes[key], [])
            places[key] = Place(planes[key], room.pop() if room else aligned(planes[key].size))
        for key in [key for key, use in last.items() if use == step and key in places]:
            free.setdefault(planes[key], []).append(places[key].memory)
    return places


def _last_use(network: Network) -> dict[Key, int]:
    """The step after which each value and view is not needed; the result is needed to the end."""
    last: dict[Key, int] = {}
    for step, node in enumerate(network.nodes):
        last[0, node.x] = step
        last[0, node.y] = max(last.get((0, node.y), step), step)
        if isinstance(node, Conv):
            if node.add is not None:
                last[0, node.add] = step
            if strided(node):
                last[source(step, node)] = step
    last.pop((0, network.result), None)
    return last
