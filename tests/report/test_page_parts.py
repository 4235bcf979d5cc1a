"""What the report page is made of: its sentences, its numbers, where they come from, and how they are embedded."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from lamplighter.experiments.recipes import find_recipe
from lamplighter.experiments.store import PROVENANCE, append_line, find_runs
from lamplighter.report.bundle import sections
from lamplighter.report.figures import STYLES
from lamplighter.report.page import assembly, inspection
from lamplighter.report.page.assembly import page
from lamplighter.report.page.document import as_json, asset, library
from lamplighter.report.page.looks import looks
from lamplighter.report.page.markup import element
from lamplighter.report.page.numbers import layers, numbers
from lamplighter.report.page.origins import by_setting, listed, origins, runs_of, seconds
from lamplighter.report.page.sentences import differences, findings
from lamplighter.report.results import counted, grouped
from made_runs import SIZES, SPEC, make_run, make_runs

VGG = find_recipe("vgg16-cifar10", 0.05, "bf16").spec


def made(root):
    """The sections of a folder of runs, and its runs."""
    runs = counted(find_runs(root))
    return sections(grouped(runs)), runs


def only(root):
    (section,), _ = made(root)
    return section


def found(html, name):
    """The data of an embedded script."""
    return json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', html, re.DOTALL)[1])


def contrast(one, other):
    """As the accessibility guidelines define it: 1 to 21."""

    def luminance(colour):
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
        return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_numbers_are_lists_over_rounds_with_the_papers_beside_them(tmp_path):
    make_runs(tmp_path, VGG, {0: 0.9}, {"lamp": {0: {11: 0.9, 12: 0.8}, 1: {12: 0.81}}, "mine:f": {0: {12: 0.5}}})
    data = numbers(only(tmp_path), [])
    assert data["rounds"] == (11, 12)
    assert data["heads"] == ["8.59", "6.87"]
    assert data["dense"] == [90.0, None, 1, [90.0]]
    mine, lamp = data["methods"]
    assert (mine["name"], mine["cells"], mine["paper"]) == ("mine:f", [None, [50.0, None, 1, [50.0]]], None)
    assert lamp["cells"] == [[90.0, None, 1, [90.0]], [80.5, pytest.approx(0.5**0.5), 2, [80.0, 81.0]]]
    assert lamp["paper"] == [None, [92.24, 0.24]]
    assert data["oneshot"] is None


def test_what_diverged_has_no_number(tmp_path):
    make_runs(tmp_path, SPEC, {}, {"lamp": {0: {1: math.inf}, 1: {1: 70.0}}}, metric="perplexity")
    (lamp,) = numbers(only(tmp_path), [])["methods"]
    assert lamp["cells"] == [[None, None, 2, [None, 70.0]]]


def test_layers_are_means_over_seeds_and_emptied_ones_are_counted(tmp_path):
    for seed, budgets in enumerate(({"first.weight": 0, "last.weight": 9}, {"first.weight": 1, "last.weight": 9})):
        make_run(tmp_path, replace(SPEC, method="uniform", seed=seed), {2: 0.5}, budgets={2: budgets})
    make_run(tmp_path, replace(SPEC, method="lamp"), {1: 0.5})
    section = only(tmp_path)
    data = layers(section.results)
    assert (data["names"], data["sizes"]) == (list(SIZES), list(SIZES.values()))
    assert data["kept"] == {"uniform": [None, [0.5, 9]], "lamp": [[800, 7200], None]}
    assert [method["emptied"] for method in numbers(section, [])["methods"]] == [[None, 1], [0, None]]


def test_the_one_shot_counterpart_is_named_by_its_place(tmp_path):
    make_runs(tmp_path, SPEC, {}, {"lamp": {0: {1: 0.9, 2: 0.8}}})
    make_runs(tmp_path, replace(SPEC, recipe="once", plan="one-shot"), {}, {"lamp": {0: {2: 0.7}}})
    both, _ = made(tmp_path)
    assert [numbers(section, both)["oneshot"] for section in both] == [1, None]


def test_it_is_said_who_is_best_and_how_often(tmp_path):
    make_runs(tmp_path, SPEC, {}, {"erk": {0: {1: 0.9, 2: 0.5}}, "lamp": {0: {1: 0.8, 2: 0.7, 3: 0.6}}})
    assert findings(only(tmp_path).results) == [
        "With 64.0 % of the weights left, lamp has the highest mean test accuracy (%): 70.00 (n=1); next is erk: "
        "50.00 (n=1).",
        "Times that a method's mean is the best, out of 2 densities: erk 1, lamp 1.",
    ]


def test_the_lowest_perplexity_is_the_best_and_what_diverged_is_not_compared(tmp_path):
    values = {"erk": {0: {1: 60.0, 2: math.nan}}, "lamp": {0: {1: 50.0, 2: 70.0}}}
    make_runs(tmp_path, SPEC, {}, values, metric="perplexity")
    (said,) = findings(only(tmp_path).results)
    assert said == (
        "With 80.0 % of the weights left, lamp has the lowest mean test perplexity: 50.00 (n=1); "
        "next is erk: 60.00 (n=1)."
    )


def test_methods_that_are_level_are_said_to_be(tmp_path):
    make_runs(tmp_path, SPEC, {}, {"erk": {0: {1: 0.1}}, "lamp": {0: {1: 0.1}}})
    assert findings(only(tmp_path).results) == [
        "With 80.0 % of the weights left, erk and lamp are level at 10.00 (n=1)."
    ]


def test_it_is_said_what_differs_from_the_paper(tmp_path):
    spec = replace(VGG, retrain=replace(VGG.retrain, lr=0.1))
    make_runs(tmp_path, spec, {}, {"lamp": {0: dict.fromkeys(range(1, 29), 0.5)}})
    assert differences(only(tmp_path).results) == [
        "Pruned networks trained for 2,000 steps where the paper has 40,000: 0.05 of the length.",
        "Trained in bf16, the recipe in fp32.",
        "retrain.lr is 0.1, in the recipe 0.0003.",
        "1 seed where the paper has 5. No deviation is known; small differences may be chance.",
        "Not run: global, uniform, uniform+, erk.",
        "2 of 30 densities are still to be made.",
    ]


def test_a_whole_experiment_at_full_length_differs_in_nothing(tmp_path):
    recipe = find_recipe("vgg16-cifar10-oneshot")
    seeds = {seed: dict.fromkeys(recipe.rounds, 0.5) for seed in range(5)}
    make_runs(tmp_path, recipe.spec, {}, dict.fromkeys(recipe.methods, seeds))
    assert differences(only(tmp_path).results) == []


def test_an_experiment_of_ones_own_is_said_to_be_one(tmp_path):
    make_runs(tmp_path, SPEC, {}, {"lamp": {0: {1: 0.5}}})
    assert differences(only(tmp_path).results) == ["This is not one of the paper's experiments."]


def test_the_runs_behind_a_group_are_its_own_and_the_dense_ones_it_starts_from(tmp_path):
    make_runs(tmp_path, SPEC, {0: 0.9}, {"lamp": {0: {1: 0.8}}, "erk": {1: {1: 0.8}, 0: {1: 0.8}}})
    make_runs(tmp_path, replace(SPEC, rate=0.5), {}, {"lamp": {0: {1: 0.8}}})
    groups, runs = made(tmp_path)
    behind = [runs_of(section.results, by_setting(runs)) for section in groups]
    lists = [[each[:3] for each in listed(found, tmp_path)] for found in behind]
    assert sorted(lists, key=len) == [
        [["dense", 0, 0], ["lamp", 0, 1]],
        [["dense", 0, 0], ["erk", 0, 1], ["erk", 1, 1], ["lamp", 0, 1]],
    ]
    assert seconds(behind[0][0]) == 180.0  # 360 for two side by side


def test_origins_are_told_apart_and_counted_and_half_a_line_is_passed_over(tmp_path):
    for seed, lines in enumerate((["a", "b"], ["a", "a"], [])):
        run = make_run(tmp_path, replace(SPEC, method="lamp", seed=seed), {1: 0.5})
        for commit in lines:
            append_line(run.folder / PROVENANCE, json.dumps({"commit": commit, "threads": 2, "data": None}) + "\n")
        with (run.folder / PROVENANCE).open("a", encoding="utf-8") as file:
            file.write('{"comm')
    _, runs = made(tmp_path)
    known = [(each.about["commit"], each.about["threads"], each.about["data"], each.runs) for each in origins(runs)]
    assert known == [("a", "2", "", 2), ("b", "2", "", 1), ("", "", "", 1)]


def test_a_commit_is_there_whole_and_said_to_be_changed_if_it_was(tmp_path):
    commit = "0123456789" * 4
    run = make_run(tmp_path, replace(SPEC, method="lamp"), {1: 0.5})
    append_line(run.folder / PROVENANCE, json.dumps({"commit": f"{commit}+", "device": "NVIDIA H200"}) + "\n")
    html = page(*made(tmp_path), tmp_path).decode()
    assert f">{commit}</code> and changes</td>" in html
    assert "<td>NVIDIA H200</td>" in html


def test_numbers_are_embedded_once_and_cannot_end_their_script(tmp_path):
    name = "</script><script>alert(1)</script>"
    sizes = {name: 1_234_567, **SIZES}
    make_runs(tmp_path, replace(SPEC, recipe=name), {}, {name: {0: {1: 0.123456}}}, sizes=sizes, device=name)
    html = page(*made(tmp_path), tmp_path).decode()
    assert found(html, "numbers-0")["methods"][0]["name"] == name
    assert found(html, "layers-0")["names"][0] == name
    assert "<script>alert" not in html
    assert html.count("1234567") == html.count("987654") == 1
    assert html.count("<script") == html.count("</script>") == 6


def test_everything_is_in_the_file_and_its_policy_allows_two_scripts_alone(tmp_path):
    make_runs(tmp_path, SPEC, {}, {"lamp": {0: {1: 0.5}}})
    html = page(*made(tmp_path), tmp_path).decode()
    addresses = []

    class Addresses(HTMLParser):
        def handle_starttag(self, tag, attributes):
            addresses.extend(value for name, value in attributes if name in ("src", "href", "action", "data", "srcset"))

    Addresses().feed(html)
    assert all(address.startswith(("#", "data:,")) for address in addresses)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert policy.count("sha256-") == 2
    assert "unsafe-eval" not in policy
    assert len(html) < 2_500_000


def test_the_same_records_make_the_same_page(tmp_path):
    make_runs(tmp_path, SPEC, {}, {"lamp": {0: {1: 0.5}}})
    assert page(*made(tmp_path), tmp_path) == page(*made(tmp_path), tmp_path)


def test_json_has_no_signs_that_mean_something_to_html():
    text = "</script>&\u2028<!--"
    assert json.loads(as_json(text)) == text
    assert not set("<>&\u2028") & set(as_json(text))
    with pytest.raises(ValueError):
        as_json(math.nan)


def test_attributes_are_escaped():
    assert element("p", "a", title="\"'<&", class_="x", aria_label="y") == (
        '<p title="&quot;&#x27;&lt;&amp;" class="x" aria-label="y">a</p>'
    )


def test_methods_differ_in_more_than_colour_and_are_seen_on_both_grounds():
    strangers = [f"mine:{letter}" for letter in "abcdef"]
    known = looks([*STYLES, *strangers])
    assert len({(look["symbol"], look["dash"]) for look in known.values()}) == len(known)
    for look in known.values():
        assert contrast(look["light"], "#ffffff") > 3
        assert contrast(look["dark"], "#14171b") > 3


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_ground(place):
    pairs = dict(re.findall(r"--(\w+): light-dark\(([^)]*)\)", asset("page.css")))
    colours = {name: pair.split(", ")[place] for name, pair in pairs.items()}
    for text in ("ink", "soft", "accent"):
        for ground in ("ground", "raised", "glow"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


def test_every_script_of_the_package_is_on_the_page():
    from importlib.resources import files

    kept = {path.name for path in files("lamplighter.report.page").joinpath("assets").iterdir()}
    assert kept == {f"{name}.js" for name in assembly.SCRIPTS + inspection.SCRIPTS} | {"page.html", "page.css"}
    assert library().version.count(".") == 2
