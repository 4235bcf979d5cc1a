"""`lamp inspect --html`: the page of a checkpoint, its sentences, and its charts in a real browser."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from browsers import browser, reading
from lamplighter.checkpoint.inspection import inspect_checkpoint
from lamplighter.cli.app import app
from lamplighter.report.page.inspection import inspection_page, sentences

HOSTILE = "<script>alert(1)</script>.weight"


def lamp(*arguments):
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Three layers, a quarter, none and all of them zero, and two tensors that do not count."""
    path = tmp_path_factory.mktemp("inspection") / "model.safetensors"
    quarter = torch.full((4, 5), 0.5)
    quarter[0] = 0
    layers = {"a.weight": quarter, HOSTILE: torch.full((2, 5), 2.0), "c.weight": torch.zeros(2, 5)}
    layers = {name: layer.bfloat16() for name, layer in layers.items()}
    save_file(layers | {"c.bias": torch.tensor([1.0, torch.inf], dtype=torch.bfloat16), "steps": torch.tensor(3)}, path)
    return path


@pytest.fixture(scope="module")
def path(source):
    html = source.with_name("model.html")
    done = lamp(source, "--html", html)
    assert done.exit_code == 0, done.output
    assert done.stderr.endswith(f"{html}\n")
    assert "a.weight" in done.stdout
    return html


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


def test_it_says_what_counts_what_is_zero_and_what_is_broken(source):
    assert list(sentences(inspect_checkpoint(source))) == [
        "3 layers of 40 weights count by default. Of these, 15 are zero (37.50 %).",
        "All 5 tensors have 43 entries. Of these, 15 are zero (35.71 %); 1 of these tensors were not looked at.",
        "NaN or infinite values: c.bias (1).",
    ]


def test_the_same_checkpoint_makes_the_same_page_without_markup_of_its_names(source, path):
    content = inspection_page(inspect_checkpoint(source))
    assert content == path.read_bytes()
    assert b"<script>alert" not in content


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_is_drawn_answers_and_asks_no_network(chromium, path, width, dark):
    with reading(chromium, path, width=width, dark=dark) as reader:
        zeros, magnitudes = (reader.show(figure) for figure in reader.page.locator("figure").all())
        reader.show(zeros)
        place = reader.page.locator("tbody th", has_text=HOSTILE).evaluate("e => e.closest('tr').rowIndex")
        assert HOSTILE in " ".join(reader.point_at(zeros, place, 0.8))
        assert magnitudes.locator(".point").count() == 3
        table = reader.page.locator("[data-table=tensors] table")
        table.get_by_role("button", name="zeros (%)").click()
        assert table.locator("tbody tr").first.locator("th").inner_text() == "c.weight"
        row = table.locator("tbody tr", has_text="a.weight").locator("td").all_inner_texts()
        assert row[:10] == ["4 x 5", "BF16", "20", "1", "5", "25.00", "0", "0.500", "0.500", "0.500"]
        assert reader.page.evaluate("document.documentElement.scrollWidth") == width
        assert reader.complaints == []
        assert reader.asked == [path.as_uri()]


def test_json_is_still_all_that_stdout_gets(source, tmp_path):
    done = lamp(source, "--json", "--html", tmp_path / "model.html")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["tensors"]) == 5
    assert (tmp_path / "model.html").exists()


def test_a_folder_of_that_name_is_an_error_before_anything_is_read(tmp_path):
    done = lamp(tmp_path / "missing.safetensors", "--html", tmp_path)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {tmp_path} is a folder, and a page is a file\nhint: ")
    assert list(Path(tmp_path).iterdir()) == []
