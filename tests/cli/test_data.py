"""`lamp data`: prepared once and checked, listed with its state, verified; mistakes in one line and a hint."""

import builtins
import json
import sys

import pytest
from typer.testing import CliRunner

from lamplighter.cli import data
from lamplighter.cli.app import app
from lamplighter.data.catalog import DATASETS

LINES = {"train": "the cat <unk>\nthe dog\n", "valid": "cat the\n", "test": "the bird\n"}
COUNTS = {"train": 7, "valid": 3, "test": 3}  # words, with one mark at the end of each line
SAID = "warning: ptb is not the complete dataset"

pytestmark = pytest.mark.filterwarnings("always:.* is not the complete dataset")


def lamp(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    for split, text in LINES.items():
        (folder / f"ptb.{split}.txt").write_text(text)
    return folder


@pytest.fixture
def prepared(source, tmp_path):
    """The folder of a prepared text, and its file."""
    done = lamp("prepare", "ptb", "--source", source, "--data", tmp_path / "out")
    assert done.exit_code == 0, done.output
    return tmp_path / "out", tmp_path / "out" / "ptb.safetensors"


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("option", ["--data", "--out", "-o"])
def test_preparing_prints_the_path_and_the_counts(source, tmp_path, option):
    done = lamp("prepare", "ptb", "--source", source, option, tmp_path / "out")
    assert done.exit_code == 0
    path = tmp_path / "out" / "ptb.safetensors"
    assert done.stdout.splitlines() == [str(path), "7 train + 3 valid + 3 test words, not the complete dataset"]
    assert SAID in done.stderr
    assert path.is_file()


def test_without_a_folder_the_file_goes_to_data_here(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lamp("prepare", "ptb", "--source", source).exit_code == 0
    assert (tmp_path / "data" / "ptb.safetensors").is_file()
    assert lamp("verify", "ptb").exit_code == 0


def test_preparing_again_says_so_and_does_nothing(prepared):
    folder, path = prepared
    before = path.stat().st_mtime_ns
    done = lamp("prepare", "ptb", "--source", folder / "nowhere", "--data", folder)
    assert done.exit_code == 0
    assert "prepared already, and whole: nothing to do" in done.stderr
    assert done.stdout.splitlines()[0] == str(path)
    assert path.stat().st_mtime_ns == before


def test_force_prepares_again(prepared, source):
    folder, path = prepared
    (source / "ptb.test.txt").write_text("the\n")
    done = lamp("prepare", "ptb", "--source", source, "--data", folder, "--force", "--json")
    record = json.loads(done.stdout)
    assert record.pop("sha256")
    assert record == {
        "name": "ptb",
        "path": str(path),
        "counts": {**COUNTS, "test": 2},
        "complete": False,
        "already": False,
    }


def test_a_damaged_file_is_neither_accepted_nor_replaced_unasked(prepared, source):
    folder, path = prepared
    damage(path)
    before = path.read_bytes()
    done = lamp("prepare", "ptb", "--source", source, "--data", folder)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "its hash differs" in done.stderr
    assert path.read_bytes() == before


def test_images_are_counted_and_watched(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image").new("RGB", (32, 32))
    seen = []
    watch = data._Watch.__call__
    monkeypatch.setattr(data._Watch, "__call__", lambda self, *made: (seen.append(made), watch(self, *made)))
    for split, count in (("train", 3), ("test", 2)):
        for label in range(10):
            (tmp_path / split / str(label)).mkdir(parents=True)
        for number in range(count):
            image.save(tmp_path / split / "7" / f"{number}.png")
    done = lamp("prepare", "cifar10", "--source", tmp_path, "--data", tmp_path)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[1] == "3 train + 2 test images, not the complete dataset"
    assert seen == [("train", 3, 3), ("test", 2, 2)]


def test_verify_tells_the_hash_and_the_counts(prepared):
    folder, path = prepared
    record = json.loads(lamp("verify", "ptb", "--data", folder, "--json").stdout)
    assert record["counts"] == COUNTS
    assert record["path"] == str(path)
    assert lamp("verify", "ptb", "--data", folder).stdout.splitlines()[-1] == f"whole: sha256 {record['sha256']}"


def test_verify_fails_on_one_changed_byte(prepared):
    folder, path = prepared
    damage(path)
    done = lamp("verify", "ptb", "--data", folder)
    assert (done.exit_code, done.stdout) == (1, "")
    error, hint = done.stderr.splitlines()
    assert error == f"error: {path} does not hold what was written to it: its hash differs"
    assert hint.startswith("hint: ")


def test_verify_fails_where_nothing_is(tmp_path):
    done = lamp("verify", "ptb", "--data", tmp_path)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ptb has not been prepared")
    assert "lamp data prepare ptb" in done.stderr.splitlines()[1]


def test_a_file_of_another_dataset_is_refused(prepared):
    folder, path = prepared
    path.rename(folder / "wikitext2.safetensors")
    done = lamp("verify", "wikitext2", "--data", folder)
    assert done.exit_code == 1
    assert "was not written by this version for wikitext2" in done.stderr
    assert "lamp data prepare wikitext2 --force" in done.stderr


def test_the_list_as_data_holds_every_dataset_and_its_state(prepared):
    folder, _ = prepared
    (folder / "svhn.safetensors").write_bytes(b"nothing")
    found = {entry["name"]: entry for entry in json.loads(lamp("list", "--data", folder, "--json").stdout)}
    assert list(found) == list(DATASETS)
    assert found["ptb"]["kind"] == "text"
    assert found["ptb"]["prepared"]["counts"] == COUNTS
    assert found["cifar10"]["counts"] == {"train": 50_000, "test": 10_000}
    assert (found["cifar10"]["prepared"], found["cifar10"]["damaged"]) == (None, None)
    assert (found["cifar10"]["classes"], found["cifar10"]["hub"]) == (10, "uoft-cs/cifar10")
    assert found["svhn"]["prepared"] is None
    assert str(folder / "svhn.safetensors") in found["svhn"]["damaged"]


def test_the_table_says_what_is_prepared(prepared, monkeypatch):
    folder, _ = prepared
    (folder / "svhn.safetensors").write_bytes(b"nothing")
    rows = [line.split() for line in lamp("list", "--data", folder).stdout.splitlines()]
    states = {row[0]: row[-1] for row in rows if row and row[0] in DATASETS}
    assert states == {name: {"ptb": "partly", "svhn": "damaged"}.get(name, "no") for name in DATASETS}
    monkeypatch.setitem(DATASETS["ptb"].counts, "train", 7)
    monkeypatch.setitem(DATASETS["ptb"].counts, "valid", 3)
    monkeypatch.setitem(DATASETS["ptb"].counts, "test", 3)
    assert "yes" in next(line for line in lamp("list", "--data", folder).stdout.splitlines() if "ptb" in line)


def test_a_misspelt_name_is_answered_with_the_nearest(tmp_path):
    for command in ("prepare", "verify"):
        done = lamp(command, "cifar", "--data", tmp_path)
        assert done.exit_code == 1
        assert done.stderr.splitlines()[0] == "error: there is no dataset cifar"
        assert "cifar10" in done.stderr.splitlines()[1]


def test_a_folder_that_cannot_be_written_is_an_error_and_a_hint(source, tmp_path):
    (tmp_path / "file").touch()
    done = lamp("prepare", "ptb", "--source", source, "--data", tmp_path / "file")
    assert done.exit_code == 1
    lines = done.stderr.splitlines()
    assert lines[-2].startswith("error: ptb could not be prepared")
    assert lines[-1].startswith("hint: ")


def test_without_the_package_that_reads_parquet_it_is_named(tmp_path, monkeypatch):
    pytest.importorskip("PIL")
    for split in ("train", "test"):
        (tmp_path / f"{split}.parquet").touch()
    hide(monkeypatch, "pyarrow")
    done = lamp("prepare", "cifar10", "--source", tmp_path, "--data", tmp_path)
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "error: preparing cifar10 needs pyarrow, which cannot be imported here",
        'hint: pip install "lamplighter[train]"',
    ]


def test_without_a_package_for_images_nothing_is_begun(tmp_path, monkeypatch):
    hide(monkeypatch, "PIL")
    monkeypatch.setattr("lamplighter.data.prepare.prepare", lambda *_, **__: pytest.fail("work was begun"))
    done = lamp("prepare", "cifar10", "--source", tmp_path, "--data", tmp_path)
    assert done.exit_code == 1
    assert "error: preparing cifar10 needs PIL" in done.stderr


def test_without_a_source_or_the_hubs_library_both_ways_are_told(tmp_path, monkeypatch):
    hide(monkeypatch, "datasets")
    done = lamp("prepare", "ptb", "--data", tmp_path)
    assert done.exit_code == 1
    assert "`datasets` is not installed" in done.stderr
    assert "lamp data prepare ptb --source FOLDER" in done.stderr


@pytest.mark.parametrize("command", ["list", "prepare", "verify"])
def test_every_command_shows_examples(command):
    shown = lamp(command, "--help")
    assert shown.exit_code == 0
    assert "$ lamp data prepare" in shown.stdout


def test_the_group_alone_answers_with_its_help():
    assert lamp().stdout.strip() == lamp("--help").stdout.strip()
    assert "prepare" in lamp().stdout


def hide(monkeypatch, package):
    """Make a package impossible to find or import."""
    import importlib.util

    there, usual = importlib.util.find_spec, builtins.__import__

    def load(name, *rest):
        if name.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return usual(name, *rest)

    for loaded in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(builtins, "__import__", load)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else there(name))
