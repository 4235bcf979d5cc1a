"""The file that prepared data lives in: an ordinary safetensors file, hashed, and there only when whole."""

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from lamplighter.data import store
from lamplighter.errors import LamplighterError

LAYOUT = {"pixels": ("uint8", (3, 5)), "labels": ("int64", (3,)), "nothing": ("float32", (0,))}


def write(path):
    with store.create(path, LAYOUT) as (arrays, metadata):
        arrays["pixels"][:] = np.arange(15).reshape(3, 5)
        arrays["labels"][:] = [7, 8, 9]
        metadata["name"] = "example"


def test_any_safetensors_reader_reads_it(tmp_path):
    path = tmp_path / "new" / "a.safetensors"
    write(path)
    arrays = load_file(path)
    assert arrays["pixels"].tolist() == np.arange(15).reshape(3, 5).tolist()
    assert arrays["labels"].tolist() == [7, 8, 9]
    assert arrays["nothing"].shape == (0,)
    with safe_open(path, "numpy") as file:
        assert file.metadata()["name"] == "example"
        assert len(file.metadata()["sha256"]) == 64


def test_the_same_contents_make_the_same_bytes(tmp_path):
    write(tmp_path / "a")
    write(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_nothing_is_left_when_filling_fails(tmp_path):
    with pytest.raises(RuntimeError), store.create(tmp_path / "a", LAYOUT):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_there_stays_when_filling_fails(tmp_path):
    write(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    with pytest.raises(RuntimeError), store.create(tmp_path / "a", LAYOUT):
        raise RuntimeError
    assert (tmp_path / "a").read_bytes() == before


def test_one_changed_byte_is_noticed(tmp_path):
    path = tmp_path / "a"
    write(path)
    store.verify(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(LamplighterError, match="hash differs"):
        store.verify(path)


def test_a_truncated_file_is_noticed(tmp_path):
    path = tmp_path / "a"
    write(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(LamplighterError, match="not a whole safetensors file"):
        store.verify(path)
