"""Packing and unpacking files: every bit comes back, anyone can read what lies between, and it is small."""

import json
import math
import os
import threading

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import lamplighter as ll
from lamplighter.checkpoint import packed_folders, packed_packing, packed_reading
from lamplighter.checkpoint.dtypes import TORCH
from lamplighter.checkpoint.packed_codec import CHUNK
from lamplighter.checkpoint.writing import ShardWriter
from packed_samples import contents, documented_reader, every_dtype, raw, same_bits, sparse, write_folder


def test_every_dtype_comes_back_with_the_same_bytes(tmp_path):
    tensors = every_dtype()
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    done = ll.pack(tmp_path / "a.safetensors", tmp_path / "p.safetensors")
    assert done.tensors == len(tensors)
    assert done.sparse == len(TORCH) + 1  # a weight of each dtype, and the zeros
    ll.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


def test_the_documented_reader_reads_every_dtype(tmp_path):
    tensors = every_dtype(seed=100)
    ll.pack(tensors, tmp_path / "p.safetensors")
    read = documented_reader()(tmp_path / "p.safetensors")
    assert read.keys() == tensors.keys()
    for name, (dtype, shape, content) in read.items():
        assert (TORCH[dtype], tuple(shape), content) == (tensors[name].dtype, tensors[name].shape, raw(tensors[name]))


