"""A hook of mkdocs: brings the documents that stand outside this folder into the site, and turns links to them."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
# Where each document stands in the repository, and in the site.
PAGES = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "results/README.md": "results/index.md",
}
# What has no page: shown as the text of its link alone.
PLAIN = {"LICENSE"}
_LINK = re.compile(r"(?P<before>\[(?P<text>[^\]]*)\]\()(?P<target>[^)#:\s]+)(?P<rest>#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:  # noqa: ANN401
    """Add the documents and the pictures they show."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text("utf-8")))
    for picture in sorted((ROOT / "results" / "report").glob("*.png")):
        files.append(File.generated(config, f"results/report/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401
    """Links between documents, as they are in the repository, to where they lead in the site."""
    homes = {target: source for source, target in PAGES.items()}
    here = page.file.src_uri
    source = homes.get(here, f"docs/{here}")

    def turned(link: re.Match[str]) -> str:
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["target"]))
        if wanted in PLAIN:
            return link["text"]
        place = PAGES.get(wanted, wanted.removeprefix("docs/"))
        relative = posixpath.relpath(place, posixpath.dirname(here) or ".")
        return f"{link['before']}{relative}{link['rest'] or ''})"

    return _LINK.sub(turned, markdown)
