"""Figures: what they show, and that they are written whole or not at all."""

import pytest

from lamplighter.report import figures
from lamplighter.report.figures import Curve, percent

LINES = {
    "lamp": Curve([1.0, 0.8, 0.64], [[99, 98], [97, 98], [90, 92]]),
    "mine": Curve([1.0, 0.8, 0.64], [[99, 98], [96, 94], [50, 60]]),
}


def test_densities_are_printed_as_the_paper_prints_them():
    assert [percent(0.8**rounds) for rounds in (0, 3, 12, 18, 21, 30)] == [
        "100",
        "51.2",
        "6.87",
        "1.80",
        "0.92",
        "0.12",
    ]


def test_curves_draw_the_mean_of_the_trials_with_the_sparse_end_to_the_right():
    axes = figures.curves(LINES, "accuracy", "title").axes[0]
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines if not line.get_label().startswith("_")}
    assert drawn == {"lamp": [98.5, 97.5, 91.0], "mine": [98.5, 95.0, 55.0]}
    assert axes.get_xscale() == "log"
    assert axes.xaxis_inverted()


def test_methods_are_told_apart_without_colour():
    looks = [(style.marker, style.dashes) for style in figures.STYLES.values()]
    assert len({marker for marker, _ in looks}) == len({dashes for _, dashes in looks}) == len(looks)


def test_layers_has_a_panel_for_each_density_and_draws_empty_layers():
    survival = {0.5: {"lamp": [0.6, 0.4]}, 0.1: {"lamp": [0.3, 0.0]}}
    panels = figures.layers(["conv", "linear"], survival, "title").axes
    assert [axes.get_title() for axes in panels] == ["50.0 % of all weights", "10.0 % of all weights"]
    low = panels[1].lines[0].get_ydata()
    assert 0 < low[1] < 0.3
    assert panels[0].get_yticklabels()[-1].get_text() == "none"


@pytest.mark.parametrize("width", [3.0, 7.0])
def test_a_long_heading_stays_within_the_figure(width):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 3.0), layout="constrained")
    figures.set_heading(figure, "vgg16-cifar10: 50,000 + 40,000 steps, bf16, retrain.weight_decay 0.0001, width 8")
    figures.rendered(figure, "png", dpi=figure.dpi)
    box = figure.texts[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert "\n" in figure.texts[0].get_text()


def test_a_figure_is_saved_whole(tmp_path):
    path = tmp_path / "new" / "curves.png"
    figures.save(figures.curves(LINES, "accuracy", "title"), path)
    assert [p.name for p in path.parent.iterdir()] == ["curves.png"]


def test_a_failed_save_leaves_the_earlier_file_and_nothing_else(tmp_path):
    path = tmp_path / "curves.bogus"
    path.write_text("earlier", encoding="utf-8")
    with pytest.raises(ValueError, match="bogus"):
        figures.save(figures.curves(LINES, "accuracy", "title"), path)
    assert path.read_text(encoding="utf-8") == "earlier"
    assert len(list(tmp_path.iterdir())) == 1
