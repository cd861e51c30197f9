"""Figures of the studies stand at the values of their rows; correlations that two of them show."""

from __future__ import annotations

import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import same_color
from test_study_tables import DRIFT, EFFICIENCY, NOTHING, RUNTIME, WORDS, run, table

from benchmarks.drift_tables import STATED
from benchmarks.figures import FIGURES, save
from benchmarks.study_tables import STUDIES
from benchmarks.style import colour

NAMES = ("sample_efficiency", "runtime", "drift", "drift_parts", "features", "drift_accuracy")
SURGERY = {"calibrator": "surgery", "n": 8, "split": "train"}


@pytest.fixture(autouse=True)
def closed():
    """Close whatever a test drew."""
    yield
    plt.close("all")


def by_label(artists):
    """Label → artist, for those that a legend would show."""
    return {a.get_label(): a for a in artists if not str(a.get_label()).startswith("_")}


def legend_of(figure):
    return {text.get_text() for legend in figure.legends for text in legend.get_texts()}


# ---- sample efficiency


def test_curves_stand_at_the_means_for_every_size():
    (axis,) = FIGURES["sample_efficiency"](EFFICIENCY, WORDS).axes
    lines = by_label(axis.lines)
    assert lines["FeatCal"].get_xydata().tolist() == [[8, pytest.approx(70)], [16, 80]]
    assert lines["Surgery"].get_xydata().tolist() == [[16, pytest.approx(55)]]
    assert same_color(lines["FeatCal"].get_color(), colour("featcal", WORDS))


def test_bands_reach_one_standard_deviation_up_and_down():
    (axis,) = FIGURES["sample_efficiency"](EFFICIENCY, WORDS).axes
    featcal, surgery = sorted(axis.collections, key=lambda band: len(band.get_paths()[0]))[::-1]
    corners = featcal.get_paths()[0].vertices
    at = {x: sorted({round(float(y), 4) for c, y in corners if c == x}) for x in (8.0, 16.0)}
    assert at == {8.0: [62.9289, 77.0711], 16.0: [80.0]}
    assert {round(float(y), 4) for _, y in surgery.get_paths()[0].vertices} == {55.0}


def test_base_merged_model_and_experts_are_lines_across():
    (axis,) = FIGURES["sample_efficiency"](EFFICIENCY, WORDS).axes
    lines = by_label(axis.lines)
    across = {name: line for name, line in lines.items() if name not in ("FeatCal", "Surgery")}
    assert {name: pytest.approx(list(line.get_ydata())) for name, line in across.items()} == {
        "Base": [35, 35], "Task Arithmetic, not calibrated": [60, 60], "Experts": [85, 85]
    }  # fmt: skip
    assert len({line.get_linestyle() for line in across.values()}) == 3


def test_sizes_are_on_a_logarithmic_axis_and_named():
    (axis,) = FIGURES["sample_efficiency"](EFFICIENCY, WORDS).axes
    assert axis.get_xscale() == "log"
    assert [t.get_text() for t in axis.get_xticklabels()] == ["8", "16"]
    assert axis.get_title(loc="left") == "mean of 2 seeds, band: ± 1 standard deviation"


def test_one_seed_makes_no_claim_about_a_spread():
    rows = EFFICIENCY[EFFICIENCY["seed"] == 0]
    (axis,) = FIGURES["sample_efficiency"](rows, WORDS).axes
    assert axis.get_title(loc="left") == ""


# ---- run time


def test_time_is_on_a_logarithmic_axis_and_memory_is_not():
    time, memory = FIGURES["runtime"](RUNTIME, WORDS).axes
    assert (time.get_xscale(), memory.get_xscale()) == ("log", "linear")


def test_points_stand_at_the_medians_and_bars_reach_the_extremes():
    time, memory = FIGURES["runtime"](RUNTIME, WORDS).axes
    for axis, middle, ends in ((time, 2.0, [1.0, 9.0]), (memory, 20.0, [10.0, 30.0])):
        point, _, (bar,) = by_label(axis.containers)["FeatCal"]
        assert point.get_xydata().tolist() == [[middle, pytest.approx(70)]]
        assert bar.get_segments()[0][:, 0].tolist() == pytest.approx(ends)


