"""A real browser without a window, that is let to no network: for tests of pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Nothing is looked up or fetched behind the page's back; root has no sandbox.
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-gpu"]


@contextmanager
def browser():
    """Chromium: LAMPLIGHTER_BROWSER, else the machine's own, else playwright's; without one the test is skipped."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        named = os.environ.get("LAMPLIGHTER_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
        path = Path(named or playwright.chromium.executable_path)
        if not path.exists():
            pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH, and playwright has none at {path}")
        root = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
        opened = playwright.chromium.launch(executable_path=path, args=[*QUIET, *root])
        yield opened
        opened.close()


class Reader:
    """A page that is being read: what it asked the network for, and what it complained about."""

    def __init__(self, context, path):
        self.asked, self.complaints = [], []
        self.page = context.new_page()
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type != "log" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.goto(path.as_uri())

    def show(self, place):
        """Bring a part of the page into view, below what sticks to the top; its chart is drawn."""
        place.evaluate("e => scrollTo({top: e.getBoundingClientRect().top + scrollY - 140, behavior: 'instant'})")
        if place.locator(".plot").count():
            place.locator(".plot .main-svg").first.wait_for()
        return place

    def place_of(self, figure, value, down=0.5):
        """The pixel of a value on a chart's horizontal axis, so far down of its height."""
        plot = figure.locator(".plot")
        across = plot.evaluate("(e, value) => e._fullLayout._size.l + e._fullLayout.xaxis.d2p(value)", value)
        box = plot.bounding_box()
        return box["x"] + across, box["y"] + down * box["height"]

    def point_at(self, figure, value, down=0.5):
        """Move the mouse over a chart; what it then says, line by line."""
        across, below = self.place_of(figure, value, down)
        for step in (2, 0):  # charts look at the mouse every now and then only
            self.page.mouse.move(across + step, below)
            self.page.wait_for_timeout(80)
        said = figure.locator(".hoverlayer text")
        said.first.wait_for()
        return [text for text in said.all_text_contents() if text]


@contextmanager
def reading(browser, path, *, width=1280, dark=False, **options) -> Iterator[Reader]:
    """Open a file in a browser of its own that cannot reach anything."""
    size = {"width": width, "height": 900}
    context = browser.new_context(
        viewport=size, color_scheme="dark" if dark else "light", offline=True, reduced_motion="reduce", **options
    )
    context.set_default_timeout(10_000)
    yield Reader(context, path)
    context.close()
