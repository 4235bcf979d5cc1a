"""The report page in a real browser: it draws, answers to mouse and keyboard, and asks no network for anything."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from browsers import browser, reading
from lamplighter.cli.app import app
from lamplighter.experiments.recipes import find_recipe
from made_runs import SIZES, SPEC, make_runs

VGG = find_recipe("vgg16-cifar10", 0.05, "bf16").spec
ONCE = find_recipe("vgg16-cifar10-oneshot", 0.05, "bf16").spec
ROUNDS = range(10, 21)
SLOW = pytest.mark.slow
HOSTILE = "<script>alert(1)</script>"
METHOD = "'\"><img src=x onerror=alert(2)><i>x</i>"


def falling(top, seeds=3):
    """Seed -> round -> a value that falls with the rounds."""
    return {seed: {index: top - 0.01 * index + 0.001 * seed for index in ROUNDS} for seed in range(seeds)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A page of four groups: of the paper's, pruned at once, diverging, and named by somebody who means harm."""
    root = tmp_path_factory.mktemp("page")
    make_runs(root / "runs", VGG, dict.fromkeys(range(3), 0.95), {"lamp": falling(0.98), "erk": falling(0.96)})
    make_runs(root / "runs", ONCE, {}, {"lamp": {0: {12: 0.8, 14: 0.7}}})
    diverged = {"lamp": {0: {1: 70.0, 2: math.inf}, 1: {1: 71.0, 2: 99.0}}, "erk": {0: {1: 60.0, 2: 61.0}}}
    make_runs(root / "runs", replace(SPEC, recipe="words"), {}, diverged, metric="perplexity")
    harm = {"sizes": {HOSTILE: 1000, **SIZES}, "device": HOSTILE}
    make_runs(root / "runs", replace(SPEC, recipe=HOSTILE, model=HOSTILE), {}, {METHOD: {0: {1: 0.5, 2: 0.4}}}, **harm)
    done = CliRunner().invoke(app, ["report", str(root / "runs"), "-o", str(root / "report.html")])
    assert done.exit_code == 0, done.output
    assert done.stderr.split() == [str(root / "report.html")]
    return root


@pytest.fixture(scope="module")
def path(folder):
    return folder / "report.html"


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def opened(chromium, path):
    with reading(chromium, path) as found:
        yield found


@pytest.fixture
def reader(opened):
    """A page that is opened once for all tests, which leave it as they found it or say what they need."""
    opened.page.mouse.move(1, 1)
    yield opened
    assert opened.complaints == []


def group(reader, recipe):
    return reader.page.locator("section", has=reader.page.get_by_role("heading", level=2, name=recipe, exact=True))


def column(table, number):
    return [cell.strip() for cell in table.locator(f"tbody tr > :nth-child({number})").all_inner_texts()]


@pytest.mark.parametrize(
    ("width", "dark"),
    [(1280, False), (390, True), pytest.param(1280, True, marks=SLOW), pytest.param(390, False, marks=SLOW)],
)
def test_every_chart_is_drawn_without_a_complaint_and_without_a_network(chromium, path, width, dark):
    with reading(chromium, path, width=width, dark=dark) as reader:
        figures = reader.page.locator("figure").all()
        assert len(figures) == 16
        for figure in figures:
            reader.show(figure)
            assert figure.locator(".plot").bounding_box()["width"] <= width
        assert reader.complaints == []
        assert reader.asked == [path.as_uri()]
        assert reader.page.evaluate("document.documentElement.scrollWidth") == width
        ground = reader.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
        # Black would not be seen on a dark ground.
        marker = reader.page.locator(".chart-tradeoff .scatterlayer .trace .point").last
        assert marker.evaluate("e => getComputedStyle(e).fill") == ("rgb(255, 255, 255)" if dark else "rgb(0, 0, 0)")


def test_pointing_at_a_curve_shows_its_values(reader):
    figure = reader.show(group(reader, "vgg16-cifar10").locator(".chart-tradeoff"))
    said = reader.point_at(figure, 1.1529)
    assert said == ["1.15 % of the weights left", "erk 76.10 ± 0.10 (n=3)", "lamp 78.10 ± 0.10 (n=3)"]
    group(reader, "vgg16-cifar10").get_by_label("The paper's values").check()
    group(reader, "vgg16-cifar10").get_by_label("One-shot pruning").check()
    said = reader.point_at(figure, 1.1529, 0.6)
    assert said[3:] == ["erk, paper 90.55 ± 0.19", "lamp, paper 91.07 ± 0.40"]
    for box in group(reader, "vgg16-cifar10").locator(".chart-tradeoff input").all():
        box.uncheck()


