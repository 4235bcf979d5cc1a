"""Checkpoints for tests: weights of every kind, in one file or many."""

import json

import torch
from safetensors.torch import save_file

from lamplighter.checkpoint.torch_files import in_order

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def weights(seed=0, first=0):
    """A small model with every dtype, forced ties, copies of a layer, experts, and what does not count."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    found = {"model.embed_tokens.weight": normal(20, 8).bfloat16(), "model.norm.weight": torch.ones(8)}
    for number in range(5):
        weight = 0.1 * (number + 1) * normal(12 + number, 8)
        if number % 2:
            weight = (weight * 8).round() / 8
        found[f"model.layers.{number}.mlp.weight"] = weight.to(DTYPES[(number + first) % 4])
        found[f"model.layers.{number}.mlp.bias"] = normal(12 + number)
    found["model.layers.10.mlp.weight"] = found["model.layers.3.mlp.weight"].clone()
    found["model.layers.1.conv.weight"] = normal(6, 4, 3, 3).to(DTYPES[first])
    found["model.layers.2.mlp.experts.down_proj"] = (normal(3, 8, 4) * 4).round().to(DTYPES[(first + 1) % 4])
    found["model.layers.0.zero.weight"] = torch.zeros(4, 8).to(DTYPES[first])
    found["steps"] = torch.tensor(7)
    return found


def counted(tensors):
    """The names of those of `weights` that count."""
    return [name for name in tensors if ".layers." in name and not name.endswith("bias")]


def save_sharded(folder, tensors, shards):
    """A folder with an index, the tensors dealt out to so many shards."""
    folder.mkdir(parents=True, exist_ok=True)
    places, total = {}, 0
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[number::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
        total += sum(tensor.nbytes for tensor in part.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def same_bits(one, other):
    """Whether two tensors are the same to the last bit."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return in_order(one).equal(in_order(other))


def contents(folder):
    """Every file below a folder, or the one file, with its bytes."""
    if folder.is_file():
        return {folder.name: folder.read_bytes()}
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
