"""Text from plain files, archives, parquet and the hub becomes the same word numbers."""

import sys
import tarfile
import types

import pytest
import torch

from lamplighter.data import text
from lamplighter.data.dataset import Corpus
from lamplighter.data.prepare import load, prepare
from lamplighter.errors import LamplighterError, LamplighterWarning

LINES = {"train": [" the cat <unk> ", " the dog ", " the cat "], "valid": [" cat the "], "test": [" the bird ", ""]}
WORDS = ("<eos>", "the", "cat", "<unk>", "dog")
NUMBERS = {"train": [1, 2, 3, 0, 1, 4, 0, 1, 2, 0], "valid": [2, 1, 0], "test": [1, 3, 0, 0]}


def write(folder, form="ptb.{}.txt"):
    folder.mkdir(parents=True, exist_ok=True)
    for split, lines in LINES.items():
        (folder / form.format(split)).write_text("\n".join(lines) + "\n")


def check(source, out, name="ptb"):
    with pytest.warns(LamplighterWarning, match="not the complete dataset"):
        prepare(name, source, out)
    corpus = load(name, out)
    assert isinstance(corpus, Corpus)
    assert corpus.words == WORDS
    assert corpus.train.dtype == torch.int32
    assert {split: getattr(corpus, split).tolist() for split in NUMBERS} == NUMBERS


@pytest.mark.parametrize("form", ["ptb.{}.txt", "{}.txt", "wiki.{}.tokens"])
def test_plain_files_in_the_folder_or_in_one_of_the_datas_name(tmp_path, form):
    write(tmp_path / "a", form)
    check(tmp_path / "a", tmp_path / "1")
    write(tmp_path / "b" / "ptb", form)
    check(tmp_path / "b", tmp_path / "2")


def test_a_variant_by_characters_is_passed_over(tmp_path):
    write(tmp_path / "data")
    for split in LINES:
        (tmp_path / "data" / f"ptb.char.{split}.txt").write_text("t h e\n")
    check(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("direct", [True, False])
def test_an_archive_itself_or_in_a_folder_beside_others(tmp_path, direct):
    write(tmp_path / "files")
    with tarfile.open(tmp_path / "ptb.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "files", "simple-examples/data")
    (tmp_path / "cifar10").mkdir()
    check(tmp_path / "ptb.tar.xz" if direct else tmp_path, tmp_path / "out")


def test_parquet_in_the_hubs_schema(tmp_path, write_lines):
    pytest.importorskip("pyarrow")
    for split, name in (("train", "train"), ("valid", "validation"), ("test", "test")):
        write_lines(tmp_path / "wikitext-2-v1" / f"{name}-00000-of-00001.parquet", LINES[split], "text")
    check(tmp_path, tmp_path / "out", "wikitext2")


def test_without_a_source_the_hub_is_asked(tmp_path, monkeypatch):
    def load_dataset(hub, config, split, revision):
        assert (hub, config, revision) == ("Salesforce/wikitext", "wikitext-2-v1", None)
        return {"text": [line + "\n" for line in LINES["valid" if split == "validation" else split]]}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    check(None, tmp_path, "wikitext2")


def test_a_missing_split_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "ptb.train.txt").unlink()
    with pytest.raises(LamplighterError, match="has no train split; found") as caught:
        prepare("ptb", tmp_path, tmp_path / "out")
    assert "--source FOLDER" in caught.value.hint


def test_a_strange_word_without_a_mark_for_unknown_ones_is_an_error():
    with pytest.raises(LamplighterError, match="test split has words that the training split does not: bird"):
        text.encode("ptb", {"train": ["cat"], "test": ["bird"]})


def test_lines_end_at_newlines_alone():
    assert text._lines("a\x0bb\u2028c\n\nd\n") == ["a\x0bb\u2028c", "", "d"]


def test_a_file_that_is_no_archive_is_an_error(tmp_path):
    (tmp_path / "ptb.tar.xz").write_bytes(b"nothing")
    with pytest.raises(LamplighterError, match="not a tar archive"):
        prepare("ptb", tmp_path, tmp_path / "out")
