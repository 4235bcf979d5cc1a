"""The page of results shows what its command makes of the records beside it."""

from pathlib import Path

import pytest

from lamplighter.experiments.store import find_runs
from lamplighter.report.bundle import contents, sections
from lamplighter.report.results import collect

RESULTS = Path(__file__).parent.parent.parent / "results"


@pytest.fixture(scope="module")
def made():
    results = collect(find_runs(RESULTS / "runs"))
    return {name: content for section in sections(results) for name, content in contents(section, results).items()}


def test_every_table_is_on_the_page_as_it_comes(made):
    page = (RESULTS / "README.md").read_text("utf-8")
    tables = {name: content for name, content in made.items() if name.endswith(".md")}
    assert tables
    for name, content in tables.items():
        text = content.decode() if isinstance(content, bytes) else content
        _, _, body = text.partition("\n\n")
        assert body.strip() in page, name
        assert (RESULTS / "report" / name).read_text("utf-8") == text


def test_every_figure_that_there_is_is_one_of_the_records(made):
    kept = {path.name for path in (RESULTS / "report").iterdir()}
    assert kept <= set(made)


def test_no_record_comes_from_a_changed_checkout():
    lines = [path.read_text("utf-8") for path in (RESULTS / "runs").rglob("provenance.jsonl")]
    assert lines
    assert not any('+"' in line for line in lines)
