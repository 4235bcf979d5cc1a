"""Which files make up a checkpoint, and that no name or link leads out of its folder."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

import lamplighter as ll
from checkpoint.made import contents, save_sharded, weights
from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.comparison import compare
from lamplighter.checkpoint.inspection import inspect_checkpoint
from lamplighter.errors import LamplighterError


@pytest.fixture
def folder(tmp_path):
    """A sharded checkpoint with the files that come along with one."""
    made = save_sharded(tmp_path / "in", weights(), 3)
    (made / "config.json").write_text('{"model_type": "llama"}')
    (made / "tokenizer").mkdir()
    (made / "tokenizer" / "vocab.txt").write_text("a b c")
    return made


def test_other_files_are_carried_over_unchanged(folder, tmp_path):
    report = ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.5)
    before, after = contents(folder), contents(tmp_path / "out")
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] != after[name]] == [n for n in before if n.endswith(".safetensors")]
    assert report.bytes_written == sum(map(len, after.values()))


def test_the_same_weights_in_other_files_are_left_out(folder, tmp_path):
    for name in ("pytorch_model.bin", "consolidated.safetensors", "model.gguf"):
        (folder / name).write_bytes(b"unpruned")
    (folder / ".git").mkdir()
    report = ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.5)
    assert sorted(report.left_out) == [".git", "consolidated.safetensors", "model.gguf", "pytorch_model.bin"]
    assert not set(report.left_out) & set(contents(tmp_path / "out"))


def test_metadata_are_kept_and_say_how_it_was_made(folder, tmp_path):
    ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.5, method="erk", exclude="*.0.*")
    for shard in Checkpoint(tmp_path / "out").shards:
        assert shard.metadata["format"] == "pt"
        record = json.loads(shard.metadata["lamplighter"])
        assert (record["method"], record["sparsity"], record["exclude"]) == ("erk", 0.5, ["*.0.*"])
        assert record["version"] == ll.__version__


def test_files_of_torch_with_an_index_become_safetensors_with_one(tmp_path):
    tensors = weights()
    (tmp_path / "in").mkdir()
    places = {}
    for number in range(2):
        file = f"pytorch_model-0000{number + 1}-of-00002.bin"
        part = {name: tensors[name] for name in list(tensors)[number::2]}
        torch.save(part, tmp_path / "in" / file)
        places |= dict.fromkeys(part, file)
    index = tmp_path / "in" / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    ll.prune_checkpoint(tmp_path / "in", tmp_path / "out", sparsity=0.5)
    assert sorted(contents(tmp_path / "out")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert set(Checkpoint(tmp_path / "out")) == set(tensors)


def with_index(folder, change):
    path = folder / "model.safetensors.index.json"
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))
    return folder


@pytest.mark.parametrize(
    "name", ["../out.safetensors", "/etc/passwd", "a/../../b", "", ".", "a\\b", "./x", "a\0b", "a//b"]
)
def test_names_in_an_index_that_lead_out_of_the_folder_are_refused(folder, tmp_path, name):
    save_file({"x.weight": torch.ones(2, 2)}, tmp_path / "out.safetensors")
    with_index(folder, lambda index: index["weight_map"].update({"x.weight": name}))
    with pytest.raises(LamplighterError, match="which is not inside it"):
        Checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda index: index["weight_map"].update({"a": "absent.safetensors"}), "is not there"),
        (lambda index: index["weight_map"].update({"a": "model-00001-of-00003.safetensors"}), "not where it says: 'a'"),
        (lambda index: index["weight_map"].update({"a": "other.bin"}), r"'other\.bin', expected \.safetensors files"),
        (lambda index: index.update(weight_map=[]), "names no shards"),
        (lambda index: index.update(weight_map={"a": 1}), "names no shards"),
        (lambda index: index.pop("weight_map"), "names no shards"),
    ],
)
def test_an_index_that_says_otherwise_than_the_files_is_refused(folder, change, said):
    with pytest.raises(LamplighterError, match=said):
        Checkpoint(with_index(folder, change))


def test_an_index_that_is_no_json_is_refused(folder):
    for text in ("{", "[]", "[" * 100_000):
        (folder / "model.safetensors.index.json").write_text(text)
        with pytest.raises(LamplighterError, match=r"model\.safetensors\.index\.json (is no JSON|holds a)"):
            Checkpoint(folder)


def test_links_that_lead_out_of_the_folder_are_refused(folder, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "notes.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(LamplighterError, match="a link that leads out of the folder"):
        Checkpoint(folder)
    (folder / "notes.txt").unlink()
    shard = folder / "model-00002-of-00003.safetensors"
    shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(LamplighterError, match="a link that leads out of the folder"):
        Checkpoint(folder)
    shard.unlink()
    shard.symlink_to("nothing")
    with pytest.raises(LamplighterError, match="a link to nothing"):
        Checkpoint(folder)


def test_folders_that_are_links_are_not_looked_into(folder, tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret.txt").write_text("secret")
    (folder / "more").symlink_to(tmp_path / "private")
    with pytest.raises(LamplighterError, match="a link that leads out of the folder"):
        Checkpoint(folder)
    (folder / "more").unlink()
    (folder / "loop").symlink_to(folder)
    assert [str(path) for path in Checkpoint(folder).files.left_out] == ["loop"]


def test_a_snapshot_of_the_hugging_face_cache_is_followed_into_its_blobs(folder, tmp_path):
    """models--x/snapshots/REVISION/file -> ../../blobs/HASH: what users of the hub have."""
    cache = tmp_path / "models--x"
    (cache / "blobs").mkdir(parents=True)
    snapshot = cache / "snapshots" / "0123"
    (snapshot / "tokenizer").mkdir(parents=True)
    for number, (name, content) in enumerate(contents(folder).items()):
        (cache / "blobs" / f"{number:040}").write_bytes(content)
        up = "../../../" if "/" in name else "../../"
        (snapshot / name).symlink_to(f"{up}blobs/{number:040}")
    before = contents(cache / "blobs")
    ll.prune_checkpoint(snapshot, tmp_path / "a", sparsity=0.5)
    ll.prune_checkpoint(folder, tmp_path / "b", sparsity=0.5)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert not any(path.is_symlink() for path in (tmp_path / "a").rglob("*"))
    assert contents(cache / "blobs") == before
    (snapshot / "more.txt").symlink_to("../../../in/config.json")
    with pytest.raises(LamplighterError, match="a link that leads out of the folder"):
        Checkpoint(snapshot)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.txt").write_text("x")
    for path, said in [
        (tmp_path / "absent", "there is no file or folder"),
        (tmp_path / "empty", "there is no checkpoint in the folder"),
        (tmp_path / "x.txt", "is no checkpoint by its name"),
    ]:
        with pytest.raises(LamplighterError, match=said):
            Checkpoint(path)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        save_file({"x.weight": torch.ones(2, 2)}, tmp_path / "in" / f"{name}.safetensors")
    with pytest.raises(LamplighterError, match=r"'x\.weight' is both in a\.safetensors and in b\.safetensors"):
        Checkpoint(tmp_path / "in")


@pytest.mark.parametrize("names", [(1, 2, 4), (0, 1, 3)])
def test_numbered_files_without_an_index_must_be_all_there(tmp_path, names):
    (tmp_path / "in").mkdir()
    for number in names:
        save_file({f"{number}.weight": torch.ones(2, 2)}, tmp_path / "in" / f"model-{number:05}-of-00004.safetensors")
    missing = min({*range(names[0], names[0] + 4)} - {*names})
    with pytest.raises(LamplighterError, match=rf"1 of 4 files of .*: model-0000{missing}-of-00004\.safetensors"):
        Checkpoint(tmp_path / "in")
    save_file({"more.weight": torch.ones(2, 2)}, tmp_path / "in" / f"model-{missing:05}-of-00004.safetensors")
    assert len(Checkpoint(tmp_path / "in")) == 4


def test_weights_of_modules_and_adapters_are_carried_over_and_named(folder, tmp_path):
    (folder / "2_Dense").mkdir()
    modules = ["2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "adapter_model.safetensors"]
    for name in modules:
        save_file({"x.weight": torch.ones(2, 2)}, folder / name)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"copy")
    report = ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.5)
    assert sorted(report.unpruned) == modules
    assert report.left_out == ("onnx/model.onnx",)
    assert all((folder / name).read_bytes() == (tmp_path / "out" / name).read_bytes() for name in modules)


def test_packed_checkpoints_are_to_be_unpacked_first(folder, tmp_path):
    ll.prune_checkpoint(folder, tmp_path / "sparse", sparsity=0.9)
    ll.pack(tmp_path / "sparse", tmp_path / "packed")
    for ask in (
        lambda: ll.prune_checkpoint(tmp_path / "packed", None, sparsity=0.5, dry_run=True),
        lambda: compare(tmp_path / "packed", sparsity=0.5),
    ):
        with pytest.raises(LamplighterError, match="is packed") as caught:
            ask()
        assert "lamp unpack" in str(caught.value.hint)
    found = inspect_checkpoint(tmp_path / "packed")
    assert found.packed
    assert not any(tensor.layers for tensor in found.tensors)
    assert not inspect_checkpoint(folder).packed


def test_pruned_again_the_earlier_records_are_kept(folder, tmp_path):
    source = folder
    for step, sparsity in enumerate((0.2, 0.5, 0.8)):
        ll.prune_checkpoint(source, tmp_path / f"{step}", sparsity=sparsity)
        source = tmp_path / f"{step}"
    for shard in Checkpoint(source).shards:
        record = json.loads(shard.metadata["lamplighter"])
        assert record["sparsity"] == 0.8
        assert [each["sparsity"] for each in record["earlier"]] == [0.2, 0.5]
        assert not any("earlier" in each for each in record["earlier"])


def test_a_name_in_an_index_that_is_no_text_is_refused(folder):
    with_index(folder, lambda index: index["weight_map"].update({"a": "\ud800.safetensors"}))
    with pytest.raises(LamplighterError, match=r"'\\ud800\.safetensors', which is no text"):
        Checkpoint(folder)


def test_permissions_are_those_of_the_original_less_the_umask(folder, tmp_path):
    (folder / "convert.sh").write_text("#!/bin/sh")
    for name, mode in [("convert.sh", 0o755), ("config.json", 0o444), ("model-00001-of-00003.safetensors", 0o600)]:
        (folder / name).chmod(mode)
    folder.chmod(0o750)
    before = os.umask(0o022)
    try:
        ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.5)
        one = folder / "model-00001-of-00003.safetensors"
        ll.prune_checkpoint(one, tmp_path / "one.safetensors", sparsity=0.5)
    finally:
        os.umask(before)
    out = tmp_path / "out"
    found = {p.name: p.stat().st_mode & 0o777 for p in [*out.iterdir(), out, tmp_path / "one.safetensors"]}
    assert found["convert.sh"] == 0o755
    assert found["config.json"] == 0o644
    assert found["model-00001-of-00003.safetensors"] == found["one.safetensors"] == 0o600
    assert found["out"] == 0o750
