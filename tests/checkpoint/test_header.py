"""Headers of safetensors files: read as the library reads them, or refused with an error that says what is wrong."""

import json
import random
import resource
import time

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from checkpoint.mutations import assembled, good_file, mutated
from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.header import read_header
from lamplighter.errors import LamplighterError


def by_the_library(path):
    """Dtype and shape of each tensor, and the metadata; None if the library refuses the file."""
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in list(file.keys())}
            return {
                name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()
            }, file.metadata() or {}
    except (SafetensorError, OSError, UnicodeDecodeError):
        return None


def by_us(path):
    error = None
    try:
        header = read_header(path)
    except LamplighterError as refused:
        error = refused
    if error is not None:
        assert str(path) in error.message
        assert error.hint
        assert len(error.message) < 1000
        return None
    return {name: (entry.dtype, entry.shape) for name, entry in header.entries.items()}, header.metadata


def tensor(dtype="U8", shape=(2,), offsets=(0, 2)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def written(path, header, data=b"\0\0", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(assembled(text, data, length))
    return path


def test_what_the_library_wrote_is_read_with_the_same_offsets(tmp_path):
    tensors = {
        "b": torch.randn(3, 4),
        "a": torch.randn(2).bfloat16(),
        "c": torch.tensor(True),
        "empty": torch.zeros(0, 5),
    }
    path = tmp_path / "x.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    header = read_header(path)
    assert header.metadata == {"format": "pt"}
    content = path.read_bytes()
    for name, value in tensors.items():
        entry = header.entries[name]
        assert content[entry.begin : entry.end] == value.reshape(-1).view(torch.uint8).numpy().tobytes()
    begins = [entry.begin for entry in header.entries.values()]
    assert begins == sorted(begins)


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        ({"a": tensor(offsets=(0, 3))}, b"\0\0\0", "tensor 'a' takes 3 bytes, but its shape and dtype take 2"),
        ({"a": tensor(offsets=(1, 3))}, b"\0\0\0", "tensor 'a' leaves a hole before it"),
        ({"a": tensor(), "b": tensor(offsets=(1, 3))}, b"\0\0\0", "tensor 'b' overlaps the one before it"),
        ({"a": tensor(offsets=(2, 0))}, b"\0\0", "tensor 'a' ends at 0, before it begins at 2"),
        ({"a": tensor(shape=(2000,), offsets=(0, 2000))}, b"\0\0", "tensor 'a' ends 1,998 bytes behind the end"),
        ({"a": tensor()}, b"\0\0\0", "1 bytes at its end belong to no tensor"),
        ({"a": tensor("U128")}, b"\0\0", "tensor 'a' has the unknown dtype 'U128'"),
        ({"a": tensor(shape=(2**32, 2**32))}, b"\0\0", "tensor 'a' would have more entries than can be counted"),
        ({"a": tensor(shape=(2**63, 0), offsets=(0, 0))}, b"", "tensor 'a''s shape holds a number of"),
        ({"a": tensor("F4", (3,))}, b"\0\0", "tensor 'a' ends within a byte"),
        ({"a": {**tensor(), "more": 1}}, b"\0\0", "tensor 'a' has the fields"),
        ({"a": [1]}, b"\0\0", "tensor 'a' is described by no JSON object"),
        ({"__metadata__": {"a": 1}}, b"", "the metadata holds a int"),
        (b'{"a": 1, "a": 2}', b"", "the header names 'a' twice"),
        (
            b'{"a": {"dtype": "U8", "dtype": "I8", "shape": [2], "data_offsets": [0, 2]}}',
            b"\0\0",
            "names 'dtype' twice",
        ),
        (b'{"\\ud800": 1}', b"", "which is no text"),
        (b"\xff\xfe", b"", "its header is no JSON"),
        (b"[]", b"", "its header is no JSON object"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", "nested too deeply"),
        (b'{"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 2]}}', b"\0\0", "no whole number"),
        (b'{"a": {"dtype": "U8", "shape": [2.0], "data_offsets": [0, 2]}}', b"\0\0", "no whole number"),
        (
            b'{"a": {"dtype": "U8", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 2]}}',
            b"\0\0",
            "no whole number",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_file_and_the_tensor(tmp_path, header, data, said):
    path = written(tmp_path / "x.safetensors", header, data)
    with pytest.raises(LamplighterError) as caught:
        read_header(path)
    assert said in caught.value.message
    assert str(path) in caught.value.message


@pytest.mark.parametrize("length", [4, 100, 10**8, 10**8 + 1, 2**63, 2**64 - 1])
def test_a_header_that_is_said_to_be_too_long_is_refused_at_once(tmp_path, length):
    path = written(tmp_path / "x.safetensors", b"{", length=length)
    begun = time.perf_counter()
    with pytest.raises(LamplighterError, match="its header is said to take"):
        read_header(path)
    assert time.perf_counter() - begun < 1


@pytest.mark.parametrize("size", range(9))
def test_files_shorter_than_any_header_are_refused(tmp_path, size):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"\0" * size)
    with pytest.raises(LamplighterError, match=r"at least 8|no JSON"):
        read_header(path)


def fuzz(path, count, seed):
    """Read so many damaged files as the library does or not at all; how many of them were read."""
    chance, accepted, before = random.Random(seed), 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        content = good_file(chance) if number % 10 == 0 else mutated(chance)
        path.write_bytes(content)
        begun = time.perf_counter()
        ours, theirs = by_us(path), by_the_library(path)
        assert time.perf_counter() - begun < 5, content
        if ours is not None:
            accepted += 1
            assert ours == theirs, content
            checkpoint = Checkpoint(path)
            for name, entry in checkpoint.entries.items():
                if entry.torch_dtype is not None:
                    assert checkpoint[name].shape == entry.shape
        elif number % 10 == 0:
            assert theirs is None, content
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "kilobytes"
    return accepted


def test_ten_thousand_damaged_files_are_read_as_the_library_reads_them_or_refused(tmp_path):
    assert fuzz(tmp_path / "x.safetensors", 10_000, seed=0) > 1000
