"""An open checkpoint: a mapping that reads what is asked for, from safetensors and from files of torch."""

import threading

import pytest
import torch
from safetensors.torch import save_file

import lamplighter as ll
from checkpoint.made import same_bits, save_sharded, weights
from lamplighter.errors import LamplighterError


def test_it_is_a_mapping_of_names_to_tensors(tmp_path):
    tensors = weights()
    checkpoint = ll.Checkpoint(save_sharded(tmp_path / "model", tensors, 3))
    assert set(checkpoint) == set(tensors)
    assert len(checkpoint) == len(tensors)
    for name, tensor in tensors.items():
        assert same_bits(checkpoint[name], tensor)
        assert checkpoint.entries[name].nbytes == tensor.nbytes
        assert checkpoint.entries[name].shape == tuple(tensor.shape)
    assert "absent" not in checkpoint
    with pytest.raises(KeyError, match="did you mean"):
        checkpoint["model.layers.0.mlp.weigth"]


def test_parts_of_a_tensor_are_read(tmp_path):
    tensor = torch.randn(7, 5)
    save_file({"a.weight": tensor}, tmp_path / "x.safetensors")
    checkpoint = ll.Checkpoint(tmp_path / "x.safetensors")
    assert torch.equal(checkpoint.read("a.weight", 4, 19), tensor.reshape(-1)[4:19])
    assert checkpoint.read("a.weight", 3, 3).shape == (0,)
    room = bytearray(100)
    found = checkpoint.read_bytes("a.weight", 4, 12, memoryview(room))
    assert bytes(found) == tensor.numpy().tobytes()[4:12] == bytes(room[:8])


@pytest.mark.parametrize("span", [(-1, 3), (3, 2), (0, 36), (0.0, 2), ("a", 2), (True, 2)])
def test_parts_that_are_none_are_refused(tmp_path, span):
    save_file({"a.weight": torch.randn(7, 5)}, tmp_path / "x.safetensors")
    checkpoint = ll.Checkpoint(tmp_path / "x.safetensors")
    with pytest.raises(LamplighterError, match=r"not within the 35 entries of 'a\.weight'|no whole numbers"):
        checkpoint.read("a.weight", *span)
    with pytest.raises(LamplighterError, match=r"not within the 140 bytes|no whole numbers"):
        checkpoint.read_bytes("a.weight", span[0], 141 if span[1] == 36 else span[1])
    for room in (memoryview(b"1234"), memoryview(bytearray(3))):
        with pytest.raises(LamplighterError, match="read-only, too short"):
            checkpoint.read_bytes("a.weight", 0, 4, room)


def test_threads_may_read_at_once(tmp_path):
    tensors = {f"layers.{n}.weight": torch.randn(50, 50) for n in range(8)}
    checkpoint = ll.Checkpoint(save_sharded(tmp_path / "model", tensors, 4))
    wrong = []

    def look():
        wrong.extend(name for _ in range(20) for name in tensors if not torch.equal(checkpoint[name], tensors[name]))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("nest", [None, "state_dict", "model"])
@pytest.mark.parametrize("legacy", [False, True])
def test_files_of_torch_are_read_and_written_as_safetensors(tmp_path, nest, legacy):
    tensors = weights() | {"turned.weight": torch.randn(6, 4).t()}
    content = tensors if nest is None else {nest: tensors, "epoch": 3, "optimizer": {"lr": 0.1}}
    torch.save(content, tmp_path / "x.pt", _use_new_zipfile_serialization=not legacy)
    checkpoint = ll.Checkpoint(tmp_path / "x.pt")
    assert all(same_bits(checkpoint[name], tensor) for name, tensor in tensors.items())
    ll.prune_checkpoint(tmp_path / "x.pt", tmp_path / "y.safetensors", sparsity=0.5)
    ll.prune(tensors, 0.5, include=[n for n in tensors if (".layers." in n and "bias" not in n) or "turned" in n])
    pruned = ll.Checkpoint(tmp_path / "y.safetensors")
    assert all(same_bits(pruned[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(LamplighterError, match="no name for a safetensors file"):
        ll.prune_checkpoint(tmp_path / "x.pt", tmp_path / "y.pt", sparsity=0.5)


def test_weights_that_share_memory_count_once_and_are_masked_under_all_their_names(tmp_path):
    shared = torch.randn(8, 8)
    torch.save({"a.weight": shared, "b.weight": shared, "c.weight": torch.randn(4, 4)}, tmp_path / "x.bin")
    report = ll.prune_checkpoint(tmp_path / "x.bin", tmp_path / "y.safetensors", sparsity=0.5)
    assert [layer.name for layer in report.layers] == ["a.weight", "c.weight"]
    pruned = ll.Checkpoint(tmp_path / "y.safetensors")
    assert same_bits(pruned["a.weight"], pruned["b.weight"])
    assert int(pruned["a.weight"].count_nonzero()) == report.layers[0].kept


def test_what_is_no_file_of_weights_is_refused(tmp_path):
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(LamplighterError, match="holds a list, expected a mapping"):
        ll.Checkpoint(tmp_path / "list.pt")
    (tmp_path / "noise.pt").write_bytes(b"\x80\x02noise")
    with pytest.raises(LamplighterError, match=r"noise\.pt cannot be read as a file of torch"):
        ll.Checkpoint(tmp_path / "noise.pt")


class Trap:
    """What a pickle would execute."""

    def __reduce__(self):
        return (print, ("executed",))


def test_nothing_in_a_file_of_torch_is_executed(tmp_path, capsys):
    torch.save({"a.weight": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(LamplighterError, match="cannot be read as a file of torch"):
        ll.Checkpoint(tmp_path / "trap.pt")
    assert "executed" not in capsys.readouterr().out


def test_files_that_change_while_they_are_read_are_noticed(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a.weight": torch.randn(4, 4)}, path)
    checkpoint = ll.Checkpoint(path)
    save_file({"a.weight": torch.randn(5, 5)}, path)
    with pytest.raises(LamplighterError, match="was changed while it was read"):
        checkpoint["a.weight"]
