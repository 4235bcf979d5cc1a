"""The data of a recipe: from where the user says it is, from what was prepared before, or from the hub."""

from pathlib import Path

from lamplighter.data.catalog import PREPARED
from lamplighter.data.prepare import load, prepare
from lamplighter.data.store import recorded_hash
from lamplighter.errors import LamplighterError
from lamplighter.experiments.spec import Spec
from lamplighter.experiments.starting import Data

_WEIGHTS = "imagenet-resnet50"


def open_data(spec: Spec, given: Path | None) -> tuple[Data, str | None]:
    """The data of a spec, and the hash of the prepared file.

    Args:
        spec: names the dataset.
        given: a folder with the prepared file, or with the dataset as the hub or its makers serve it; it is then
            prepared once. Without it, what was prepared before, or the hub.
    """
    if spec.plan == "profile":
        return _weights(given), None
    name = f"{spec.dataset}.safetensors"
    folder = given if given is not None and (given / name).is_file() else PREPARED
    if not (folder / name).is_file():
        prepare(spec.dataset, given, folder)
    return load(spec.dataset, folder), recorded_hash(folder / name)


def _weights(given: Path | None) -> Path:
    """The file of a ResNet-50 trained on ImageNet, under torchvision's names."""
    path = PREPARED / f"{_WEIGHTS}.safetensors"
    if given is None:
        return path if path.is_file() else _fetch(path)
    candidates = (given, given / path.name, given / "model.safetensors", given / "resnet50" / "model.safetensors")
    found = next((each for each in candidates if each.is_file()), None)
    if found is None:
        raise LamplighterError(
            f"{given} holds no weights of a ResNet-50: there is no model.safetensors",
            "name the safetensors file, or leave out --data to fetch torchvision's",
        )
    return found


def _fetch(path: Path) -> Path:
    from safetensors.torch import save_file  # noqa: PLC0415

    try:
        from torchvision.models import ResNet50_Weights  # noqa: PLC0415

        weights = ResNet50_Weights.IMAGENET1K_V1.get_state_dict(progress=False)
    except Exception as error:  # no torchvision, no connection, no room: the user can do the same about each
        raise LamplighterError(
            f"the weights of a ResNet-50 could not be fetched: {type(error).__name__}: {error}",
            "fetching needs torchvision and a connection; or pass --data FILE, a safetensors file with its names",
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, part)
    return part.replace(path)
