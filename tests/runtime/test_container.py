"""Files: what is written is what is read, without torch; what is damaged is an error."""

import json
import os
import random
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from torch import nn

from lamplighter import runtime
from lamplighter.errors import LamplighterError
from lamplighter.models.resnet import resnet20
from lamplighter.models.vgg import vgg16
from lamplighter.runtime import build
from lamplighter.runtime.compiled import Compiled
from lamplighter.runtime.container import FIXED, MAGIC, decode, encode, read, write
from lamplighter.runtime.plan import Settings
from lamplighter.runtime.tracing import exported, trace
from runtime_samples import ready

needs_compiler = pytest.mark.skipif(build.available() is not None, reason="no C compiler")
IMAGES = torch.randn(2, 3, 8, 8)


@pytest.fixture(scope="module")
def network():
    model = nn.Sequential(
        *(nn.Conv2d(3, 5, 3, 2, 1), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 4))
    )
    return trace(exported(ready(model, 0.3), IMAGES))


def resealed(data: bytes) -> bytes:
    """The same with a checksum that fits."""
    return MAGIC + zlib.crc32(data[len(MAGIC) + 4 :]).to_bytes(4, "little") + data[len(MAGIC) + 4 :]


def with_header(data: bytes, change) -> bytes:
    """The same with another header."""
    length = int.from_bytes(data[FIXED - 8 : FIXED], "little")
    header = json.loads(data[FIXED : FIXED + length])
    change(header)
    text = json.dumps(header).encode()
    return resealed(data[: FIXED - 8] + len(text).to_bytes(8, "little") + text + data[FIXED + length :])


def test_what_is_written_is_what_is_read(network, tmp_path):
    write(tmp_path / "a.lamp", network)
    again, tuned = read(tmp_path / "a.lamp")
    assert tuned is None
    assert encode(again) == encode(network)
    for one, other in zip(network.nodes, again.nodes, strict=True):
        assert type(one) is type(other)
        if hasattr(one, "weight"):
            assert np.array_equal(one.weight.indices, other.weight.indices)
            assert np.array_equal(one.weight.values, other.weight.values)
            assert np.array_equal(one.bias, other.bias)
    assert [path.name for path in tmp_path.iterdir()] == ["a.lamp"]


@pytest.mark.parametrize("gap", [0, 1, 254, 255, 256, 65534, 65535, 65536, 10**6])
def test_every_distance_between_weights_is_kept(gap):
    weight = torch.zeros(2, 1_000_003)
    weight[0, 0], weight[0, 1 + gap], weight[1, 5] = 1, 2, 3
    layer = nn.Linear(1_000_003, 2)
    layer.weight.data = weight
    network = trace(exported(layer, torch.zeros(1, 1_000_003)))
    again, _ = decode(encode(network), "a.lamp")
    assert np.array_equal(again.nodes[0].weight.indices, network.nodes[0].weight.indices)


def test_every_truncation_is_an_error(network):
    data = encode(network)
    for end in range(len(data)):
        with pytest.raises(LamplighterError, match="cannot be read"):
            decode(data[:end], "a.lamp")
        with pytest.raises(LamplighterError, match="cannot be read"):
            decode(resealed(data[:end].ljust(FIXED, b"\0")), "a.lamp")


@needs_compiler
@pytest.mark.parametrize("mutations", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_files_are_errors_and_never_crash(network, mutations):
    """With the right checksum, so that everything behind it is tried: an error, or a network that runs."""
    data, rng = encode(network), random.Random(0)
    length = int.from_bytes(data[FIXED - 8 : FIXED], "little")
    refused = 0
    for _ in range(mutations):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            end = FIXED + length if rng.random() < 0.7 else len(data)
            place = rng.randrange(len(MAGIC) + 4, end)
            changed[place] = rng.choice(b'0123456789[]{},:"-.e') if rng.random() < 0.7 else rng.randrange(256)
        if rng.random() < 0.1:
            del changed[rng.randrange(len(changed)) :]
        sealed = resealed(bytes(changed).ljust(FIXED, b"\0"))
        try:
            damaged, tuned = decode(sealed, "a.lamp")
            compiled = Compiled(damaged, Settings(seconds=0), tuned)
            compiled(np.zeros(compiled.input_shape, np.float32))
        except LamplighterError:
            refused += 1
    assert refused > mutations // 2


def test_a_wrong_checksum_is_an_error(network):
    data = bytearray(encode(network))
    data[-1] ^= 1
    with pytest.raises(LamplighterError, match="checksum"):
        decode(bytes(data), "a.lamp")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("pad", [100, 100]), ("pad", [-1, 1]), ("stride", [0, 1]), ("groups", 0), ("groups", 2), ("x", 3), ("y", 0)),
        *(("y", 10**9), ("add", 0), ("add", -1), ("relu", 1), ("shape", [5, 3, 3]), ("shape", [5, 3, 3, 2**70])),
        *(("shape", [5, 3, 7, 3]), ("weights", -1), ("weights", 10**12), ("gap", 3), ("wide", 1), ("dilation", [9, 9])),
        *(("kind", "attention"), ("stride", [1.5, 1]), ("x", True)),
    ],
)
def test_a_header_that_makes_no_sense_is_an_error(network, key, value):
    def change(header):
        header["nodes"][0][key] = value

    with pytest.raises(LamplighterError, match="cannot be read"):
        decode(with_header(encode(network), change), "a.lamp")


def test_sizes_without_bound_are_refused(network):
    def change(header):
        header["values"] = [[2**20, 2**20, 2**20] for _ in header["values"]]

    with pytest.raises(LamplighterError, match="cannot be read"):
        decode(with_header(encode(network), change), "a.lamp")


@needs_compiler
def test_a_saved_model_runs_where_torch_is_not_imported(tmp_path):
    model, images = ready(resnet20(width=4), 0.1), torch.randn(1, 3, 32, 32)
    fast = runtime.compile(model, images, tune=0.001, measure=False)
    fast.save(tmp_path / "model.lamp")
    np.save(tmp_path / "images.npy", images.numpy())
    code = """
import sys
import numpy as np
from lamplighter import runtime
found = runtime.load(sys.argv[1] + "/model.lamp")(np.load(sys.argv[1] + "/images.npy"))
np.save(sys.argv[1] + "/found.npy", found)
print(sorted(set(name.partition(".")[0] for name in sys.modules) & {"torch", "safetensors", "rich", "typer"}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.stdout.strip() == "[]", done.stderr
    assert np.array_equal(np.load(tmp_path / "found.npy"), fast(images).numpy())


@needs_compiler
def test_what_was_measured_is_kept_in_the_file(tmp_path):
    fast = runtime.compile(ready(vgg16(width=8), 0.1), torch.randn(1, 3, 32, 32), tune=0.001, measure=False)
    fast.save(tmp_path / "model.lamp")
    loaded = runtime.load(tmp_path / "model.lamp")
    assert loaded.plan.choices == fast.compiled.plan.choices
    assert runtime.load(tmp_path / "model.lamp", threads=2).plan.settings.threads == 2


def test_a_network_of_a_hundredth_of_its_weights_is_small():
    """Six bytes for each weight, at most, and what the header takes."""
    network = trace(exported(ready(vgg16(width=32), 0.0115), torch.randn(1, 3, 32, 32)))
    weights = sum(node.weight.indices.size for node in network.nodes if hasattr(node, "weight"))
    assert len(encode(network)) < 6 * weights + 20_000
