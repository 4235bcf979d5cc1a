"""Layers that lie in several processes, as a source of spectra: each reads its own part, then all are added up."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lamplighter.distributed.adding import add_energies, add_integers, add_up
from lamplighter.distributed.collectives import digest
from lamplighter.distributed.cutting import cuts_here
from lamplighter.distributed.parts import Part
from lamplighter.errors import LamplighterError
from lamplighter.formats import FORMATS, Ints, whole
from lamplighter.kernels import kernels_for
from lamplighter.reading import Tensors, refuse_nonfinite, run_of
from lamplighter.spectra import Cut
from lamplighter.spectrum import Spectrum

if TYPE_CHECKING:
    from lamplighter.distributed.agreement import Ranks


class Spread(Tensors):
    """Layers of which a part lies here.

    Args:
        tensors: what is ranked, as far as it lies here.
        alive: bit-packed masks of what earlier rounds kept, likewise.
        parts: which entries lie here, of layers that do not all.
        ranks: the processes that share the model.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], alive: Mapping[str, Tensor], parts: Mapping[str, Part], ranks: "Ranks"
    ) -> None:
        super().__init__(tensors, alive)
        self.parts = parts
        self.ranks = ranks

    def count(self) -> dict[str, Spectrum]:
        """The spectrum of every layer; what is not finite is an error in all processes."""
        spectra = add_up(self.read(), self.parts)
        self._check_same(spectra)
        refuse_nonfinite({name: s.nonfinite for name, s in spectra.items() if s.nonfinite})
        return spectra

    def window(self, codes: Mapping[str, tuple[int, int]], *, energy: bool) -> dict[str, tuple[Spectrum, float]]:
        """Exact spectra between two codes, and about the energy above."""
        self.ranks.agree(lambda: {"where the layers are cut": repr(codes)})
        here = super().window(codes, energy=energy)
        spectra = add_up({name: spectrum for name, (spectrum, _) in here.items()}, self.parts)
        energies = {name: above for name, (_, above) in here.items()}
        if energy:
            energies = add_energies(energies, self.parts)
        return {name: (spectra[name], energies[name]) for name in codes}

    def energy(self, codes: Mapping[str, int]) -> dict[str, int]:
        """The exact energy of the entries from a code up, in units squared."""
        self.ranks.agree(lambda: {"where the layers are cut": repr(codes)})
        forms = {name: FORMATS[self.tensors[name].dtype] for name in codes}
        found: dict[str, int] = {}
        for form in dict.fromkeys(forms.values()):
            here = {name: self._energy_here(name, code) for name, code in codes.items() if forms[name] is form}
            largest = 2 * (whole(form.infinity - 1, form).bit_length()) + 64
            found |= add_integers(here, self.parts, largest)
        return found

    def _energy_here(self, name: str, code: int) -> int:
        run = run_of(self.tensors[name], self.alive.get(name))
        return kernels_for(run).energy(run, code)  # type: ignore[no-any-return]

    def cuts_here(self, cuts: Mapping[str, Cut]) -> dict[str, Cut]:
        """The same cuts, as they cut what lies here."""
        return cuts_here(self, cuts)

    def _check_same(self, spectra: Mapping[str, Spectrum]) -> None:
        """An error if replicas of the same layer differ, or if the parts of a layer do not make it up."""
        for name, part in self.parts.items():
            size = int(np.prod(part.whole, dtype=np.int64))
            if name not in self.alive and spectra[name].size != size:
                raise LamplighterError(
                    f"the parts of {name} have {spectra[name].size:,} entries, the layer {size:,}",
                    "give it a shape that the mesh divides evenly",
                )
        differing = self.ranks.differing([_digest(spectrum) for spectrum in spectra.values()])
        if differing:
            raise LamplighterError(
                f"the processes hold different weights of {list(spectra)[differing[0]]}, which should be replicas",
                "broadcast them from one process first, as DistributedDataParallel does when a model is wrapped",
            )


def _digest(spectrum: Spectrum) -> int:
    arrays: list[Ints] = [spectrum.keys.astype(np.int64), spectrum.counts.astype(np.int64)]
    return digest(b"%d;" % spectrum.zeros + b"".join(array.tobytes() for array in arrays))