def test_pointing_at_a_layer_names_it_and_says_what_each_method_keeps(reader):
    figure = reader.show(group(reader, "vgg16-cifar10").locator(".chart-survival"))
    assert reader.point_at(figure, 2) == [
        "layer 2",
        "last.weight: 9,000",
        "erk 1.2 %, 104 left",
        "lamp 1.2 %, 104 left",
    ]
    bars = reader.show(group(reader, "vgg16-cifar10").locator(".chart-budgets"))
    assert reader.point_at(bars, 50, 0.2)[0].startswith("erk, layer 2: last.weight")


def test_the_slider_moves_by_keyboard_and_all_of_its_group_follows(reader):
    mine = group(reader, "vgg16-cifar10")
    figure = reader.show(mine.locator(".chart-survival"))
    table, slider = mine.locator("[data-table=round] table"), mine.get_by_role("slider", name="Round")
    slider.fill("10")
    assert column(table, 2) == ["76.10", "78.10"]
    before = figure.locator(".scatterlayer").inner_html()
    slider.focus()
    reader.page.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "round 19, 1.44 % of the weights left"
    assert mine.locator("output").inner_text() == "19: 1.44 % left"
    table.get_by_text("round 19").wait_for()
    assert column(table, 2) == ["77.10", "79.10"]
    assert figure.locator(".scatterlayer").inner_html() != before
    reader.page.keyboard.press("Home")
    assert mine.locator("output").inner_text() == "10: 10.7 % left"
    reader.page.keyboard.press("End")


def test_a_click_on_a_curve_chooses_its_round(reader):
    mine = group(reader, "vgg16-cifar10")
    figure = reader.show(mine.locator(".chart-tradeoff"))
    reader.point_at(figure, 1.8)
    reader.page.mouse.click(*reader.place_of(figure, 1.8))
    assert mine.locator("output").inner_text() == "18: 1.80 % left"


def test_tables_are_sorted_by_key_and_by_click_and_say_so(reader):
    mine = group(reader, "vgg16-cifar10")
    table = mine.locator("table.results")
    head = table.get_by_role("columnheader", name="6.87")
    assert column(table, 1) == ["erk\npaper", "lamp\npaper"]
    head.get_by_role("button").focus()
    reader.page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(table, 1) == ["lamp\npaper", "erk\npaper"]
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(table, 1) == ["erk\npaper", "lamp\npaper"]
    name = table.get_by_role("columnheader", name="method")
    name.get_by_role("button").click()
    assert head.get_attribute("aria-sort") is None
    assert name.get_attribute("aria-sort") == "ascending"


def test_a_table_that_follows_the_slider_keeps_its_order(reader):
    mine = group(reader, "vgg16-cifar10")
    table = mine.locator("[data-table=round] table")
    table.get_by_role("button", name="mean").click()
    assert column(table, 1) == ["lamp", "erk"]
    mine.get_by_role("slider").fill("3")
    table.get_by_text("round 13").wait_for()
    assert column(table, 1) == ["lamp", "erk"]
    mine.get_by_role("slider").fill("10")


def test_every_number_is_in_a_table_that_is_made_when_it_is_opened(reader):
    mine = group(reader, "vgg16-cifar10")
    for kind, rows in (("all", 2 * len(ROUNDS)), ("layers", 2), ("runs", 9)):
        place = mine.locator(f"details[data-table={kind}]")
        assert place.locator("table").count() == 0
        place.locator("summary").click()
        place.locator("table").wait_for()
        assert place.locator("tbody tr").count() == rows
    every = mine.locator("details[data-table=all] tbody tr")
    assert every.first.locator("td").all_inner_texts() == [
        *("10.7", "10", "86.10", "± 0.10", "3", "\N{EN DASH}", "\N{EN DASH}"),
        *("86.00, 86.10, 86.20", "0"),
    ]
    assert every.nth(2).locator("td").all_inner_texts()[5:7] == ["92.34 ± 0.25", "\N{MINUS SIGN}8.24"]


