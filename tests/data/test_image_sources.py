"""Images from parquet, class folders and the hub become the same checked tensors."""

import sys
import types
import warnings

import numpy as np
import pytest
import torch

from lamplighter.data.catalog import DATASETS, RESTRICTED_IMAGENET
from lamplighter.data.dataset import Dataset
from lamplighter.data.prepare import load, prepare
from lamplighter.errors import LamplighterError, LamplighterWarning

pytest.importorskip("pyarrow")
pytest.importorskip("PIL")


def prepare_sample(name, source, out, **options):
    with pytest.warns(LamplighterWarning, match="not the complete dataset"):
        return prepare(name, source, out, **options)


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_pixels_and_labels_come_back_exactly(tmp_path, write_images, kind):
    first = write_images(tmp_path / "in" / "train-00000-of-00002.parquet", [0, 1, 2, 3], kind=kind)
    second = write_images(tmp_path / "in" / "train-00001-of-00002.parquet", [4, 5, 5], kind=kind, seed=1)
    test = write_images(tmp_path / "in" / "test-00000-of-00001.parquet", [9, 8], kind=kind, seed=2)
    path = prepare_sample("cifar10", tmp_path / "in", tmp_path / "out")
    assert path == tmp_path / "out" / "cifar10.safetensors"
    data = load("cifar10", tmp_path / "out")
    assert isinstance(data, Dataset)
    assert data.train_images.dtype == torch.uint8
    assert np.array_equal(data.train_images.numpy(), np.concatenate((first, second)))
    assert data.train_labels.tolist() == [0, 1, 2, 3, 4, 5, 5]
    assert np.array_equal(data.test_images.numpy(), test)
    assert data.test_labels.tolist() == [9, 8]
    assert (data.classes, data.std, data.train_aspects) == (10, (0.247, 0.243, 0.261), None)


@pytest.mark.parametrize(
    ("name", "place", "columns"),
    [
        ("cifar10", "cifar10/plain_text", {"image": "img", "label": "label"}),
        ("cifar100", "cifar100", {"image": "img", "label": "fine_label"}),
        ("svhn", "svhn/cropped_digits", {"image": "image", "label": "label"}),
        ("svhn", "cropped_digits", {"image": "image", "label": "label"}),
    ],
)
def test_the_hubs_folders_are_found_in_the_folder_given(tmp_path, write_images, name, place, columns):
    for split in ("train", "test"):
        write_images(tmp_path / place / f"{split}-00000-of-00001.parquet", [1, 2], **columns)
    write_images(tmp_path / "other" / "train-00000-of-00001.parquet", [1, 2, 3], **columns)
    prepare_sample(name, tmp_path, tmp_path / "out")
    assert len(load(name, tmp_path / "out").train_labels) == 2


def test_a_config_in_the_way_is_passed_over(tmp_path, write_images):
    """SVHN's repository also holds the uncropped photographs."""
    for config, count in (("cropped_digits", 2), ("full_numbers", 3)):
        for split in ("train", "test"):
            write_images(tmp_path / config / split / "0000.parquet", [1] * count, image="image")
    prepare_sample("svhn", tmp_path, tmp_path / "out")
    assert len(load("svhn", tmp_path / "out").train_labels) == 2


def test_what_is_prepared_is_not_prepared_again(tmp_path, write_images):
    for split in ("train", "test"):
        write_images(tmp_path / f"{split}.parquet", [1])
    path = prepare_sample("cifar10", tmp_path, tmp_path)
    before = path.stat().st_mtime_ns
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert prepare("cifar10", tmp_path / "nowhere", tmp_path) == path
    assert path.stat().st_mtime_ns == before
    prepare_sample("cifar10", tmp_path, tmp_path, force=True)
    assert path.stat().st_mtime_ns > before


