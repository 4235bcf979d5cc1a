"""A page as one file: style, scripts, numbers, the plotting library, and a policy that forbids the rest."""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from lamplighter.report.page.markup import element
from lamplighter.version import __version__

_DANGEROUS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class Library:
    """The plotting library as the page carries it: compressed, and unpacked when the first chart comes into view.

    Args:
        packed: base64 of gzip.
        digest: of the script itself, by which the page allows it to run.
        version: as it calls itself.
    """

    packed: str
    digest: str
    version: str


@dataclass(frozen=True)
class Content:
    """What tells one page from another.

    Args:
        title: of the page; a text.
        about: below the title; a text.
        contents: the name of the list of contents, and its links; a text, and markup.
        main: everything below; markup.
        data: name -> what scripts read.
        scripts: the names of those that run, in the order in which they are joined.
    """

    title: str
    about: str
    contents: tuple[str, str]
    main: str
    data: Mapping[str, Any]
    scripts: Sequence[str]


def document(content: Content) -> bytes:
    """The file."""
    script, plotly = _joined(content.scripts), library()
    filled = Template(asset("page.html")).substitute(
        policy=escape(_policy(script, plotly)),
        style=asset("page.css"),
        title=escape(content.title),
        about=escape(content.about),
        listing=escape(content.contents[0]),
        contents=content.contents[1],
        main=content.main,
        data="".join(_embedded(name, data) for name, data in content.data.items()),
        packed=plotly.packed,
        script=script,
        version=__version__,
        plotly=escape(plotly.version),
    )
    return filled.encode()


def links(entries: Sequence[tuple[str, str, str]]) -> str:
    """A list of links: of each where to, what, and what is said of it in small print."""
    made = []
    for anchor, name, note in entries:
        small = f" {element('span', escape(note))}" if note else ""
        made.append(element("li", element("a", escape(name), small, href=f"#{anchor}")))
    return element("ul", *made)


def as_json(data: Any) -> str:  # noqa: ANN401
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_DANGEROUS)


def asset(name: str) -> str:
    """A file of the page."""
    return files("lamplighter.report.page").joinpath("assets", name).read_text("utf-8")


@cache
def library() -> Library:
    """The installed plotting library."""
    from plotly.offline import get_plotlyjs, get_plotlyjs_version  # noqa: PLC0415

    text: str = get_plotlyjs()
    packed = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    return Library(packed, _digest(text), get_plotlyjs_version())


def _joined(scripts: Sequence[str]) -> str:
    parts = "\n".join(asset(f"{name}.js") for name in scripts)
    return f"(() => {{\n{parts}}})();\n"


def _policy(script: str, plotly: Library) -> str:
    """What the browser may do for this page: run these two scripts, apply styles, and ask nobody for anything."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}' '{plotly.digest}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _embedded(name: str, data: Any) -> str:  # noqa: ANN401
    return element("script", as_json(data), type="application/json", id=name) + "\n"