def test_what_diverged_is_said_and_leaves_a_gap(reader):
    mine = group(reader, "words")
    assert column(mine.locator("[data-table=round] table"), 2) == ["61.00", "diverged"]
    assert "With 64.0 % of the weights left" not in mine.locator(".findings").inner_text()
    figure = reader.show(mine.locator(".chart-tradeoff"))
    assert figure.locator(".scatterlayer .point").count() == 3


def test_methods_can_be_left_out_of_the_charts(reader):
    mine = group(reader, "vgg16-cifar10")
    figure = reader.show(mine.locator(".chart-tradeoff"))
    assert figure.locator(".scatterlayer .trace:has(.point)").count() == 2
    mine.get_by_role("group", name="Methods shown").get_by_label("erk").uncheck()
    figure.locator(".scatterlayer .trace:has(.point)").nth(1).wait_for(state="detached")
    assert reader.point_at(figure, 1.1529) == ["1.15 % of the weights left", "lamp 78.10 ± 0.10 (n=3)"]
    mine.get_by_label("erk").check()


def test_names_that_are_markup_are_shown_as_they_are(reader):
    mine = group(reader, HOSTILE)
    reader.show(mine.locator(".chart-tradeoff"))
    assert METHOD in mine.locator("[data-table=round] tbody").inner_text()
    said = reader.point_at(mine.locator(".chart-tradeoff"), 64)
    assert said[1] == f"{METHOD} 40.00 (n=1)"
    figure = reader.show(mine.locator(".chart-survival"))
    assert reader.point_at(figure, 1)[:2] == ["layer 1", f"{HOSTILE}: 1,000"]
    mine.locator("details[data-table=runs] summary").click()
    assert reader.page.locator("img, body script:not([type]):not(:last-of-type)").count() == 0


def test_the_theme_follows_the_system_until_it_is_chosen(reader):
    ground = "getComputedStyle(document.body).backgroundColor"
    figure = reader.show(group(reader, "vgg16-cifar10").locator(".chart-tradeoff"))
    reader.page.get_by_role("button", name="Dark theme").click()
    assert reader.page.evaluate(ground) == "rgb(20, 23, 27)"
    marker = figure.locator(".scatterlayer .trace .point").last
    reader.page.wait_for_timeout(100)
    assert marker.evaluate("e => getComputedStyle(e).fill") == "rgb(255, 255, 255)"
    reader.page.reload()
    assert reader.page.evaluate(ground) == "rgb(20, 23, 27)"
    reader.page.get_by_role("button", name="Light theme").click()
    reader.page.emulate_media(color_scheme="dark")
    assert reader.page.evaluate(ground) == "rgb(255, 255, 255)"
    reader.page.emulate_media(color_scheme="light")


def test_it_can_be_walked_through_by_keyboard_and_by_landmarks(reader):
    page = reader.page
    page.reload()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    steps = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(each => Number(each.tagName[1]))")
    assert steps[0] == 1
    assert steps.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(steps))
    for tag in ("header", "nav", "main", "footer"):
        assert page.locator(f"body {tag}").count() == 1
    assert page.locator("figure:not(:has(figcaption))").count() == 0
    assert page.locator(".plot:not([role=img][aria-label])").count() == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator(".scroll:not([tabindex][aria-label])").count() == 0
    focused = group(reader, "vgg16-cifar10").get_by_role("slider")
    focused.focus()
    page.keyboard.press("ArrowLeft")
    assert focused.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"


def test_charts_far_away_wait_until_they_are_scrolled_to(reader):
    reader.page.evaluate("scrollTo(0, 0)")
    reader.page.reload()
    reader.page.wait_for_timeout(300)
    drawn = reader.page.locator(".plot:has(.main-svg)").count()
    assert drawn < reader.page.locator(".plot").count() / 2


def test_it_is_printed_light_and_whole(reader):
    reader.page.get_by_role("button", name="Dark theme").click()
    reader.show(group(reader, "vgg16-cifar10").locator(".chart-tradeoff"))
    reader.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert reader.page.locator(".plot:has(.main-svg)").count() == 16
    assert reader.page.evaluate("document.documentElement.dataset.theme") == "light"
    reader.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert reader.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert reader.page.pdf().startswith(b"%PDF")


def test_without_javascript_the_results_stand_there(chromium, path):
    with reading(chromium, path, java_script_enabled=False) as reader:
        assert reader.page.locator("noscript").is_visible()
        table = reader.page.locator("table.results").first
        assert table.is_visible()
        assert len(column(table, 2)) > 0
