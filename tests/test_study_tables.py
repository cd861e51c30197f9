"""Tables of the studies from rows made by hand: texts, counts, medians, what is left out."""

from __future__ import annotations

import pandas as pd
import pytest
from harness import row

from benchmarks.drift_tables import STATED
from benchmarks.records import COLUMNS
from benchmarks.study_tables import STUDIES
from benchmarks.tables import Words, render

WORDS = Words(
    methods={"base": "Base", "expert": "Experts", "task_arithmetic": "Task Arithmetic",
             "ties": "TIES", "none": "-", "surgery": "Surgery", "featcal": "FeatCal"},
    tasks={"dtd": "DTD", "gtsrb": "GTSRB"},
    calibrators=("none", "surgery", "featcal"),
)  # fmt: skip
PARTS = ("drift_relative", "drift_cosine", "drift_tokens_l2", "drift_upstream", "drift_local")


def run(name, accuracy=(0.5, 0.7), *, drift=None, blocks=None, cost=None, **values):
    """Rows of one run.

    ``accuracy`` and ``drift`` (every stated metric that has no blocks) are per task; ``blocks``
    holds, per block, the drift of each task.
    """
    fields = {"run": name, "merger": "task_arithmetic", **values}
    if fields["merger"] in WORDS.references or values.get("calibrator", "none") == "none":
        fields |= {"n": 0, "split": ""}
    rows = []
    for task, score in zip(WORDS.tasks, accuracy, strict=True):
        rows.append(row(**fields, task=task, value=score))
    for task, value in zip(WORDS.tasks, drift or (), strict=bool(drift)):
        metrics = [m for m in STATED if not m.startswith("drift_")]
        rows += [row(**fields, task=task, metric=m, value=value) for m in metrics]
    for block, lengths in enumerate(blocks or ()):
        for task, value in zip(WORDS.tasks, lengths, strict=True):
            place = {**fields, "task": task, "block": str(block)}
            rows.append(row(**place, metric="drift_l2", value=value))
            rows += [row(**place, metric=metric, value=value / 4) for metric in PARTS]
    for metric, value in (cost or {}).items():
        rows.append(row(**fields, metric=metric, value=float(value)))
    return rows


SURGERY = {"calibrator": "surgery", "n": 8, "split": "train"}
FEATCAL = {"calibrator": "featcal", "n": 8, "split": "train"}

EFFICIENCY = pd.DataFrame(
    [
        *run("b", (0.3, 0.4), merger="base"),
        *run("e", (0.9, 0.8), merger="expert"),
        *run("t", (0.5, 0.7)),
        *run("f80", (0.6, 0.7), **FEATCAL, seed=0),
        *run("f81", (0.7, 0.8), **FEATCAL, seed=1),
        *run("f160", (0.8, 0.8), **(FEATCAL | {"n": 16}), seed=0),
        *run("f161", (0.8, 0.8), **(FEATCAL | {"n": 16}), seed=1),
        *run("s160", (0.5, 0.6), **(SURGERY | {"n": 16}), seed=0),
    ]
)  # fmt: skip
OUTSIDE, INSIDE = {"needs_task_id": 1}, {"needs_task_id": 0}
MERGED = ((1.0, 2.0), (3.0, 5.0))
DRIFT = pd.DataFrame(
    [
        *run("e", (0.9, 0.8), drift=(0.0, 0.0), merger="expert"),
        *run("t", (0.5, 0.7), drift=(0.8, 1.0), blocks=MERGED, cost=INSIDE),
        *run("s0", (0.6, 0.7), drift=(0.4, 0.6), blocks=MERGED, cost=OUTSIDE, **SURGERY),
        *run("s1", (0.6, 0.8), drift=(0.6, 0.6), blocks=MERGED, cost=OUTSIDE, **SURGERY, seed=1),
        *run("f", (0.7, 0.8), drift=(0.5, 0.7), blocks=((1.0, 1.5), (2.0, 5.5)), cost=INSIDE,
             **FEATCAL),
    ]
)  # fmt: skip


def timed(name, seconds, megabytes, *, accuracy=(0.6, 0.8), **values):
    cost = {
        "calibrate_seconds": seconds, "calibrate_encode_seconds": seconds / 2,
        "calibrate_fit_seconds": seconds / 4, "calibrate_rss_peak_bytes": megabytes * 1e6,
        "decode_seconds": 3.0, "load_seconds": 0.5,
    }  # fmt: skip
    return run(name, accuracy, drift=(0.2, 0.4), cost=cost, **values)