def test_a_damaged_prepared_file_is_refused(tmp_path, write_images):
    for split in ("train", "test"):
        write_images(tmp_path / f"{split}.parquet", [1])
    path = prepare_sample("cifar10", tmp_path, tmp_path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(LamplighterError, match="hash differs"):
        prepare("cifar10", tmp_path, tmp_path)


def test_metadata_counts_each_class(tmp_path, write_images):
    from safetensors import safe_open

    write_images(tmp_path / "train.parquet", [1, 1, 3])
    write_images(tmp_path / "test.parquet", [0])
    with safe_open(prepare_sample("cifar10", tmp_path, tmp_path), "pt") as file:
        assert file.metadata()["train.per_class"] == "[0, 2, 0, 1, 0, 0, 0, 0, 0, 0]"
        assert file.metadata()["test.per_class"] == "[1, 0, 0, 0, 0, 0, 0, 0, 0, 0]"


def test_progress_ends_at_the_number_of_images(tmp_path, write_images):
    for split in ("train", "test"):
        write_images(tmp_path / f"{split}.parquet", [1] * 5)
    seen = []
    prepare_sample("cifar10", tmp_path, tmp_path, progress=lambda *args: seen.append(args))
    assert ("train", 5, 5) in seen
    assert seen[-1] == ("test", 5, 5)


def test_missing_data_says_both_ways_to_get_it(tmp_path):
    with pytest.raises(LamplighterError) as caught:
        load("cifar10", tmp_path)
    assert "uoft-cs/cifar10" in caught.value.hint
    assert "lamp data prepare cifar10 --source FOLDER" in caught.value.hint
    with pytest.raises(LamplighterError, match="does not exist"):
        prepare("cifar10", tmp_path / "nowhere", tmp_path)
    with pytest.raises(LamplighterError, match="no train split") as caught:
        prepare("cifar10", tmp_path, tmp_path)
    assert "--source FOLDER" in caught.value.hint


def test_an_unknown_dataset_offers_the_nearest(tmp_path):
    with pytest.raises(LamplighterError, match="there is no dataset cifar-10") as caught:
        load("cifar-10", tmp_path)
    assert "cifar10" in caught.value.hint


def test_a_label_out_of_range_is_an_error(tmp_path, write_images):
    for split in ("train", "test"):
        write_images(tmp_path / f"{split}.parquet", [1, 10])
    with pytest.raises(LamplighterError, match="image 1 has label 10, expected 0 to 9"):
        prepare("cifar10", tmp_path, tmp_path)


def test_an_image_of_another_size_is_an_error_and_leaves_no_file(tmp_path, write_images):
    for split in ("train", "test"):
        write_images(tmp_path / f"{split}.parquet", [1], size=(32, 30))
    with (
        pytest.warns(LamplighterWarning),
        pytest.raises(LamplighterError, match="image 0: an image is 30x32, not 32x32"),
    ):
        prepare("cifar10", tmp_path, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_another_schema_is_an_error_that_names_the_columns(tmp_path, write_images):
    for split in ("train", "test"):
        write_images(tmp_path / f"{split}.parquet", [1], image="picture")
    with pytest.raises(LamplighterError, match="no column img, only picture, label"):
        prepare("cifar10", tmp_path, tmp_path)


def test_bytes_that_are_no_image_are_an_error(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for split in ("train", "test"):
        rows = pa.table({"img": [{"bytes": b"no image", "path": None}], "label": [1]})
        pq.write_table(rows, tmp_path / f"{split}.parquet")
    with pytest.warns(LamplighterWarning), pytest.raises(LamplighterError, match="image 0 cannot be decoded"):
        prepare("cifar10", tmp_path, tmp_path)


class Rows:
    """As much of a dataset of the `datasets` library as is used."""

    def __init__(self, rows):
        self.rows = rows

    def cast_column(self, column, feature):
        assert feature == {"decode": False}
        return self

    def __iter__(self):
        return iter(self.rows)

    def __getitem__(self, column):
        return [row[column] for row in self.rows]


def test_without_a_source_the_hub_is_asked(tmp_path, monkeypatch, encode):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    (tmp_path / "image.png").write_bytes(encode(pixels[1]))
    rows = Rows(
        [
            {"image": {"bytes": encode(pixels[0]), "path": None}, "label": 3},
            {"image": {"bytes": None, "path": str(tmp_path / "image.png")}, "label": 4},
        ]
    )
    asked = []

    def load_dataset(*args, **options):
        asked.append((args, options))
        return rows

    fake = types.SimpleNamespace(load_dataset=load_dataset, Image=lambda **options: options)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    prepare_sample("svhn", None, tmp_path)
    assert asked[0] == (("ufldl-stanford/svhn", "cropped_digits"), {"split": "train", "revision": None})
    data = load("svhn", tmp_path)
    assert np.array_equal(data.train_images.numpy(), pixels)
    assert data.test_labels.tolist() == [3, 4]


def test_a_hub_out_of_reach_says_both_ways(tmp_path, monkeypatch):
    def load_dataset(*args, **options):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(
        LamplighterError, match="could not be fetched from the hub: ConnectionError: no route"
    ) as caught:
        prepare("cifar10", None, tmp_path)
    assert "--source FOLDER" in caught.value.hint
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LamplighterError, match="`datasets` is not installed"):
        prepare("cifar10", None, tmp_path)


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    """A thousand empty class folders for each split."""
    folder = tmp_path_factory.mktemp("imagenet")
    for split in ("train", "val"):
        for number in range(1000):
            (folder / split / f"n{number:08}").mkdir(parents=True)
    return folder


@pytest.fixture
def imagenet(thousand, encode):
    """Puts images {split: [(class, pixels)]} into their class folders and takes them away afterwards."""
    written = []

    def write(images):
        for split, content in images.items():
            for i, (number, pixels) in enumerate(content):
                path = thousand / split / f"n{number:08}" / f"{i}.png"
                path.write_bytes(encode(pixels))
                written.append(path)
        return thousand

    yield write
    for path in written:
        path.unlink()


def test_restricted_imagenet_keeps_nine_groups_of_classes(tmp_path, imagenet):
    rng = np.random.default_rng(0)
    wide, tall = rng.integers(0, 256, (2, 300, 600, 3), np.uint8)
    tall = tall.transpose(1, 0, 2)
    source = imagenet(
        {"train": [(0, wide), (151, wide), (268, tall), (269, wide), (319, wide)], "val": [(30, wide), (5, wide)]}
    )
    prepare_sample("restricted-imagenet", source, tmp_path)
    data = load("restricted-imagenet", tmp_path)
    assert data.train_labels.tolist() == [0, 0, 8]
    assert data.test_labels.tolist() == [2]
    assert data.train_images.shape == (3, 256, 256, 3)
    assert data.test_images.shape == (1, 224, 224, 3)
    assert data.train_aspects.tolist() == [2.0, 0.5, 2.0]
    assert list(RESTRICTED_IMAGENET) == ["dog", "cat", "frog", "turtle", "bird", "primate", "fish", "crab", "insect"]
    assert (
        sum(last - first + 1 for first, last in RESTRICTED_IMAGENET.values()) == 118 + 5 + 3 + 5 + 21 + 18 + 9 + 4 + 20
    )


def test_tested_photographs_are_resized_and_cropped_as_torchvision_does(tmp_path, imagenet):
    transforms = pytest.importorskip("torchvision.transforms")
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (300, 431, 3), np.uint8)
    source = imagenet({"train": [(30, pixels)], "val": [(30, pixels)]})
    prepare_sample("restricted-imagenet", source, tmp_path)
    usual = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    expected = np.asarray(usual(Image.fromarray(pixels)))
    assert np.array_equal(load("restricted-imagenet", tmp_path).test_images[0].numpy(), expected)


def test_a_missing_class_folder_is_an_error(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split / "n1").mkdir(parents=True)
    with pytest.raises(LamplighterError, match="has 1 class folders, expected 1000"):
        prepare("restricted-imagenet", tmp_path, tmp_path)


def test_restricted_imagenet_is_read_from_parquet_as_well(tmp_path, write_images):
    pixels = write_images(tmp_path / "data" / "train-00000-of-00001.parquet", [0, 281], image="image", size=(256, 256))
    write_images(tmp_path / "data" / "validation-00000-of-00001.parquet", [365], image="image", size=(256, 256))
    prepare_sample("restricted-imagenet", tmp_path, tmp_path)
    data = load("restricted-imagenet", tmp_path)
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([1], [5])
    assert np.array_equal(data.train_images[0].numpy(), pixels[1])


def test_every_source_normalises_three_colours():
    for source in DATASETS.values():
        if hasattr(source, "mean"):
            assert len(source.mean) == len(source.std) == 3