def test_the_safetensors_library_reads_a_packed_file(tmp_path):
    weight = sparse(torch.bfloat16, 100, 101)
    ll.pack({"a": weight, "b": torch.ones(3)}, tmp_path / "p.safetensors")
    read = load_file(tmp_path / "p.safetensors")
    assert read.keys() == {"a:mask", "a:values", "b"}
    kept = weight.view(torch.int16) != 0
    assert same_bits(read["a:values"], weight[kept])
    assert read["a:mask"].numel() == math.ceil(100 * 101 / 8)
    with safe_open(tmp_path / "p.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"


def test_entries_lie_where_their_width_asks(tmp_path):
    ll.pack(every_dtype(), tmp_path / "p.safetensors")
    data = (tmp_path / "p.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    for name, entry in header.items():
        if name != "__metadata__":
            assert (start + entry["data_offsets"][0]) % TORCH[entry["dtype"]].itemsize == 0, name


def test_metadata_come_back(tmp_path):
    metadata = {"format": "pt", "author": 'a "quoted" name', "ключ": "значение"}
    save_file({"w": sparse(torch.float32, 40, 40)}, tmp_path / "a.safetensors", metadata=metadata)
    ll.pack(tmp_path / "a.safetensors", tmp_path / "p.safetensors")
    ll.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors")
    with safe_open(tmp_path / "b.safetensors", "pt") as file:
        assert file.metadata() == metadata
    ll.pack(tmp_path / "b.safetensors", tmp_path / "p2.safetensors")
    ll.unpack(tmp_path / "p2.safetensors", tmp_path / "c.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "c.safetensors").read_bytes()


def test_a_file_without_metadata_comes_back_without(tmp_path):
    save_file({"w": sparse(torch.float32, 40, 40)}, tmp_path / "a.safetensors")
    ll.pack(tmp_path / "a.safetensors", tmp_path / "p.safetensors")
    ll.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 77])
def test_tensors_of_several_chunks_come_back(tmp_path, size):
    tensors = {"w": sparse(torch.bfloat16, size), "f": sparse(torch.int8, size, sparsity=0.0)}
    ll.pack(tensors, tmp_path / "p.safetensors")
    ll.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors")
    read = load_file(tmp_path / "b.safetensors")
    assert all(same_bits(read[name], tensors[name]) for name in tensors)


def test_the_bytes_do_not_depend_on_the_number_of_threads(tmp_path):
    tensors = {f"w{i}": sparse(torch.bfloat16, 5 * CHUNK // 2, sparsity=0.2 + 0.2 * i) for i in range(4)}
    packed, unpacked = set(), set()
    for threads in (1, 2, 5):
        ll.pack(tensors, tmp_path / "p.safetensors", force=True, threads=threads)
        ll.unpack(tmp_path / "p.safetensors", tmp_path / "u.safetensors", force=True, threads=threads)
        packed.add((tmp_path / "p.safetensors").read_bytes())
        unpacked.add((tmp_path / "u.safetensors").read_bytes())
    assert len(packed) == len(unpacked) == 1


def test_what_would_not_become_smaller_stays_dense(tmp_path):
    size = 4096
    for values in range(3584, 4096, 16):
        weight = torch.zeros(size, dtype=torch.bfloat16)
        weight[:values] = 1
        ll.pack({"w": weight}, tmp_path / "p.safetensors", force=True)
        expected = {"w:mask", "w:values"} if 2 * values + size // 8 + 256 < 2 * size else {"w"}
        assert load_file(tmp_path / "p.safetensors").keys() == expected


@pytest.mark.parametrize("taken", ["w:mask", "w:values"])
def test_a_tensor_whose_packed_names_are_taken_stays_dense(tmp_path, taken):
    tensors = {"w": sparse(torch.float32, 64, 64), taken: sparse(torch.float32, 64, 64, seed=1)}
    assert ll.pack(tensors, tmp_path / "p.safetensors").sparse == 1
    ll.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors")
    read = load_file(tmp_path / "b.safetensors")
    assert all(same_bits(read[name], tensors[name]) for name in tensors)


def test_a_folder_comes_back_file_for_file(tmp_path):
    tensors = every_dtype()
    names = sorted(tensors)
    halves = [{name: tensors[name] for name in part} for part in (names[::2], names[1::2])]
    write_folder(tmp_path / "a", *halves)
    ll.pack(tmp_path / "a", tmp_path / "p")
    ll.unpack(tmp_path / "p", tmp_path / "b")
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_the_index_of_a_packed_folder_names_what_is_in_its_files(tmp_path):
    write_folder(tmp_path / "a", {"x": sparse(torch.float32, 64, 64)}, {"y": torch.ones(3)})
    ll.pack(tmp_path / "a", tmp_path / "p")
    assert contents(tmp_path / "p").keys() == contents(tmp_path / "a").keys()
    index = json.loads((tmp_path / "p" / "model.safetensors.index.json").read_text())
    first, second = (f"model-0000{place}-of-00002.safetensors" for place in (1, 2))
    assert index["weight_map"] == {"x:mask": first, "x:values": first, "y": second}
    assert ll.Checkpoint(tmp_path / "p")["y"].tolist() == [1, 1, 1]


def test_a_folder_of_one_file_without_index_comes_back(tmp_path):
    (tmp_path / "a").mkdir()
    save_file({"x": sparse(torch.float32, 64, 64)}, tmp_path / "a" / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "a" / "config.json").write_text("{}")
    ll.pack(tmp_path / "a", tmp_path / "p")
    ll.unpack(tmp_path / "p", tmp_path / "b")
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_files_of_torch_come_back_as_safetensors(tmp_path):
    tensors = {"x": sparse(torch.bfloat16, 64, 64), "y": torch.ones(3), "z": sparse(torch.float32, 9, 70).t()}
    torch.save(tensors, tmp_path / "a.pt")
    ll.pack(tmp_path / "a.pt", tmp_path / "p.safetensors")
    ll.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors")
    read = load_file(tmp_path / "b.safetensors")
    assert all(same_bits(read[name], tensors[name]) for name in tensors)


def test_a_folder_of_torch_comes_back_with_an_index_of_its_own(tmp_path):
    (tmp_path / "a").mkdir()
    places = {}
    for place, name in enumerate("xy", start=1):
        file = f"pytorch_model-0000{place}-of-00002.bin"
        torch.save({name: sparse(torch.float32, 64, 64, seed=place)}, tmp_path / "a" / file)
        places[name] = file
    (tmp_path / "a" / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    ll.pack(tmp_path / "a", tmp_path / "p")
    ll.unpack(tmp_path / "p", tmp_path / "b")
    back = ll.Checkpoint(tmp_path / "b")
    assert same_bits(back["y"], sparse(torch.float32, 64, 64, seed=2))
    index = json.loads((tmp_path / "b" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: f"model-0000{i}-of-00002.safetensors" for i, name in enumerate("xy", start=1)}
    assert index["metadata"]["total_size"] == 2 * 4 * 64 * 64


@pytest.mark.parametrize("sparsity", [0.5, 0.9, 0.99])
def test_packed_weights_take_one_bit_each_and_sixteen_for_each_kept(tmp_path, sparsity):
    tensors = {f"layers.{i}.weight": torch.randn(512, 512).bfloat16() for i in range(8)}
    total = sum(weight.numel() for weight in tensors.values())
    ll.prune(tensors, sparsity=sparsity, method="uniform")
    ll.pack(tensors, tmp_path / "p.safetensors")
    bits = 8 * (tmp_path / "p.safetensors").stat().st_size / total
    assert bits == pytest.approx(16 * (1 - sparsity) + 1, rel=0.02)


def test_what_is_packed_is_not_packed_again_and_what_is_not_is_not_unpacked(tmp_path):
    save_file({"w": sparse(torch.float32, 40, 40)}, tmp_path / "a.safetensors")
    ll.pack(tmp_path / "a.safetensors", tmp_path / "p.safetensors")
    with pytest.raises(ll.LamplighterError, match=r"p.safetensors is packed already"):
        ll.pack(tmp_path / "p.safetensors", tmp_path / "q.safetensors")
    with pytest.raises(ll.LamplighterError, match=r"a.safetensors is not a packed file"):
        ll.unpack(tmp_path / "a.safetensors", tmp_path / "q.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "p.safetensors"]


def test_the_place_is_checked_before_any_work(tmp_path):
    save_file({"w": sparse(torch.float32, 40, 40)}, tmp_path / "a.safetensors")
    told = []
    for name, said in (
        ("a.safetensors", "what is read"),
        ("p", "end in .safetensors"),
        ("no/p.safetensors", "no folder"),
    ):
        with pytest.raises(ll.LamplighterError) as error:
            ll.pack(tmp_path / "a.safetensors", tmp_path / name, force=True, watch=told.append)
        assert said in str(error.value)
    (tmp_path / "p.safetensors").write_text("here")
    with pytest.raises(ll.LamplighterError, match="exists"):
        ll.pack(tmp_path / "a.safetensors", tmp_path / "p.safetensors", watch=told.append)
    (tmp_path / "f").mkdir()
    save_file({"w": torch.ones(3)}, tmp_path / "f" / "model.safetensors")
    for name in ("f", "f/inside", "."):
        with pytest.raises(ll.LamplighterError, match=r"lies in|exists"):
            ll.pack(tmp_path / "f", tmp_path / name, force=True, watch=told.append)
    assert told == []
    assert (tmp_path / "p.safetensors").read_text() == "here"


def test_what_is_read_is_not_written_through_a_hard_link(tmp_path):
    save_file({"w": sparse(torch.float32, 40, 40)}, tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").hardlink_to(tmp_path / "a.safetensors")
    before, told = contents(tmp_path), []
    with pytest.raises(ll.LamplighterError, match="what is read"):
        ll.pack(tmp_path / "a.safetensors", tmp_path / "b.safetensors", force=True, watch=told.append)
    assert (told, contents(tmp_path)) == ([], before)


def test_files_that_would_get_the_same_name_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("a.pt", "pytorch_a.pt"):
        torch.save({name: torch.ones(3)}, tmp_path / "a" / name)
    told = []
    with pytest.raises(ll.LamplighterError, match="would get the same name"):
        ll.pack(tmp_path / "a", tmp_path / "p", watch=told.append)
    assert told == []
    assert not (tmp_path / "p").exists()


def test_other_weights_are_left_out_and_named(tmp_path):
    write_folder(tmp_path / "a", {"x": sparse(torch.float32, 64, 64)}, {"y": torch.ones(3)})
    assert ll.pack(tmp_path / "a", tmp_path / "p").left_out == ()
    for folder in ("a", "p"):
        torch.save({"x": torch.ones(64, 64)}, tmp_path / folder / "pytorch_model.bin")
    assert ll.pack(tmp_path / "a", tmp_path / "q").left_out == ("pytorch_model.bin",)
    assert ll.unpack(tmp_path / "p", tmp_path / "b").left_out == ("pytorch_model.bin",)
    assert not (tmp_path / "q" / "pytorch_model.bin").exists()


def test_every_file_of_a_folder_is_on_the_disk_before_it_is_in_its_place(tmp_path, monkeypatch):
    write_folder(tmp_path / "a", {"x": sparse(torch.float32, 64, 64)}, {"y": torch.ones(3)})
    fsync, flushed = os.fsync, set()

    def trace(descriptor):
        assert not place.exists() or os.path.samestat(os.fstat(descriptor), tmp_path.stat())
        flushed.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", trace)
    for work, source, place in ((ll.pack, tmp_path / "a", tmp_path / "p"), (ll.unpack, tmp_path / "p", tmp_path / "b")):
        flushed.clear()
        work(source, place)
        assert [path.name for path in place.rglob("*") if path.stat().st_ino not in flushed] == []


def test_few_of_many_files_are_open_at_once(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    for i in range(30):
        save_file({f"x{i}": torch.ones(3)}, tmp_path / "a" / f"{i:02}.safetensors")
    open_now, peak, filled = set(), [0], threading.Event()

    class Watched(ShardWriter):
        def __init__(self, path, entries, metadata):
            super().__init__(path, entries, metadata)
            open_now.add(self)
            peak[0] = max(peak[0], len(open_now))
            if len(open_now) > 9:
                filled.set()

        def close(self):
            filled.wait(0.05)  # a slow disk
            super().close()
            open_now.discard(self)

    monkeypatch.setattr(packed_folders, "ShardWriter", Watched)
    ll.pack(tmp_path / "a", tmp_path / "p")
    assert 2 < peak[0] <= packed_folders.WAITING + 1 == 9
    assert len(contents(tmp_path / "p")) == 30
    assert not open_now


def test_chunks_are_thought_of_one_by_one(tmp_path, monkeypatch):
    made, ahead = [0], []

    def counted(*about):
        made[0] += 1
        return piece(*about)

    piece = packed_reading.Piece
    monkeypatch.setattr(packed_packing, "Piece", counted)
    monkeypatch.setattr(packed_reading, "Piece", counted)

    def watch(nbytes):
        ahead.append(made[0])

    ll.pack({f"w{i}": torch.ones(3) for i in range(20)}, tmp_path / "p.safetensors", threads=1, watch=watch)
    ll.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors", threads=1, watch=watch)
    assert ahead == list(range(1, 61))


def test_bytes_are_watched(tmp_path):
    save_file({"w": sparse(torch.float32, 40, 40)}, tmp_path / "a.safetensors")
    packing, unpacking = [], []
    ll.pack(tmp_path / "a.safetensors", tmp_path / "p.safetensors", watch=packing.append)
    ll.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors", watch=unpacking.append)
    assert (sum(packing), sum(unpacking)) == (2 * 6400, 6400)


def test_a_tensor_that_changes_while_it_is_packed_is_an_error(tmp_path, monkeypatch):
    weight = sparse(torch.float32, 40, 40)

    def meddle(count):
        weight[5] = 1

    with pytest.raises(ll.LamplighterError, match="'w' was changed while it was packed"):
        ll.pack({"w": weight}, tmp_path / "p.safetensors", watch=meddle)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "cannot pack a int"),
        ({"w": 3}, "'w' is a int"),
        ({3: torch.ones(3)}, "3 is a Tensor"),
        ({"w": torch.ones(3, device="meta")}, "on meta"),
        ({"w": torch.ones(3, 3).to_sparse()}, "layout torch.sparse_coo"),
        ({"w": torch.ones(3, dtype=torch.complex128)}, "of torch.complex128"),
        ({"__metadata__": torch.ones(3)}, "'__metadata__'"),
        ({"\ud800": torch.ones(3)}, "can have the name"),
    ],
    ids=str,
)
def test_what_cannot_be_packed_is_refused(tmp_path, given, said):
    with pytest.raises(ll.LamplighterError) as error:
        ll.pack(given, tmp_path / "p.safetensors")
    assert said in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_entries_that_share_bytes_stay_as_they_are(tmp_path):
    header = json.dumps({"f": {"dtype": "F4", "shape": [64, 64], "data_offsets": [0, 2048]}}).encode()
    header += b" " * (-len(header) % 8)
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(2048))
    assert ll.pack(tmp_path / "a.safetensors", tmp_path / "p.safetensors").sparse == 0
    ll.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes()[-2048:] == bytes(2048)
    assert ll.verify(tmp_path / "p.safetensors", tmp_path / "a.safetensors").ok
