"""What a node of a cluster does: it reads or masks its share of a checkpoint, with the code that does so locally.

Every task can be done again, and by several nodes at once, with the same outcome: readings change nothing, and of a
file that is written the same bytes get the same values. Nothing here knows what brings the tasks to the nodes.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.discovery import Region
from lamplighter.checkpoint.passing import Decision, Passage, Stretch
from lamplighter.checkpoint.stream import Stream
from lamplighter.checkpoint.writing import Buffer, put, unwritable
from lamplighter.errors import LamplighterError
from lamplighter.spectrum import Spectrum

SAME_FOLDER = "every node has to find the same folders, under the same paths"


@dataclass(frozen=True)
class Origin:
    """A checkpoint as every node has to find it.

    Args:
        path: where, an absolute path.
        files: name, size and time of the last change of each file that holds tensors.
    """

    path: Path
    files: tuple[tuple[str, int, int], ...]

    @staticmethod
    def of(checkpoint: Checkpoint) -> "Origin":
        """That of a checkpoint that is open here."""
        return Origin(checkpoint.path.absolute(), _files(checkpoint))


def _files(checkpoint: Checkpoint) -> tuple[tuple[str, int, int], ...]:
    # Not the rest of a stamp: devices and, in some file systems, inodes have other numbers on another node.
    return tuple((file, stamp.size, stamp.modified) for file, stamp in checkpoint.stamps.items())


@lru_cache(maxsize=1)
def open_origin(origin: Origin) -> Checkpoint:
    """The checkpoint, opened once by each process; an error if this node finds another one."""
    try:
        checkpoint = Checkpoint(origin.path)
    except LamplighterError as error:
        raise LamplighterError(f"on node {socket.gethostname()}: {error.message}", SAME_FOLDER) from error
    if _files(checkpoint) != origin.files:
        message = f"node {socket.gethostname()} finds another checkpoint at {origin.path}"
        raise LamplighterError(message, SAME_FOLDER)
    return checkpoint


@dataclass(frozen=True)
class Share:
    """Layers, or parts of them, that one task reads.

    Args:
        origin: the checkpoint.
        regions: where in it they stand, by name.
        threads: how many read.
        chunk: how many bytes at once.
    """

    origin: Origin
    regions: Mapping[str, Region]
    threads: int
    chunk: int

    @property
    def nbytes(self) -> int:
        """How many bytes are read."""
        return sum(region.size * region.dtype.itemsize for region in self.regions.values())

    def stream(self) -> Stream:
        """What reads them."""
        return Stream(open_origin(self.origin), self.regions, self.threads, self.chunk)


@dataclass(frozen=True)
class Count:
    """The first reading of a share."""

    share: Share

    def carry_out(self) -> dict[str, Spectrum]:
        """The spectra, out of the file that they may have been put away in."""
        found = self.share.stream().count(finite=False)
        return {name: Spectrum(s.dtype, s.shift, s.zeros, s.keys, s.counts) for name, s in found.items()}


@dataclass(frozen=True)
class Look:
    """The second reading of a share: exact spectra between two codes, and about the energy above."""

    share: Share
    codes: Mapping[str, tuple[int, int]]
    energy: bool

    def carry_out(self) -> dict[str, tuple[Spectrum, float]]:
        """The stretches of the spectra."""
        return self.share.stream().window(self.codes, energy=self.energy)


@dataclass(frozen=True)
class Energy:
    """The exact energy of a share's entries from a code up."""

    share: Share
    codes: Mapping[str, int]

    def carry_out(self) -> dict[str, int]:
        """The energies."""
        return self.share.stream().energy(self.codes)


@dataclass(frozen=True)
class Fill:
    """The last reading: stretches of tensors, masked and written to their places in a file that is there.

    Args:
        share: the layers, or parts of them, in these stretches.
        decision: what these keep.
        stretches: what passes through.
        path: the file, an absolute path.
        size: its length, which it has from the beginning.
        places: where in it each tensor begins.
    """

    share: Share
    decision: Decision
    stretches: tuple[Stretch, ...]
    path: Path
    size: int
    places: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        """How many bytes are written."""
        return sum(stretch.nbytes for stretch in self.stretches)

    def carry_out(self) -> int:
        """How many bytes were written, and are on the disk."""
        share = self.share
        passage = Passage(open_origin(share.origin), self.decision, share.threads, share.chunk)
        filler = Filler(self.path, self.size, self.places)
        passage.pass_on(self.stretches, filler)
        filler.close()
        return self.nbytes


class Filler:
    """A file that was laid out by another process, while parts of it are written.

    It is opened for writing only, and has its full length. Else a client of a network file system could fetch or make
    up a whole page, change a part of it and write all of it back, over what another node has written meanwhile.
    """

    def __init__(self, path: Path, size: int, places: Mapping[str, int]) -> None:
        self.path = path
        self._places = places
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise LamplighterError(f"node {socket.gethostname()} does not find {path}", SAME_FOLDER) from error
        except OSError as error:
            raise unwritable(path, error) from error
        found = os.fstat(self._descriptor).st_size
        if found != size:
            self.abandon()
            message = f"node {socket.gethostname()} finds {found:,} bytes at {path}, expected {size:,}"
            raise LamplighterError(message, SAME_FOLDER)

    def write_at(self, name: str, offset: int, chunk: Buffer) -> None:
        """Some bytes of a tensor, from `offset` on."""
        put(self.path, self._descriptor, chunk, self._places[name] + offset)

    def close(self) -> None:
        """Have the system write everything to the disk, where other nodes see it once this is closed."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise unwritable(self.path, error) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is."""
        os.close(self._descriptor)
