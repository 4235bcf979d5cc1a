"""Which folders are replaced with force, and that nothing else is lost with them."""

import pytest
import torch

import lamplighter as ll
from checkpoint.made import contents, save_sharded, weights
from lamplighter.errors import LamplighterError


@pytest.fixture
def folder(tmp_path):
    """A checkpoint with code of its own and a folder beside the weights."""
    made = save_sharded(tmp_path / "in", weights(), 2)
    (made / "config.json").write_text("{}")
    (made / "modeling.py").write_text("code")
    (made / "pooling").mkdir()
    (made / "pooling" / "config.json").write_text("{}")
    return made


def filled(path, names):
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"precious")
    return path


@pytest.mark.parametrize("odd", [".git/HEAD", "train.py", "src/main.py", "data.csv", ".env", "pooling/thesis.tex"])
def test_a_folder_with_more_than_a_checkpoint_is_not_replaced(folder, tmp_path, odd):
    filled(tmp_path / "out", ["weights.pt", "config.json", odd])
    before = contents(tmp_path)
    with pytest.raises(LamplighterError, match=f"holds more than a checkpoint \\({odd.split('/')[0]}/?\\)"):
        ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.5, force=True)
    assert contents(tmp_path) == before


def test_a_checkpoint_and_what_comes_along_with_one_is_replaced(folder, tmp_path):
    companions = ["pytorch_model.bin", "config.json", "merges.txt", "README.md", "LICENSE", ".gitattributes"]
    filled(tmp_path / "out", [*companions, "tokenizer.model", "modeling.py", "pooling/config.json"])
    ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.5, force=True)
    assert contents(tmp_path / "out").keys() == contents(folder).keys()


def test_what_we_wrote_is_replaced_by_another_model_unless_something_hidden_was_put_there(folder, tmp_path):
    plain = save_sharded(tmp_path / "plain", weights(), 2)
    ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.5)
    filled(tmp_path / "out", ["pooling/.git/HEAD"])
    with pytest.raises(LamplighterError, match=r"\(pooling/\.git/\)"):
        ll.prune_checkpoint(plain, tmp_path / "out", sparsity=0.5, force=True)
    (tmp_path / "out" / "pooling" / ".git" / "HEAD").unlink()
    (tmp_path / "out" / "pooling" / ".git").rmdir()
    ll.prune_checkpoint(plain, tmp_path / "out", sparsity=0.5, force=True)
    assert contents(tmp_path / "out").keys() == contents(plain).keys()


def test_one_file_that_we_wrote_does_not_make_its_folder_ours(folder, tmp_path):
    torch.save(weights(), tmp_path / "x.pt")
    (tmp_path / "home").mkdir()
    ll.prune_checkpoint(tmp_path / "x.pt", tmp_path / "home" / "sparse.safetensors", sparsity=0.5)
    filled(tmp_path / "home", ["diary/monday.txt"])
    with pytest.raises(LamplighterError, match="diary/"):
        ll.prune_checkpoint(folder, tmp_path / "home", sparsity=0.5, force=True)