def test_what_encodes_every_batch_anew_is_hollow_in_the_colour_of_its_method():
    time, _ = FIGURES["runtime"](RUNTIME, WORDS).axes
    found = by_label(time.containers)
    full, hollow = found["Surgery"][0], found["Surgery (recompute=true)"][0]
    assert same_color(hollow.get_markerfacecolor(), "white")
    assert not same_color(full.get_markerfacecolor(), "white")
    assert same_color(full.get_color(), hollow.get_color())
    assert full.get_marker() == hollow.get_marker()


# ---- drift


def test_drift_is_a_curve_over_blocks_and_corrections_share_the_merged_models():
    left, _ = FIGURES["drift"](DRIFT, WORDS).axes
    lines = by_label(left.lines)
    assert {name: line.get_xydata().tolist() for name, line in lines.items()} == {
        "no calibration, and Surgery": [[0, 1.5], [1, 4.0]], "FeatCal": [[0, 1.25], [1, 3.75]]
    }  # fmt: skip


def test_the_band_of_drift_is_its_spread_over_tasks():
    left, _ = FIGURES["drift"](DRIFT, WORDS).axes
    reach = {round(float(y), 4) for band in left.collections for x, y in
             band.get_paths()[0].vertices if x == 1.0}  # fmt: skip
    spreads = ((4.0, 2.0), (3.75, 6.125))  # mean and variance
    assert reach == {round(mean + s * v**0.5, 4) for mean, v in spreads for s in (-1, 1)}


def test_bars_are_the_drift_of_the_final_feature_per_calibrator():
    _, right = FIGURES["drift"](DRIFT, WORDS).axes
    assert [bar.get_height() for bar in right.patches] == pytest.approx([0.9, 0.55, 0.6])
    names = [text.get_text() for text in right.get_xticklabels()]
    assert names == ["no calibration", "Surgery", "FeatCal"]


def test_the_two_parts_stack_up_to_the_drift():
    rows = DRIFT.copy()
    local = rows["metric"] == "drift_local"  # by hand 3/4 of the drift, upstream 1/4
    rows.loc[local, "value"] *= 3
    for axis in FIGURES["drift_parts"](rows, WORDS).axes:
        upstream, lower = (by_label(axis.containers)[name] for name in ("upstream", "local"))
        drift = by_label(axis.lines)["drift"].get_ydata()
        assert [bar.get_height() for bar in upstream] == pytest.approx(list(drift / 4))
        assert [bar.get_y() + bar.get_height() for bar in lower] == pytest.approx(list(drift))


def test_there_is_a_panel_of_parts_for_each_method_that_changes_blocks():
    figure = FIGURES["drift_parts"](DRIFT, WORDS)
    assert [a.get_title(loc="left") for a in figure.axes] == ["no calibration", "FeatCal"]


POINTS = pd.DataFrame(
    [
        {**line, "metric": f"tsne_{axis}", "task": "dtd", "block": f"{who}/{i}", "value": place}
        for who, first in (("merged", 0), ("calibrated", 10), ("expert", 20))
        for i in (0, 1)
        for axis, place in (("x", first + i), ("y", -first))
        for line in run("s0", **SURGERY)[:1]
    ]
)  # fmt: skip
FEATURES = pd.concat([DRIFT, POINTS], ignore_index=True)


def test_features_stand_at_their_places_and_the_title_says_how_the_cosine_changed():
    figure = FIGURES["features"](FEATURES, WORDS)
    (axis,) = figure.axes
    clouds = {name: c.get_offsets().tolist() for name, c in by_label(axis.collections).items()}
    assert clouds == {
        "merged": [[0, 0], [1, 0]], "calibrated": [[10, -10], [11, -10]],
        "expert": [[20, -20], [21, -20]],
    }  # fmt: skip
    assert axis.get_title(loc="left") == "Surgery\ncosine to expert 0.80 → 0.40"
    assert legend_of(figure) == set(clouds)


# ---- drift against accuracy


