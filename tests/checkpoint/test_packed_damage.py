"""Damaged packed files: an error that names file and tensor, nothing written, no traceback of anything else."""

import json
import random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import lamplighter as ll
from lamplighter.checkpoint.packed_codec import CHUNK
from packed_samples import contents, sparse, write_folder

KEY = "lamplighter-packed"


@pytest.fixture
def packed(tmp_path):
    """The tensors of a packed file and what its metadata say."""
    ll.pack({"w": sparse(torch.bfloat16, 61, 67), "b": torch.ones(3)}, tmp_path / "p.safetensors")
    with safe_open(tmp_path / "p.safetensors", "pt") as file:
        about = json.loads(file.metadata()[KEY])
    return load_file(tmp_path / "p.safetensors"), about


def refusal(tmp_path, tensors, about):
    """What unpacking such a file is answered with; loading it into a model, too."""
    path = tmp_path / "damaged.safetensors"
    save_file(tensors, path, metadata={KEY: about if isinstance(about, str) else json.dumps(about)})
    said = set()
    for read in (lambda: ll.unpack(path, tmp_path / "out.safetensors"), lambda: ll.load_packed(Bare(), path)):
        with pytest.raises(ll.LamplighterError) as error:
            read()
        said.add(error.value.message)
    assert not (tmp_path / "out.safetensors").exists()
    (message,) = said
    assert "damaged.safetensors" in message
    return message


def listing(*tensors):
    """What the metadata say of some tensors."""
    return {"version": 1, "tensors": list(tensors)}


