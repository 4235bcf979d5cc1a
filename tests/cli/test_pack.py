"""`lamp pack`, `lamp unpack`, `lamp verify`: what they print, their exit codes, their errors."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import lamplighter as ll
from lamplighter.cli.app import app


def lamp(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def model(tmp_path):
    """A model, and its pruned version beside it."""
    torch.manual_seed(0)
    save_file({f"l{i}.weight": torch.randn(64, 64).bfloat16() for i in range(3)}, tmp_path / "model.safetensors")
    ll.prune_checkpoint(tmp_path / "model.safetensors", tmp_path / "pruned.safetensors", sparsity=0.9)
    return tmp_path / "model.safetensors"


def test_pack_unpack_and_verify_say_what_they_did(model):
    pruned, packed, back = (model.with_name(f"{name}.safetensors") for name in ("pruned", "packed", "back"))
    done = lamp("pack", pruned, "-o", packed)
    assert done.exit_code == 0, done.output
    sizes = f"{packed.stat().st_size:,} bytes, was {pruned.stat().st_size:,}"
    assert done.stdout == f"{packed}: {sizes}; 3 of 3 tensors are sparse now\n"
    done = lamp("unpack", packed, "-o", back)
    assert done.exit_code == 0, done.output
    sizes = f"{pruned.stat().st_size:,} bytes, was {packed.stat().st_size:,}"
    assert done.stdout == f"{back}: {sizes}; 3 of 3 tensors were sparse\n"
    assert back.read_bytes() == pruned.read_bytes()
    done = lamp("verify", packed, model)
    assert done.exit_code == 0, done.output
    *lines, last = done.stdout.splitlines()
    counts = dict(line.rsplit(None, 1) for line in lines)
    kept = 3 * 4096 - round(0.9 * 3 * 4096)
    assert counts == {
        "entries": "12,288",
        "removed": f"{12_288 - kept:,}",
        "zero in both": "0",
        "as in the original": f"{kept:,}",
        "different": "0",
        "layers": "3",
        "of them as planned": "3",
    }
    found = f"12,288 entries: {12_288 - kept:,} removed, every other one as in the original, as planned in 3 layers"
    assert last == f"ok: {found}"


def test_one_is_not_many(tmp_path):
    whole, pruned, packed, back = (tmp_path / f"{name}.safetensors" for name in ("whole", "pruned", "packed", "back"))
    save_file({"l.weight": torch.randn(64, 64)}, whole)
    ll.prune_checkpoint(whole, pruned, sparsity=0.9)
    assert lamp("pack", pruned, "-o", packed).stdout.endswith("; 1 of 1 tensor is sparse now\n")
    assert lamp("unpack", packed, "-o", back).stdout.endswith("; 1 of 1 tensor was sparse\n")
    assert lamp("verify", packed, whole).stdout.endswith(", as planned in 1 layer\n")


def test_verify_says_if_budgets_are_not_checked(model):
    done = lamp("verify", model, model)
    assert done.exit_code == 0
    *_, note, last = done.stdout.splitlines()
    assert note == "budgets not checked: the checkpoint does not say how it was pruned"
    assert last == "ok: 12,288 entries: 0 removed, every other one as in the original"
    found = json.loads(lamp("verify", model, model, "--json").stdout)
    assert found["budgets_not_checked"] == "the checkpoint does not say how it was pruned"
    pruned = json.loads(lamp("verify", model.with_name("pruned.safetensors"), model, "--json").stdout)
    assert pruned["budgets_not_checked"] is None


@pytest.mark.filterwarnings("default::lamplighter.LamplighterWarning")
def test_other_weights_of_a_folder_are_left_out_with_a_warning(model):
    folder = model.with_name("folder")
    folder.mkdir()
    model.with_name("pruned.safetensors").rename(folder / "model.safetensors")
    torch.save({}, folder / "pytorch_model.bin")
    done = lamp("pack", folder, "-o", model.with_name("packed"), "--json")
    assert done.exit_code == 0, done.output
    assert "warning: not carried over, as it may hold other weights: pytorch_model.bin\n" in done.stderr
    assert json.loads(done.stdout)["left_out"] == ["pytorch_model.bin"]


def test_json_is_one_document(model):
    pruned, packed, back = (model.with_name(f"{name}.safetensors") for name in ("pruned", "packed", "back"))
    about = json.loads(lamp("pack", pruned, "-o", packed, "--json").stdout)
    assert about["packed_bytes"] == packed.stat().st_size
    assert about["dense_bytes"] == pruned.stat().st_size
    assert (about["tensors"], about["sparse"]) == (3, 3)
    assert json.loads(lamp("unpack", packed, "-o", back, "--json").stdout)["out"] == str(back)
    found = json.loads(lamp("verify", packed, model, "--json").stdout)
    assert found["ok"] is True
    assert found["differences"] == []
    assert found["tensors"]["l1.weight"]["planned"] == found["tensors"]["l1.weight"]["nonzero"]


def test_verify_exits_with_1_and_names_the_first_difference(model):
    tensors = load_file(model)
    tensors["l1.weight"][3, 4] = 77
    other = model.with_name("other.safetensors")
    save_file(tensors, other)
    done = lamp("verify", other, model)
    assert done.exit_code == 1
    assert "different                              1\n" in done.stdout
    assert "ok: " not in done.stdout
    assert "different: l1.weight at [3, 4]: 1 entry is neither zero nor the original's" in done.stdout
    done = lamp("verify", other, model, "--json")
    assert done.exit_code == 1
    (difference,) = json.loads(done.stdout)["differences"]
    assert (difference["tensor"], difference["index"]) == ("l1.weight", [3, 4])


def test_only_the_first_differences_are_listed(tmp_path):
    save_file({f"{i}": torch.ones(3) for i in range(30)}, tmp_path / "a.safetensors")
    save_file({f"{i}": torch.full((3,), 2.0) for i in range(30)}, tmp_path / "b.safetensors")
    done = lamp("verify", tmp_path / "b.safetensors", tmp_path / "a.safetensors")
    assert done.stdout.count("different: ") == 11
    assert "20 more" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pack", "absent.safetensors", "-o", "p.safetensors"), "there is no file or folder"),
        (("pack", "pruned.safetensors", "-o", "pruned.safetensors", "--force"), "what is read"),
        (("pack", "pruned.safetensors", "-o", "model.safetensors"), "exists"),
        (("unpack", "pruned.safetensors", "-o", "p.safetensors"), "is not a packed file"),
        (("verify", "pruned.safetensors", "absent.safetensors"), "there is no file or folder"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_mistakes_are_an_error_and_a_hint(model, monkeypatch, arguments, said):
    monkeypatch.chdir(model.parent)
    before = {path.name: path.read_bytes() for path in model.parent.iterdir()}
    done = lamp(*arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")
    assert {path.name: path.read_bytes() for path in model.parent.iterdir()} == before


def test_force_replaces(model):
    packed = model.with_name("packed.safetensors")
    packed.write_text("old")
    assert lamp("pack", model.with_name("pruned.safetensors"), "-o", packed).exit_code == 1
    assert lamp("pack", model.with_name("pruned.safetensors"), "-o", packed, "--force").exit_code == 0
    assert lamp("verify", packed, model).exit_code == 0


@pytest.mark.parametrize("command", ["pack", "unpack", "verify"])
def test_help_shows_examples(command):
    shown = lamp(command, "--help")
    assert shown.exit_code == 0
    assert f"$ lamp {command}" in shown.stdout
    if command == "verify":
        assert "{PRUNED} {ORIGINAL}" in shown.stdout
