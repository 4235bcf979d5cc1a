"""The layers of a checkpoint as a source of spectra that the nodes of a cluster read, and whose sums are made here."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from lamplighter.checkpoint import shares
from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.cluster import AnyTask, Cluster
from lamplighter.checkpoint.cluster_tasks import Count, Energy, Look, Origin, Share
from lamplighter.checkpoint.discovery import Region
from lamplighter.checkpoint.progress import Meter, Tell, silent
from lamplighter.checkpoint.shares import in_shares, split_layers
from lamplighter.checkpoint.shelf import Shelf
from lamplighter.checkpoint.stream import CHUNK, in_file_order
from lamplighter.errors import LamplighterError
from lamplighter.reading import refuse_nonfinite
from lamplighter.spectra import Cut
from lamplighter.spectrum import Spectrum, add


class _Reading(Protocol):
    """A task that reads a share."""

    @property
    def share(self) -> Share:
        """What it reads."""

    def carry_out(self) -> Any:  # noqa: ANN401
        """What it tells of each layer, or part of one."""


class Spread:
    """The layers of a checkpoint, as a source of spectra.

    Args:
        checkpoint: where they are.
        regions: where in it, by layer name in layer order.
        cluster: whose nodes read.
        chunk: how many bytes each thread reads at once.
        tell: is told how much has been read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        regions: Mapping[str, Region],
        cluster: Cluster,
        chunk: int = CHUNK,
        tell: Tell = silent,
    ) -> None:
        self.checkpoint = checkpoint
        self.regions = dict(regions)
        self.cluster = cluster
        self.chunk = chunk
        self.share = shares.SHARE  # bytes that a task works on
        self.origin = Origin.of(checkpoint)
        self.parts = split_layers(self.regions, self.share)
        self._layers = {part: layer for layer, parts in self.parts.items() for part in parts}
        self._counted: dict[str, Spectrum] = {}  # of parts: what tells how the cut of a layer falls on them
        self._windows: dict[str, Spectrum] = {}
        self._meter = Meter("reading", tell)

    def count(self) -> Mapping[str, Spectrum]:
        """The spectrum of every layer; an error for what is not finite."""
        shelf = Shelf(self.regions)
        broken: dict[str, int] = {}

        def done(layer: str, found: dict[str, Spectrum]) -> None:
            parts = {part: _own(spectrum) for part, spectrum in found.items()}
            spectrum = add([parts[part] for part in self.parts[layer]])
            if spectrum.nonfinite:
                broken[layer] = spectrum.nonfinite
            if len(parts) > 1:
                self._counted |= parts
            shelf.put(layer, spectrum)

        self._read(self.regions, Count, done)
        refuse_nonfinite({layer: broken[layer] for layer in self.regions if layer in broken})
        return shelf

    def window(self, codes: Mapping[str, tuple[int, int]], *, energy: bool) -> dict[str, tuple[Spectrum, float]]:
        """Exact spectra between two codes, and about the energy above."""
        windows: dict[str, tuple[Spectrum, float]] = {}

        def done(layer: str, found: dict[str, tuple[Spectrum, float]]) -> None:
            parts = {part: _own(spectrum) for part, (spectrum, _) in found.items()}
            if len(parts) > 1:
                self._windows |= parts
            spectrum = add([parts[part] for part in self.parts[layer]])
            windows[layer] = spectrum, math.fsum(above for _, above in found.values())

        self._read(codes, lambda share: Look(share, self._of_parts(codes, share), energy), done)
        return {layer: windows[layer] for layer in codes}

    def energy(self, codes: Mapping[str, int]) -> dict[str, int]:
        """The exact energy of the entries from a code up, in units squared."""
        energies: dict[str, int] = {}

        def done(layer: str, found: dict[str, int]) -> None:
            energies[layer] = sum(found.values())

        self._read(codes, lambda share: Energy(share, self._of_parts(codes, share)), done)
        return {layer: energies[layer] for layer in codes}

    def split_cuts(self, cuts: Mapping[str, Cut]) -> dict[str, Cut]:
        """The cuts of layers as they cut their parts, of which the first lose the entries that equal a cut."""
        found: dict[str, Cut] = {}
        for layer, cut in cuts.items():
            parts, left = list(self.parts[layer]), cut.drop
            for part in parts:
                drop = left if len(parts) == 1 else min(left, self._equals(part, cut.code) if left else 0)
                found[part] = Cut(cut.code, drop)
                left -= drop
            assert left == 0, (layer, cut)
        return found

    def carry_out(self, tasks: Iterable[AnyTask], done: Callable[[AnyTask, Any], None]) -> None:
        """Have the cluster carry out tasks on the checkpoint; errors call it as the user does."""
        try:
            self.cluster.run(tasks, done)
        except LamplighterError as error:
            self.checkpoint.check_unchanged()  # if a file was changed, that is what the user wants to hear
            message = error.message.replace(str(self.origin.path), str(self.checkpoint.path))
            raise LamplighterError(message, error.hint) from error

    def _equals(self, part: str, code: int) -> int:
        """How many entries of a part equal a code at which its layer is cut."""
        spectrum = self._counted[part]
        if code == 0:
            return spectrum.zeros
        if spectrum.shift:
            spectrum = self._windows[part]
        place = int(np.searchsorted(spectrum.keys, code))
        return int(spectrum.counts[place]) if place < len(spectrum.keys) and spectrum.keys[place] == code else 0

    def _of_parts(self, codes: Mapping[str, Any], share: Share) -> dict[str, Any]:
        return {part: codes[self._layers[part]] for part in share.regions}

    def _read(
        self,
        layers: Mapping[str, object],
        task: Callable[[Share], _Reading],
        done: Callable[[str, dict[str, Any]], None],
    ) -> None:
        """Read some layers; what their parts give is gathered, and handed over when a layer is complete."""
        ordered = in_file_order(self.checkpoint, {layer: self.regions[layer] for layer in layers})
        parts = [(part, region) for layer in ordered for part, region in self.parts[layer].items()]
        self._meter.expect(sum(map(_nbytes, parts)))
        waiting: dict[str, dict[str, Any]] = {layer: {} for layer in layers}

        def arrived(task: _Reading, found: Mapping[str, Any]) -> None:
            for part, each in found.items():
                layer = self._layers[part]
                waiting[layer][part] = each
                if len(waiting[layer]) == len(self.parts[layer]):
                    done(layer, waiting.pop(layer))
            self._meter.step(task.share.nbytes)

        parted = (
            Share(self.origin, dict(each), self.cluster.threads, self.chunk)
            for each in in_shares(parts, _nbytes, self.share)
        )
        self.carry_out(map(task, parted), arrived)


def _nbytes(part: tuple[str, Region]) -> int:
    return part[1].size * part[1].dtype.itemsize


def _own(spectrum: Spectrum) -> Spectrum:
    """A copy: what came from a task stays in memory that all processes share, as long as a part of it is held."""
    return Spectrum(spectrum.dtype, spectrum.shift, spectrum.zeros, spectrum.keys.copy(), spectrum.counts.copy())
