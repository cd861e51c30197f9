"""Figures show the values of the rows, and are written whole and the same every time."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
from harness import files_under
from matplotlib import pyplot as plt
from test_tables import CALIBRATED, CROSS, ROWS, WORDS, run, scores

from benchmarks import figures
from benchmarks.figures import FIGURES, save


@pytest.fixture(autouse=True)
def closed():
    """Close whatever a test drew."""
    yield
    plt.close("all")


def heights(axis):
    return [[round(bar.get_height(), 6) for bar in group] for group in axis.containers
            if hasattr(group, "patches")]  # fmt: skip


def reference_lines(axis):
    return {
        lines.get_label(): [round(float(s[0][1]), 6) for s in lines.get_segments()]
        for lines in axis.collections
        if lines.get_label() in ("Base", "Experts")
    }


def test_bars_and_lines_stand_at_the_values():
    figure = FIGURES["accuracy"](ROWS, WORDS)
    average, ties = figure.axes
    assert heights(average) == [[45.0, 70.0, 57.5], [55.0, 85.0, 70.0]]
    assert heights(ties) == [[55.0, 60.0, 57.5]]
    for axis in figure.axes:
        assert reference_lines(axis) == {"Experts": [80.0, 99.0, 89.5], "Base": [40.0, 30.0, 35.0]}


def test_every_bar_stands_over_its_own_task():
    axis, bottom = FIGURES["accuracy"](ROWS, WORDS).axes
    ticks = [label.get_text() for label in bottom.get_xticklabels()]
    assert ticks == ["DTD", "GTSRB", "Average"]
    for group in axis.containers:
        places = [bar.get_x() + bar.get_width() / 2 for bar in getattr(group, "patches", ())]
        assert [round(place) for place in places] == list(range(len(places)))


def test_error_bars_are_the_spreads_over_seeds_and_absent_for_one_seed():
    axis = FIGURES["accuracy"](ROWS, WORDS).axes[0]
    plain, calibrated = (g for g in axis.containers if hasattr(g, "patches"))
    assert plain.errorbar is None
    (bars,) = calibrated.errorbar.lines[2]
    lengths = [(upper[1] - lower[1]) / 2 for lower, upper in bars.get_segments()]
    assert lengths == pytest.approx([7.0710678] * 3)


def test_panels_are_titled_and_the_axis_says_n_and_seeds():
    figure = FIGURES["accuracy"](ROWS, WORDS)
    assert [a.get_title(loc="left") for a in figure.axes] == [
        "Average", "TIES (density=0.1, scale=1.0)"
    ]  # fmt: skip
    assert figure.axes[-1].get_xlabel() == (
        "n = 8 calibration images per task, 2 seeds; error bars: standard deviation over seeds"
    )
    assert figure.axes[0].get_ylabel() == "accuracy (%)"
    (legend,) = figure.legends
    assert {t.get_text() for t in legend.get_texts()} == {
        "no calibration", "FeatCal", "Base", "Experts"
    }  # fmt: skip


def test_only_the_largest_calibration_set_is_drawn():
    rows = pd.concat([ROWS, pd.DataFrame(run("n", scores(0.9, 0.9), **(CALIBRATED | {"n": 64})))])
    axis = FIGURES["accuracy"](rows, WORDS).axes[0]
    assert heights(axis) == [[45.0, 70.0, 57.5], [90.0, 90.0, 90.0]]
    assert "n = 64" in axis.figure.axes[-1].get_xlabel()


def test_the_legend_names_a_variant_that_the_first_panel_lacks():
    rows = [
        *run("0", scores(0.2, 0.4)),
        *run("1", scores(0.2, 0.4), merger="ties"),
        *run("2", scores(0.3, 0.5), **(CALIBRATED | {"merger": "ties"})),
    ]
    figure = FIGURES["accuracy"](pd.DataFrame(rows), WORDS)
    (legend,) = figure.legends
    assert "FeatCal" in {text.get_text() for text in legend.get_texts()}


def test_the_same_variant_has_the_same_colour_in_every_panel():
    rows = [
        *run("0", scores(0.2, 0.4)),
        *run("1", scores(0.3, 0.5), **CALIBRATED),
        *run("2", scores(0.3, 0.5), **(CALIBRATED | {"merger": "ties"})),
    ]
    first, second = FIGURES["accuracy"](pd.DataFrame(rows), WORDS).axes
    assert first.patches[3].get_facecolor() == second.patches[0].get_facecolor()
    assert first.patches[0].get_facecolor() != second.patches[0].get_facecolor()


def test_the_bars_of_the_chosen_settings_stand_for_a_calibrator():
    words = dataclasses.replace(WORDS, chosen={"featcal": "ridge=0.1", "none": ""})
    rows = [
        *run("0", scores(0.2, 0.4)),
        *run("1", scores(0.3, 0.5), **CALIBRATED),
        *run("2", scores(0.4, 0.6), **CALIBRATED, calibrator_args="ridge=0.1"),
    ]
    (axis,) = FIGURES["accuracy"](pd.DataFrame(rows), words).axes
    assert heights(axis) == [[20.0, 40.0, 30.0], [40.0, 60.0, 50.0]]


def test_the_matrix_shows_every_expert_on_every_task():
    figure = FIGURES["cross_experts"](CROSS, WORDS)
    axis = figure.axes[0]
    assert [t.get_text() for t in axis.texts] == ["80", "40", "30", "90", "10", "20"]
    assert axis.images[0].get_array().tolist() == [[80, 40], [30, 90], [10, 20]]
    assert [t.get_text() for t in axis.get_yticklabels()] == ["DTD", "GTSRB", "Base"]
    assert [t.get_text() for t in axis.get_xticklabels()] == ["DTD", "GTSRB"]


@pytest.mark.parametrize(("name", "rows"), [("accuracy", ROWS), ("cross_experts", CROSS)])
def test_equal_rows_give_equal_files_and_no_others(name, rows, tmp_path):
    for folder in ("one", "two"):
        written = save(name, rows.copy(), WORDS, tmp_path / folder / "figure")
        assert [path.name for path in written] == ["figure.png", "figure.svg"]
        assert files_under(tmp_path / folder) == ["figure.png", "figure.svg"]
    for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        first, second = ((tmp_path / f / f"figure.{form}").read_bytes() for f in ("one", "two"))
        assert first == second
        assert first.startswith(start)
        assert len(first) > 5000
    assert plt.get_fignums() == []


def test_other_rows_give_another_file(tmp_path):
    changed = ROWS.assign(value=ROWS["value"].where(ROWS["run"] != "a", 0.1))
    texts = [
        save("accuracy", rows, WORDS, tmp_path / name)[1].read_bytes()
        for name, rows in (("one", ROWS), ("two", changed))
    ]
    assert texts[0] != texts[1]


def test_a_failed_drawing_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch):
    save("accuracy", ROWS, WORDS, tmp_path / "figure")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(figure, path, **_):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figures.Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        save("accuracy", ROWS, WORDS, tmp_path / "figure")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_drawing_leaves_the_callers_style_alone(tmp_path):
    before = dict(plt.rcParams)
    save("accuracy", ROWS, WORDS, tmp_path / "figure")
    assert {k: v for k, v in plt.rcParams.items() if k != "backend"} == {
        k: v for k, v in before.items() if k != "backend"
    }
