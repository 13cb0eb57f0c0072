from __future__ import annotations

import pytest
from matplotlib.text import Text

from unmask.experiments import drawing
from unmask.experiments.audit import Trail
from unmask.experiments.flip_rate import curve
from unmask.experiments.stats import Estimate


def exactly(value):
    return Estimate(value, value, value)


@pytest.mark.parametrize("accuracies", [(0.0, 100.0), (30.0, 90.0, 95.0), (0.0,), (100.0,)])
def test_every_accuracy_is_inside_the_frame(tmp_path, accuracies):
    figure, [axes] = drawing.panels(1)
    found = {f"method {one:g}": (exactly(10.0), exactly(one)) for one in accuracies}
    drawing.points(axes, found)
    assert drawing.save_png(figure, tmp_path / "figure.png").stat().st_size > 0
    low, high = axes.get_ylim()
    assert low < min(accuracies)
    assert max(accuracies) < high


def test_bars_to_one_side_leave_room_behind_zero():
    _, [axes] = drawing.panels(1)
    drawing.bars(axes, {"a": Estimate(-5, -6, -4)}, ["#000000"], label="points", zero=True)
    low, high = axes.get_xlim()
    assert low < -6
    assert high > 0


def test_every_method_has_a_colour_and_a_marker_of_its_own_and_its_forms_share_them():
    own = {name: drawing.look(name) for name in drawing.METHODS}
    assert len({look["color"] for look in own.values()}) == len(own)
    assert len({look["marker"] for look in own.values()}) == len(own)
    assert not {look["color"] for look in own.values()} & {colour for colour, _ in drawing.TASKS}
    for form, name in {"LESS, released": "LESS", "Threshold 0.9": "Threshold", "WINO": ""}.items():
        assert drawing.method(form) == name
        assert all(drawing.look(form)[key] == own[name][key] for key in ("color", "marker"))


def test_a_long_message_stays_as_wide_as_its_panel():
    figure, axes = drawing.panels(2)
    drawing.title(axes[0], "model", "LESS at c = 0.75 " * 9)
    figure.draw_without_rendering()
    assert axes[0].texts[0].get_window_extent().width < figure.bbox.width / 2


def test_a_name_stands_by_its_own_point():
    figure, [axes] = drawing.panels(1)
    axes.plot([10, 11, 90], [50, 50, 0], "o")
    drawing.name_points(figure, axes, {"left": (10, 50), "right": (11, 50)})
    figure.draw_without_rendering()
    left, right = (Text.get_window_extent(text) for text in axes.texts)
    assert left.x1 < right.x0


def test_a_name_stands_once_in_a_legend():
    figure, [axes] = drawing.panels(1)
    for x in (1, 2, 3):
        axes.plot([x], [x], "o", label="first" if x == 1 else "others")
    drawing.legend(figure, axes)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["first", "others"]


def test_a_part_of_a_trajectory_knows_how_many_samples_it_stands_on():
    long = Trail(flips=[1] * 20, watched=[2] * 20)
    short = Trail(flips=[0, 0], watched=[2, 0])
    shares = curve([long, short])
    assert shares[0] == (25.0, 2)
    assert shares[10] == (50.0, 1)  # the short one had nothing to watch there
    assert {share.samples for share in shares[1:]} == {1}
