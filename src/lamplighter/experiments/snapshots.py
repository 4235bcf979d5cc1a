"""The state of a pruned network in a safetensors file: of pruned weights the mask and what it keeps, the rest whole.

For a layer `name` with a mask there are `name:mask`, bit-packed (see `bits`), and `name:kept`, the kept entries in
logical row-major order; every other parameter and buffer is stored under its own name. One entry of metadata,
`lamplighter-state`, holds the masked layers' shapes.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lamplighter import bits
from lamplighter.errors import LamplighterError
from lamplighter.masks import Masks

KEY = "lamplighter-state"
Named = dict[str, Tensor]


def save_state(path: Path, model: nn.Module, masks: Masks | None) -> None:
    """Write every parameter and buffer of a model whose pruned weights are zero; complete or not at all."""
    tensors: Named = {}
    shapes = {} if masks is None else masks.shapes
    for name, tensor in _state(model).items():
        if masks is None or name not in shapes:
            tensors[name] = tensor.detach().cpu().contiguous()
            continue
        kept = masks[name].to(tensor.device)
        tensors[f"{name}:mask"] = masks.packed[name].cpu()
        tensors[f"{name}:kept"] = tensor.detach()[kept].cpu()
    metadata = {KEY: json.dumps({"version": 1, "shapes": {name: list(shape) for name, shape in shapes.items()}})}
    part = path.with_name(f".{path.name}.part")
    try:
        save_file(tensors, part, metadata=metadata)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load_state(path: Path, model: nn.Module) -> Masks | None:
    """Give a model the state that `save_state` wrote; the masks it was pruned with."""
    try:
        with safe_open(path, framework="pt") as file:
            shapes = json.loads((file.metadata() or {})[KEY])["shapes"]
            tensors: Named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise LamplighterError(
            f"{path} cannot be read as a network's state: {error}", "delete the run's folder"
        ) from error
    packed = {name: tensors.pop(f"{name}:mask") for name in shapes}
    masks = Masks.from_packed(packed, shapes) if shapes else None
    for name in shapes:
        kept = tensors.pop(f"{name}:kept")
        tensors[name] = torch.zeros(shapes[name], dtype=kept.dtype)
        tensors[name][bits.unpack(packed[name], shapes[name])] = kept
    state = _state(model)
    if state.keys() != tensors.keys():
        odd = sorted(state.keys() ^ tensors.keys())
        raise LamplighterError(
            f"{path} is the state of another network: {', '.join(odd[:3])}", "delete the run's folder"
        )
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(tensors[name])
    return masks


def _state(model: nn.Module) -> Named:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
