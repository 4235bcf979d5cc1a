"""`lamp demo`: a shortened run for real, its files, its table, its measurements."""

import errno
import json

import pytest
import torch
from typer.testing import CliRunner

from lamplighter.cli.app import app
from lamplighter.experiments.demo import METHODS, Setting, layer_titles, load_digits, measure, network
from lamplighter.targets import find_layers

SHORT = Setting(methods=("lamp", "uniform"), trials=2, rounds=3, dense_steps=40, round_steps=4)


def lamp(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def points():
    return list(measure(SHORT))


@pytest.fixture
def shortened(monkeypatch):
    """`lamp demo` with fewer optimizer steps; everything else is as users run it."""

    def short(**chosen):
        return Setting(**chosen, dense_steps=40, round_steps=4)

    monkeypatch.setattr("lamplighter.experiments.demo.Setting", short)


def test_the_demo_writes_its_figures_and_prints_its_table(shortened, tmp_path):
    done = lamp("demo", "--out", str(tmp_path / "new" / "folder"), "--trials", "1", "--rounds", "4")
    assert done.exit_code == 0, done.output
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == ["curves.png", "layers.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())
    assert "Test accuracy (%), one trial" in done.stdout
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == list(METHODS)
    for row in rows:  # dense, rounds 3 and 4
        assert all(0 <= float(cell) <= 100 for cell in row[1:])
        assert len(row) == 4
    assert "curves.png" in done.stderr


def test_json_is_all_that_stdout_gets(shortened, tmp_path):
    done = lamp("demo", "--out", str(tmp_path), "--methods", "erk, lamp", "--trials", "1", "--rounds", "2", "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["setting"]["methods"] == ["erk", "lamp"]
    assert [(point["method"], point["round"]) for point in record["points"]] == [
        ("dense", 0),
        ("erk", 1),
        ("erk", 2),
        ("lamp", 1),
        ("lamp", 2),
    ]


def test_a_misspelt_method_is_told_before_anything_is_trained(monkeypatch, tmp_path):
    monkeypatch.setattr("lamplighter.experiments.demo.train", lambda *_, **__: pytest.fail("training was begun"))
    done = lamp("demo", "--out", str(tmp_path), "--methods", "lamp,glbal")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: unknown method 'glbal'")
    assert "global" in done.stderr.split("hint:")[1]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def untrained(monkeypatch):
    monkeypatch.setattr("lamplighter.experiments.demo.train", lambda *_, **__: pytest.fail("training was begun"))


def keep_nothing(spectra, shapes, keep):
    return dict.fromkeys(spectra, 0)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("math:sqrt", "method 'math:sqrt' raises TypeError("),
        ("builtins:print", "method 'builtins:print': the method returned a NoneType, expected a mapping"),
        ("math:pi", "method 'math:pi' is a float, expected a function"),
        ("keep_nothing", "the method keeps 0 weights in all, expected 20,595"),
        ("uniform+", "method 'uniform+': with what uniform+ asks"),  # only of the last round
    ],
)
def test_a_method_that_does_not_allocate_is_told_before_anything_is_trained(
    untrained, monkeypatch, tmp_path, method, said
):
    monkeypatch.setattr("math.keep_nothing", keep_nothing, raising=False)
    method = "math:keep_nothing" if method == "keep_nothing" else method
    done = lamp("demo", "--out", str(tmp_path / "new"), "--methods", f"lamp,{method}")
    assert done.exit_code == 1, done.exception
    assert said in done.stderr.splitlines()[-2]
    assert done.stderr.splitlines()[-1].startswith("hint: ")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_for_the_figures_that_is_none_is_told_before_anything_is_trained(untrained, tmp_path, place):
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    done = lamp("demo", "--out", str(tmp_path / place))
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: figures cannot be written to {tmp_path / place}: ")
    assert done.stderr.splitlines()[1].startswith("hint: name a folder with --out")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_is_trained(untrained, monkeypatch, tmp_path):
    def refuse(**_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # root may write anywhere, so its refusal is made up
    done = lamp("demo", "--out", str(tmp_path))
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: figures cannot be written to {tmp_path}: Permission denied\n")


def test_every_method_prunes_the_same_number_of_weights_a_round(points):
    n = sum(layer.weight.numel() for layer in find_layers(network()))
    for point in points:
        kept = round(point.density * n)
        assert kept == n - round((1 - 0.8**point.round) * n)


def test_progress_steps_add_up(points):
    for phase, steps in SHORT.steps.items():
        assert sum(point.steps for point in points if point.method == phase) == steps


def test_the_dense_network_is_trained_once_and_shared(points):
    dense = [point for point in points if point.method == "dense"]
    assert [point.trial for point in dense] == [0, 1]
    assert points[:2] == dense


def test_uniform_keeps_the_same_share_of_every_layer(points):
    last = next(point for point in points if point.method == "uniform" and point.round == 3)
    sizes = [layer.weight.numel() for layer in find_layers(network())]
    for density, size in zip(last.layers.values(), sizes, strict=True):
        assert abs(density * size - last.density * size) <= 1


def test_a_seed_fixes_every_measurement(points):
    assert list(measure(SHORT)) == points


def test_trials_differ_in_data_and_weights(points):
    assert not torch.equal(load_digits(0).images, load_digits(1).images)
    assert points[0].accuracy != points[1].accuracy


def test_measuring_leaves_the_callers_threads_and_generator_alone():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    list(measure(Setting(methods=("lamp",), trials=1, rounds=1, dense_steps=1, round_steps=1)))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_figures_name_every_layer():
    assert len(layer_titles()) == len(find_layers(network()))


def test_digits_are_split_without_overlap_and_standardised_by_the_training_part():
    digits = load_digits(0)
    assert len(digits.images) + len(digits.test_images) == 1797
    assert abs(float(digits.images.mean())) < 1e-5
    assert abs(float(digits.images.std()) - 1) < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*without any weight")
def test_lamp_leads_at_the_sparse_end():
    reached = {(p.method, p.round, p.trial): p.accuracy for p in measure(Setting(methods=("lamp", "global"), trials=1))}
    for number in (18, 19, 20, 21):  # 1.80 to 0.92 % of the weights
        assert reached["lamp", number, 0] > reached["global", number, 0] + 0.2
