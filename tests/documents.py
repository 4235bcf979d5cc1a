"""The documents as tests see them: fenced blocks, commands, links."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = ("python", "console", "text")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document.

    Args:
        document: the file it stands in.
        line: where its opening fence stands, counted from 1.
        language: what the fence is tagged with.
        text: what stands between the fences.
        output: the text block that follows with nothing in between, which is what a python block prints.
    """

    document: Path
    line: int
    language: str
    text: str
    output: str | None = None

    @property
    def place(self) -> str:
        return f"{self.document.name}:{self.line}"


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, in order; each python block with its output."""
    found = list(_fences(document))
    ends = {block: block.line + block.text.count("\n") + 1 for block in found}
    lines = document.read_text(encoding="utf-8").splitlines()
    shown = {}
    for block, after in pairwise(found):
        apart = any(line.strip() for line in lines[ends[block] : after.line - 1])
        if block.language == "python" and after.language == "text" and not apart:
            shown[block] = after.text
    return [Block(b.document, b.line, b.language, b.text, shown.get(b)) for b in found]


def _fences(document: Path) -> Iterator[Block]:
    opened, language, inside = 0, "", []
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), start=1):
        if not opened and line.startswith("```"):
            opened, language, inside = number, line[3:].strip(), []
        elif opened and line == "```":
            yield Block(document, opened, language, "".join(f"{each}\n" for each in inside))
            opened = 0
        elif opened:
            inside.append(line)
    assert not opened, f"{document.name}:{opened}: this block never ends"


def commands(document: Path) -> list[str]:
    """The commands of a document's console blocks: what stands behind `$ `, without comments."""
    lines = [line for block in blocks(document) if block.language == "console" for line in block.text.splitlines()]
    return [re.sub(r"\s+#.*", "", line.removeprefix("$ ")) for line in lines if line.startswith("$ ")]


def prose(document: Path) -> str:
    """A document without its blocks."""
    return re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def quoted(document: Path) -> list[str]:
    """What stands in `backticks` in the running text."""
    return [" ".join(found.split()) for found in re.findall(r"(?<!`)`([^`]+)`", prose(document))]


def links(document: Path) -> list[str]:
    """What the document links to or shows, within the repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(document))
    return [target.partition("#")[0] for target in targets if "://" not in target]