def rising(*accuracies):
    """Runs whose drift falls as their accuracy rises, except for cosines, which rise."""
    rows = []
    for number, accuracy in enumerate(accuracies):
        gap = 1 - accuracy
        rows += run(str(number), (accuracy, accuracy), drift=(gap, gap), blocks=((gap, gap),),
                    merger_args=f"scale={number}")  # fmt: skip
    frame = pd.DataFrame(rows)
    cosine = frame["metric"].isin(["drift_cosine", "feature_cosine"])
    return frame.assign(value=frame["value"].where(~cosine, 1 - frame["value"]))


def test_drift_that_falls_as_accuracy_rises_correlates_with_minus_one_and_cosine_with_one():
    frame = STUDIES["drift_correlation"].frame(rising(0.2, 0.4, 0.5, 0.8), WORDS)
    assert frame["metric"].tolist() == list(STATED)
    for _, line in frame.iterrows():
        sign = 1.0 if "cosine" in line["metric"] else -1.0
        kinds = ("pearson", "spearman", "kendall", "spearman_within_tasks",
                 "spearman_within_tasks_min")  # fmt: skip
        assert [line[kind] for kind in kinds] == pytest.approx([sign] * 5), line["metric"]


def test_correlations_are_over_runs_of_methods_alone():
    rows = pd.concat([rising(0.2, 0.4, 0.5, 0.8), DRIFT[DRIFT["merger"] == "expert"]])
    assert set(STUDIES["drift_correlation"].frame(rows, WORDS)["runs"]) == {4}


def test_within_tasks_the_weakest_task_is_shown_beside_the_mean():
    rows = rising(0.2, 0.4, 0.5, 0.8)
    one = (rows["task"] == "gtsrb") & (rows["metric"] == "accuracy")
    rows.loc[one, "value"] = [0.2, 0.4, 0.8, 0.5]  # the last two change places
    line = table("drift_correlation", rows)["last block, L2"]
    assert (line["Spearman within tasks, mean"], line["weakest"]) == ("-0.90", "-0.80")


def test_two_runs_are_no_correlation():
    assert STUDIES["drift_correlation"].frame(rising(0.2, 0.4), WORDS).empty
    assert len(STUDIES["drift_correlation"].frame(rising(0.2, 0.4, 0.5), WORDS)) == len(STATED)


def test_every_run_is_a_point_at_its_drift_and_accuracy():
    blocks, _, _ = FIGURES["drift_accuracy"](DRIFT, WORDS).axes
    points = sorted(line.get_xydata()[0].tolist() for line in blocks.lines)
    assert [p[0] for p in points] == [3.75, 4.0, 4.0, 4.0]  # FeatCal, merged, Surgery twice
    assert [p[1] for p in points] == pytest.approx([75, 60, 65, 70])


def test_the_title_is_the_rank_correlation_and_the_number_of_runs():
    figure = FIGURES["drift_accuracy"](rising(0.2, 0.4, 0.5, 0.8), WORDS)
    assert {axis.get_title(loc="left") for axis in figure.axes} == {"Spearman -1.00, 4 runs"}
    assert legend_of(figure) == {"no calibration", "Task Arithmetic"}


# ---- all of them

MADE = {"sample_efficiency": EFFICIENCY, "runtime": RUNTIME}


@pytest.mark.parametrize("name", NAMES)
def test_equal_rows_give_equal_files(name, tmp_path):
    rows = MADE.get(name, FEATURES)
    for folder in ("one", "two"):
        written = save(name, rows.copy(), WORDS, tmp_path / folder / "figure")
        assert [path.name for path in written] == ["figure.png", "figure.svg"]
    for form in ("png", "svg"):
        first, second = ((tmp_path / f / f"figure.{form}").read_bytes() for f in ("one", "two"))
        assert first == second
        assert len(first) > 5000


@pytest.mark.parametrize("name", NAMES)
def test_without_its_rows_a_figure_is_not_drawn(name, tmp_path):
    for rows in (NOTHING, EFFICIENCY[EFFICIENCY["n"] == 0]):
        assert FIGURES[name](rows, WORDS) is None
        assert save(name, rows, WORDS, tmp_path / "figure") == []
    assert list(tmp_path.iterdir()) == []
    assert plt.get_fignums() == []
