"""The documentation builds as a site without a warning, and every page and picture it links to is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINK = re.compile(r'(?:href|src)="(?!https?:|data:|mailto:|#|/)([^"#?]+)')


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_link_between_pages_leads_somewhere(site):
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    assert {"index.html", "readme.html", "reference.html", "contributing.html"} <= {page.name for page in pages}
    for page in pages:
        for target in LINK.findall(page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_document_is_in_the_navigation(site):
    listed = (ROOT / "mkdocs.yml").read_text("utf-8")
    for document in (ROOT / "docs").glob("*.md"):
        assert f"- {document.name}" in listed, document.name


def test_the_reference_names_everything_that_is_public():
    import lamplighter as ll

    told = set(re.findall(r"^::: lamplighter\.(\w+)$", (ROOT / "docs" / "reference.md").read_text("utf-8"), re.M))
    assert told == set(ll.__all__) - {"__version__"}


def test_the_site_asks_for_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?://(?!127)', text), page.name
