"""`lamp report -o NAME.html`: the page, where else tables and figures are made."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from lamplighter.cli.app import app
from made_runs import SPEC, make_runs


def lamp(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def runs(tmp_path):
    make_runs(tmp_path / "runs", SPEC, {}, {"lamp": {0: {1: 0.9}}})
    return tmp_path / "runs"


@pytest.mark.parametrize("name", ["report.html", "new/folder/REPORT.HTML"])
def test_a_name_that_ends_in_html_makes_one_page(runs, tmp_path, name):
    out = tmp_path / "out" / name
    done = lamp(runs, "-o", out)
    assert done.exit_code == 0, done.output
    assert done.stderr == f"{out}\n"
    assert "mine: 500 + 400 steps, fp32" in done.stdout
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert out.read_bytes().startswith(b"<!doctype html>")


def test_the_page_is_of_the_recipes_that_are_asked_for(runs, tmp_path):
    make_runs(runs, replace(SPEC, recipe="other"), {}, {"lamp": {0: {1: 0.9}}})
    out = tmp_path / "report.html"
    done = lamp(runs, "-o", out, "-r", "other", "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert (data["files"], [each["recipe"] for each in data["results"]]) == ([str(out)], ["other"])
    assert ">mine<" not in out.read_text("utf-8")


def test_a_folder_of_that_name_is_an_error(runs, tmp_path):
    (tmp_path / "report.html").mkdir()
    done = lamp(runs, "-o", tmp_path / "report.html")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {tmp_path / 'report.html'} is a folder")
    assert "hint: give another name that ends in .html" in done.stderr


def test_the_page_needs_plotly_and_says_so(runs, tmp_path, monkeypatch):
    from lamplighter import optional

    there = optional.importlib.util.find_spec
    monkeypatch.setattr(optional.importlib.util, "find_spec", lambda name: None if name == "plotly" else there(name))
    done = lamp(runs, "-o", tmp_path / "report.html")
    assert done.exit_code == 1
    assert "lamp report needs plotly" in done.stderr
    assert 'hint: pip install "lamplighter[report]"' in done.stderr
    assert not (tmp_path / "report.html").exists()