ANEW = SURGERY | {"calibrator_args": "recompute=true"}
RUNTIME = pd.DataFrame(
    [
        *timed("t", 0.0, 0),
        *timed("f1", 1.0, 10, **FEATCAL), *timed("f2", 2.0, 30, **FEATCAL),
        *timed("f3", 9.0, 20, **FEATCAL),
        *timed("s1", 5.0, 40, **SURGERY), *timed("s2", 4.0, 40, **SURGERY),
        *timed("a1", 40.0, 50, **ANEW), *timed("a2", 60.0, 50, **ANEW),
    ]
)  # fmt: skip
NOTHING = pd.DataFrame([], columns=COLUMNS)


def table(name, rows, form="md"):
    """The text table as dictionaries by the first column, in order."""
    frame = STUDIES[name].frame(rows, WORDS)
    lines = STUDIES[name].text(frame, WORDS, form).to_dict("records")
    return {next(iter(line.values())): line for line in lines}


# ---- sample efficiency


def test_a_cell_is_the_mean_and_the_spread_over_seeds_for_its_size():
    lines = table("sample_efficiency", EFFICIENCY)
    assert list(lines["Base"]) == ["Method", "none", "8", "16"]
    assert list(lines["Task Arithmetic + FeatCal"].values())[1:] == ["", "70.0 ± 7.1", "80.0 ± 0.0"]


def test_one_seed_has_no_spread_and_a_size_that_was_not_run_no_cell():
    line = table("sample_efficiency", EFFICIENCY)["Task Arithmetic + Surgery"]
    assert (line["8"], line["16"]) == ("", "55.0")


def test_references_and_the_merged_model_stand_in_the_column_of_no_calibration():
    lines = table("sample_efficiency", EFFICIENCY)
    found = {name: (line["none"], line["8"], line["16"]) for name, line in lines.items()}
    assert found["Base"] == ("35.0", "", "")
    assert found["Task Arithmetic"] == ("60.0", "", "")
    assert found["Experts"] == ("85.0", "", "")
    assert [*found][0] == "Base" and [*found][-1] == "Experts"  # noqa: RUF015


def test_the_latex_spells_plus_minus_as_latex_does():
    lines = table("sample_efficiency", EFFICIENCY, "tex")
    assert lines["Task Arithmetic + FeatCal"]["8"] == r"70.0 $\pm$ 7.1"


def test_the_caption_counts_seeds_of_calibrated_runs():
    assert "over 2 seeds" in STUDIES["sample_efficiency"].caption(EFFICIENCY, WORDS)


# ---- drift


def test_drift_is_that_of_the_last_block_averaged_over_tasks_and_seeds():
    lines = table("drift", DRIFT)
    calibrated = lines["Task Arithmetic + FeatCal"]
    assert (calibrated["n"], calibrated["Accuracy"]) == ("8", "75.0")
    assert calibrated["last block, L2"] == "3.750"  # 2 and 5.5; the first block is left out
    assert calibrated["last block, relative"] == "0.938"
    assert calibrated["feature, L2"] == "0.600"
    surgery = lines["Task Arithmetic + Surgery"]
    assert (surgery["Accuracy"], surgery["logits, L2"]) == ("67.5", "0.550")


def test_drift_counts_the_tasks_in_which_it_fell():
    lines = {name: line["Tasks with less"] for name, line in table("drift", DRIFT).items()}
    assert lines == {
        "Task Arithmetic": "", "Task Arithmetic + Surgery": "as merged",
        "Task Arithmetic + FeatCal": "1 of 2", "Experts": "",
    }  # fmt: skip


def test_experts_that_have_no_blocks_have_no_drift_of_blocks():
    line = table("drift", DRIFT)["Experts"]
    assert (line["last block, L2"], line["feature, L2"]) == ("", "0.000")


def test_without_the_merged_model_nothing_is_counted_as_fallen():
    frame = STUDIES["drift"].frame(DRIFT[DRIFT["run"] != "t"], WORDS)
    assert frame["tasks_below_merged"].isna().all()


