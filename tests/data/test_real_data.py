"""The real datasets, where they are here: complete, and as they are known to be."""

import pytest

from lamplighter.data import text
from lamplighter.data.catalog import DATASETS
from lamplighter.data.prepare import load, prepare


def need(path):
    if not path.exists():
        pytest.skip(f"no data at {path}; LAMPLIGHTER_DATA names the folder that has it")


def test_penn_treebank_has_its_known_counts(real_data, tmp_path):
    need(real_data / "ptb.tar.xz")
    prepare("ptb", real_data, tmp_path)
    corpus = load("ptb", tmp_path)
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [929_589, 73_760, 82_430]
    assert len(corpus.words) == 10_000
    assert corpus.words[:3] == ("the", "<unk>", "<eos>")
    begin = " ".join(corpus.words[i] for i in corpus.test[:6].tolist())
    assert begin == "no it was n't black monday"


def test_wikitext2_has_its_known_counts(real_data):
    path = real_data / "wikitext-2-valid-test.tar.xz"
    need(path)
    source = DATASETS["wikitext2"]
    found = text.read(path, ("wikitext",), source.config, source.column)
    assert {split: len(text.tokens(lines)) for split, lines in found.items()} == {"valid": 217_646, "test": 245_569}


def test_cifar10_test_images_are_complete(real_data):
    """The test split alone: decoding all 60,000 images belongs to the slow tests."""
    pytest.importorskip("pyarrow")
    need(real_data / "cifar10")
    from lamplighter.data import parquet

    files = parquet.find(real_data / "cifar10", "test", "plain_text")
    split = parquet.read_images(files, "img", "label")
    assert [int((split.labels == label).sum()) for label in range(10)] == [1000] * 10
    assert split.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


@pytest.mark.slow
def test_cifar10_has_its_known_mean_and_deviation(real_data, tmp_path):
    pytest.importorskip("pyarrow")
    need(real_data / "cifar10")
    prepare("cifar10", real_data, tmp_path)
    data = load("cifar10", tmp_path)
    assert (len(data.train_images), len(data.test_images)) == (50_000, 10_000)
    assert data.train_labels.bincount().tolist() == [5000] * 10
    values = data.train_images.float().div_(255)
    assert values.mean((0, 1, 2)).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    assert values.std((0, 1, 2)).tolist() == pytest.approx([0.2470, 0.2435, 0.2616], abs=1e-4)