class Bare(torch.nn.Module):
    """A model of just these tensors."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(61, 67, dtype=torch.bfloat16))
        self.b = torch.nn.Parameter(torch.zeros(3))


def test_what_the_samples_are_made_of_is_sound(tmp_path, packed):
    tensors, about = packed
    save_file(tensors, tmp_path / "q.safetensors", metadata={KEY: json.dumps(about)})
    ll.unpack(tmp_path / "q.safetensors", tmp_path / "out.safetensors")
    ll.load_packed(Bare(), tmp_path / "q.safetensors")


@pytest.mark.parametrize(
    "about",
    ["", "{", "3", "[]", "null", "{}", '"x"', '{"version": 1}', '{"version": "1", "tensors": []}', "[" * 100_000,
     '{"version": true, "tensors": []}', '{"version": 1, "tensors": {}}', '{"version": 1, "tensors": ["w"]}',
     '{"version": 1, "tensors": [["w"]]}', '{"version": 1, "tensors": [[1, null]]}'],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_metadata_that_cannot_be_read_are_refused(tmp_path, packed, about):
    assert "cannot be read" in refusal(tmp_path, packed[0], about)


def test_another_version_is_refused(tmp_path, packed):
    assert "version 2, expected 1" in refusal(tmp_path, packed[0], {"version": 2})


@pytest.mark.parametrize(
    "shape", [[61, 68], [8], [], [61, 67, 0], [-61, -67], [61, "67"], [61.0, 67], 4087, [True], "61"]
)
def test_shapes_that_do_not_fit_are_refused(tmp_path, packed, shape):
    assert "'w'" in refusal(tmp_path, packed[0], listing(["b", None], ["w", shape]))


def test_lost_and_doubled_parts_are_refused(tmp_path, packed):
    tensors, about = packed
    without = {name: tensor for name, tensor in tensors.items() if name != "w:mask"}
    assert "'w:mask' is missing" in refusal(tmp_path, without, about)
    without = {name: tensor for name, tensor in tensors.items() if name != "w:values"}
    assert "'w:values' is missing" in refusal(tmp_path, without, about)
    assert "there twice" in refusal(tmp_path, tensors | {"w": torch.ones(3)}, about)


W, B = ["w", [61, 67]], ["b", None]


@pytest.mark.parametrize(
    "listed",
    [[], [W], [W, B, B], [W, W, B], [W, B, ["c", None]], [W, ["c", None]], [W, ["b", [3]]], [W, B, ["w", None]],
     [W, B, ["w:mask", None]], [["w:mask", None], W, B]],
)  # fmt: skip
def test_a_list_of_other_tensors_is_refused(tmp_path, packed, listed):
    assert "at tensor '" in refusal(tmp_path, packed[0], listing(*listed))


def test_masks_and_values_of_other_kinds_are_refused(tmp_path, packed):
    tensors, about = packed
    for mask in (tensors["w:mask"].view(torch.int8), tensors["w:mask"][1:], tensors["w:mask"].view(1, -1)):
        assert "bitmask" in refusal(tmp_path, tensors | {"w:mask": mask.clone()}, about)
    assert "one dimension" in refusal(tmp_path, tensors | {"w:values": tensors["w:values"].view(1, -1)}, about)


def test_counts_that_do_not_fit_are_refused(tmp_path, packed):
    tensors, about = packed
    for values in (tensors["w:values"][1:], torch.cat([tensors["w:values"], tensors["w:values"][:1]])):
        assert "bits set, but there are" in refusal(tmp_path, tensors | {"w:values": values.clone()}, about)
    flipped = tensors["w:mask"].clone()
    flipped[7] ^= 4
    assert "'w'" in refusal(tmp_path, tensors | {"w:mask": flipped}, about)


def test_unused_bits_that_are_set_are_refused(tmp_path, packed):
    tensors, about = packed
    for bit in range(61 * 67 % 8, 8):
        odd = tensors["w:mask"].clone()
        odd[-1] |= 1 << bit
        assert "behind its last entry" in refusal(tmp_path, tensors | {"w:mask": odd}, about)


def test_a_tensor_cannot_be_called_metadata(tmp_path, packed):
    tensors = {"__metadata__:mask": packed[0]["w:mask"], "__metadata__:values": packed[0]["w:values"]}
    assert "no tensor can have this name" in refusal(tmp_path, tensors, listing(["__metadata__", [61, 67]]))


def test_damage_in_a_later_chunk_is_found_before_anything_is_written(tmp_path):
    ll.pack({"w": sparse(torch.int8, 40 * CHUNK, sparsity=0.5)}, tmp_path / "p.safetensors")
    tensors = load_file(tmp_path / "p.safetensors")
    tensors["w:mask"][-100] ^= 1
    with safe_open(tmp_path / "p.safetensors", "pt") as file:
        metadata = file.metadata()
    save_file(tensors, tmp_path / "q.safetensors", metadata=metadata)
    with pytest.raises(ll.LamplighterError, match=r"q.safetensors is damaged at tensor 'w'"):
        ll.unpack(tmp_path / "q.safetensors", tmp_path / "out.safetensors", watch=lambda n: pytest.fail("written"))
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("text", [None, "{", "[]", '{"weight_map": []}', '{"weight_map": {"x": "../x"}}', "\ud800", 3])
def test_an_index_that_is_not_the_originals_is_refused(tmp_path, text):
    write_folder(tmp_path / "a", {"x": sparse(torch.float32, 64, 64)}, {"y": torch.ones(3)})
    ll.pack(tmp_path / "a", tmp_path / "p")
    path = tmp_path / "p" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["metadata"][KEY] = text
    path.write_text(json.dumps(index))
    with pytest.raises(ll.LamplighterError, match="does not hold the original's index"):
        ll.unpack(tmp_path / "p", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_folder_of_which_one_file_is_not_packed_is_refused(tmp_path):
    write_folder(tmp_path / "a", {"x": sparse(torch.float32, 64, 64)}, {"y": torch.ones(3)})
    ll.pack(tmp_path / "a", tmp_path / "p")
    second = "model-00002-of-00002.safetensors"
    (tmp_path / "p" / second).write_bytes((tmp_path / "a" / second).read_bytes())
    with pytest.raises(ll.LamplighterError, match=r"00002.safetensors is not a packed file"):
        ll.unpack(tmp_path / "p", tmp_path / "b")


def test_a_tensor_in_two_packed_files_is_refused(tmp_path):
    (tmp_path / "p").mkdir()
    ll.pack({"x": sparse(torch.float32, 64, 64)}, tmp_path / "p" / "one.safetensors")
    ll.pack({"x": torch.ones(3)}, tmp_path / "p" / "two.safetensors")
    with pytest.raises(ll.LamplighterError, match="'x' is both in"):
        ll.unpack(tmp_path / "p", tmp_path / "b")


def mutated(data, rng):
    """The bytes of a file with some of them changed, lost or doubled; mostly in its header."""
    data = bytearray(data)
    limit = len(data) if rng.random() < 0.3 else min(len(data), 900)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(limit)
        match rng.randrange(5):
            case 0:
                data[place] = rng.randrange(256)
            case 1:
                data[place] ^= 1 << rng.randrange(8)
            case 2:
                data[place] = rng.choice(b'0123456789{}[]",:')
            case 3:
                del data[place : place + rng.choice((1, 1, 2, 8))]
            case 4:
                data[place:place] = data[place : place + rng.choice((1, 2, 8))]
        limit = max(min(limit, len(data)), 1)
        if not data:
            return bytes(data)
    if len(data) >= 8 and rng.random() < 0.5:  # so that more of them get past the header
        end = data.rfind(b"}", 0, 2000) + 1
        while end < len(data) and (data[end : end + 1] == b" "):
            end += 1
        data[:8] = max(end - 8, 0).to_bytes(8, "little")
    return bytes(data)


def fuzz(tmp_path, count, seed):
    """How many mutations of a packed file were refused, and how many read."""
    ll.pack({"w": sparse(torch.bfloat16, 31, 67), "b": torch.ones(3)}, tmp_path / "p.safetensors")
    original, rng, outcomes = (tmp_path / "p.safetensors").read_bytes(), random.Random(seed), {True: 0, False: 0}
    unnamed: list[str] = []
    path, out = tmp_path / "mutated.safetensors", tmp_path / "out.safetensors"
    for _ in range(count):
        path.write_bytes(mutated(original, rng))
        try:
            ll.unpack(path, out, force=True, threads=1)
            ll.Checkpoint(out)
        except ll.LamplighterError as error:
            outcomes[False] += 1
            unnamed += [error.message] * ("mutated.safetensors" not in error.message)
        else:
            outcomes[True] += 1
    assert unnamed == []
    assert sorted(contents(tmp_path)) == ["mutated.safetensors", "out.safetensors", "p.safetensors"]
    return outcomes


def test_mutated_files_are_read_or_refused_by_name(tmp_path):
    outcomes = fuzz(tmp_path, 400, seed=0)
    assert outcomes[False] > 100
    assert outcomes[True] > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_many_mutated_files_are_read_or_refused_by_name(tmp_path, seed):
    assert sum(fuzz(tmp_path, 4000, seed).values()) == 4000
