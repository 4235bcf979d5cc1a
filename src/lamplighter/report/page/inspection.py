"""The page of a checkpoint: its tensors with their zeros and magnitudes."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from lamplighter.report.page import markup
from lamplighter.report.page.document import Content, document, links
from lamplighter.report.page.markup import element

if TYPE_CHECKING:
    from lamplighter.checkpoint.inspection import Inspection, TensorReport

SCRIPTS = ("elements", "theme", "plotting", "views", "tables", "legend", "inspection")
# Of each chart: what it shows, how to read it, and what it is for those who do not see it.
CHARTS = {
    "zeros": (
        "How much of each tensor is zero.",
        "Tensors whose layers count by default are filled, others hollow; those that are not looked at have no mark.",
        "Chart of points: percent of each tensor that is zero; the table below has its values",
    ),
    "magnitudes": (
        "How large its other entries are.",
        "From the smallest magnitude to the largest that is neither zero nor infinite; the mark is the median.",
        "Chart of ranges: smallest, median and largest magnitude of each tensor; the table below has its values",
    ),
}


def inspection_page(found: "Inspection") -> bytes:
    """The file of an inspection."""
    title = f"What is in {PurePath(found.source).name or found.source}"
    contents = links([("summary", "At a glance", ""), ("tensors", "Tensors", ""), ("files", "Files", "")])
    main = "".join([_summary(found), _tensors(), _files(found)])
    return document(
        Content(title, _about(found), ("On this page", contents), main, {"inspected": _columns(found)}, SCRIPTS)
    )


def _about(found: "Inspection") -> str:
    tensors, size = len(found.tensors), sum(found.files.values())
    return f"{tensors:,} tensor{'' if tensors == 1 else 's'}, {size:,} bytes"


def _section(name: str, title: str, *inner: str) -> str:
    heading = element("h2", escape(title), id=f"{name}-title")
    return element("section", heading, *inner, id=name, class_="group", aria_labelledby=f"{name}-title")


def _summary(found: "Inspection") -> str:
    return _section("summary", "At a glance", markup.bullets(sentences(found), class_="findings"))


def sentences(found: "Inspection") -> Iterator[str]:
    """What there is to know before pruning."""
    counting = [tensor for tensor in found.tensors if tensor.layers]
    layers, weights = sum(tensor.layers for tensor in counting), sum(tensor.size for tensor in counting)
    yield f"{layers:,} layers of {weights:,} weights count by default.{_zeros(counting)}"
    entries = sum(tensor.size for tensor in found.tensors)
    yield f"All {len(found.tensors):,} tensors have {entries:,} entries.{_zeros(found.tensors)}"
    broken = [f"{tensor.name} ({tensor.nonfinite:,})" for tensor in found.tensors if tensor.nonfinite]
    if broken:
        yield f"NaN or infinite values: {', '.join(broken)}."
    if found.obstacle is not None:
        yield f"It cannot be pruned as it is: {found.obstacle}."


def _zeros(tensors: "Sequence[TensorReport]") -> str:
    seen = [(tensor.zeros, tensor.size) for tensor in tensors if tensor.zeros is not None]
    zeros, size = sum(each for each, _ in seen), sum(each for _, each in seen)
    unseen = f"; {len(tensors) - len(seen):,} of these tensors were not looked at" if len(seen) < len(tensors) else ""
    return f" Of these, {zeros:,} are zero ({100 * zeros / size:.2f} %){unseen}." if size else ""


def _tensors() -> str:
    figures = [markup.figure(kind, *texts) for kind, texts in CHARTS.items()]
    return _section("tensors", "Tensors", *figures, element("div", data_table="tensors"))


def _files(found: "Inspection") -> str:
    rows = [
        element("tr", element("th", escape(name), scope="row"), element("td", f"{size:,}", data_sort=str(size)))
        for name, size in found.files.items()
    ]
    head = element("tr", element("th", "File", scope="col"), element("th", "Bytes", scope="col"))
    caption = element("caption", "Files and their sizes", class_="unseen")
    table = element("table", caption, element("thead", head), element("tbody", *rows), class_="sortable")
    beside = markup.bullets(f"Not looked at: {name}" for name in found.left_out) if found.left_out else ""
    return _section("files", "Files", markup.scrolling(table, "Files"), beside)


def _columns(found: "Inspection") -> dict[str, list[Any]]:
    """The numbers, each name once."""
    names = ("name", "file", "dtype", "size", "layers", "zeros", "nonfinite", "smallest", "median", "largest")
    shapes = [" x ".join(map(str, tensor.shape)) for tensor in found.tensors]
    return {name: [getattr(tensor, name) for tensor in found.tensors] for name in names} | {"shape": shapes}