def test_the_table_of_blocks_leaves_corrections_out():
    frame = STUDIES["drift_blocks"].frame(DRIFT, WORDS)
    assert frame[["calibrator", "block"]].values.tolist() == [
        ["featcal", 0], ["featcal", 1], ["none", 0], ["none", 1]
    ]  # fmt: skip


def test_the_table_of_blocks_holds_means_and_spreads_over_tasks():
    frame = STUDIES["drift_blocks"].frame(DRIFT, WORDS)
    assert frame["drift_l2"].tolist() == [1.25, 3.75, 1.5, 4.0]
    variances = (0.125, 6.125, 0.5, 2.0)
    assert frame["drift_l2_sd"].tolist() == pytest.approx([v**0.5 for v in variances])
    lines = STUDIES["drift_blocks"].text(frame, WORDS, "md").to_dict("records")
    assert (lines[1]["L2"], lines[1]["upstream"]) == ("3.750 ± 2.475", "0.938")


def test_blocks_are_ordered_by_number():
    rows = pd.DataFrame(run("t", blocks=[(float(b), float(b)) for b in range(12)]))
    frame = STUDIES["drift_blocks"].frame(rows, WORDS)
    assert frame["drift_l2"].tolist() == list(range(12)) == frame["block"].tolist()


# ---- run time


def test_times_are_medians_over_repeats_with_their_extremes():
    lines = table("runtime", RUNTIME)
    assert [*lines] == ["FeatCal", "Surgery", "Surgery (recompute=true)"]  # by time
    featcal = lines["FeatCal"]
    assert (featcal["Repeats"], featcal["Time (s)"]) == ("3", "2.00 (1.00 to 9.00)")
    assert (featcal["Encoding (s)"], featcal["Fitting (s)"]) == ("1.00", "0.50")
    assert lines["Surgery (recompute=true)"]["Time (s)"] == "50.0 (40.0 to 60.0)"


def test_memory_is_a_median_with_its_extremes():
    frame = STUDIES["runtime"].frame(RUNTIME, WORDS)
    ends = ["rss_peak_bytes_min", "rss_peak_bytes", "rss_peak_bytes_max"]
    assert frame.loc[0, ends].tolist() == [10e6, 20e6, 30e6]
    assert table("runtime", RUNTIME)["FeatCal"]["Memory (MB)"] == "20"


def test_times_are_compared_with_featcals_if_it_was_run():
    lines = table("runtime", RUNTIME)
    assert [x["Times FeatCal's"] for x in lines.values()] == ["1.00", "2.25", "25.00"]
    without = table("runtime", RUNTIME[RUNTIME["calibrator"] != "featcal"])
    assert {line["Times FeatCal's"] for line in without.values()} == {"not run"}


def test_what_was_not_measured_is_said_in_words():
    rows = RUNTIME[RUNTIME["metric"] != "calibrate_fit_seconds"]
    line = table("runtime", rows)["Surgery"]
    words = [line[name] for name in ("GPU memory (MB)", "Energy (J)", "Fitting (s)")]
    assert words == ["no GPU", "not readable", "not marked"]
    assert (line["Decoding (s)"], line["Loading (s)"]) == ("3.00", "0.50")


# ---- all of them


@pytest.mark.parametrize(
    ("name", "rows"),
    [("sample_efficiency", EFFICIENCY), ("drift", DRIFT), ("drift_blocks", DRIFT),
     ("drift_correlation", DRIFT), ("runtime", RUNTIME)],
)  # fmt: skip
def test_every_table_is_written_in_three_formats_without_a_bare_nan(name, rows):
    texts, frame = render(STUDIES[name], rows, WORDS), STUDIES[name].frame(rows, WORDS)
    assert list(texts) == ["csv", "md", "tex"]
    assert len(texts["csv"].splitlines()) == 1 + len(frame)
    lines = len(STUDIES[name].text(frame, WORDS, "md"))
    assert texts["md"].count("\n| ") == 1 + lines
    assert texts["tex"].count(r" \\") == 1 + lines
    for form, text in texts.items():
        assert "nan" not in text.lower(), form


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("rows", [NOTHING, pd.DataFrame([row(metric="other")])])
def test_without_its_rows_a_table_is_empty(name, rows):
    assert STUDIES[name].frame(rows, WORDS).empty
