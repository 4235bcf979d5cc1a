"""Sparse tensors of every dtype, checkpoints made of them, and the reader that the document shows."""

import json

import numpy as np
import torch
from safetensors.torch import save_file

from documents import ROOT, blocks
from lamplighter.checkpoint.dtypes import TORCH, width_in_bytes
from lamplighter.checkpoint.packed_codec import WORDS

LARGE = 1 << 18  # one chunk


def sparse(dtype, *shape, sparsity=0.9, seed=0):
    """Random bits of a dtype, negative zeros and NaNs of all kinds among them, and zeros."""
    size = int(np.prod(shape))
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 2 if dtype == torch.bool else 256, (size, dtype.itemsize), np.uint8)
    noise[rng.random(size) < sparsity] = 0
    words = torch.from_numpy(noise).view(-1).view(WORDS[dtype.itemsize])
    if dtype.is_floating_point and size > 3:
        words[1], words[3] = -1, torch.tensor(-0.0, dtype=dtype).view(1).view(words.dtype)[0]
    return words.view(dtype).view(shape)


def every_dtype(seed=0):
    """A sparse and a dense tensor of each dtype, empty ones and single numbers."""
    kinds = sorted(TORCH, key=lambda code: (-width_in_bytes(code), code))
    found = {}
    for place, code in enumerate(kinds):
        found[f"{code}.weight"] = sparse(TORCH[code], 33, 29, seed=seed + place)
        found[f"{code}.full"] = sparse(TORCH[code], 7, 5, sparsity=0.0, seed=seed + place)
    return found | {"none": torch.zeros(0, 4), "one": torch.tensor(3.0), "zeros": torch.zeros(50, 50)}


def same_bits(one, other):
    """Whether two tensors are of one dtype and shape and have the same bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return raw(one) == raw(other)


def raw(tensor):
    """The bytes of a tensor."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def write_folder(folder, *shards, metadata=None):
    """A folder as of Hugging Face: shards, an index, a config and a file in a folder."""
    folder.mkdir()
    places = {}
    for place, tensors in enumerate(shards, start=1):
        file = f"model-{place:05}-of-{len(shards):05}.safetensors"
        save_file(tensors, folder / file, metadata=metadata or {"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    index = {"metadata": {"total_size": 5}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=3))
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "words.txt").write_bytes(b"\0a\n")


def contents(folder):
    """Every file of a folder with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def documented_reader():
    """The function `read` of docs/packed-format.md."""
    (block,) = [b for b in blocks(ROOT / "docs" / "packed-format.md") if "def read(path)" in b.text]
    names = {}
    exec(block.text[: block.text.index("\ntensors = read")], names)
    return names["read"]
