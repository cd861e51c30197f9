"""Tables from rows made by hand: golden text, averages, spreads, what is missing, captions."""

from __future__ import annotations

import pandas as pd
import pytest
from harness import row

from benchmarks.tables import TABLES, Words, main_frame, render

WORDS = Words(
    methods={"base": "Base", "expert": "Experts", "average": "Average", "ties": "TIES",
             "none": "-", "featcal": "FeatCal"},
    tasks={"dtd": "DTD", "gtsrb": "GTSRB"},
    calibrators=("none", "featcal"),
)  # fmt: skip
TIES = {"merger": "ties", "merger_args": "density=0.1,scale=1.0"}
CALIBRATED = {"merger": "average", "calibrator": "featcal", "n": 8, "split": "train"}


def run(name, scores, *, seconds=None, added=None, **values):
    """Rows of one run: a score and a size per task, its time, and what it adds to the model."""
    rows = []
    for task, score in scores.items():
        rows.append(row(run=name, task=task, value=score, **values))
        rows.append(row(run=name, task=task, value=100.0, metric="examples", **values))
    if seconds is not None:
        rows.append(row(run=name, metric="merge_seconds", value=0.25, **values))
        rows.append(row(run=name, metric="calibrate_seconds", value=seconds - 0.25, **values))
    if added is not None:
        rows.append(row(run=name, metric="added_parameters", value=float(added), **values))
        rows.append(row(run=name, metric="needs_task_id", value=float(added > 0), **values))
    return rows


def scores(dtd, gtsrb):
    return {"dtd": dtd, "gtsrb": gtsrb}


ROWS = pd.DataFrame(
    [
        *run("c1", scores(0.60, 0.90), seconds=2.0, seed=1, added=16384, **CALIBRATED),
        *run("e", scores(0.80, 0.99), merger="expert"),
        *run("c0", scores(0.50, 0.80), seconds=1.0, seed=0, added=16384, **CALIBRATED),
        *run("t", scores(0.55, 0.60), seconds=0.5, **TIES),
        *run("a", scores(0.45, 0.70), seconds=0.25, added=0, merger="average"),
        *run("b", scores(0.4, 0.3), added=0, merger="base"),
    ]
)  # fmt: skip

MARKDOWN = """\
Accuracy in % on the test split of toy (tiny; images: DTD 100, GTSRB 100). n: unlabelled \
calibration examples per task, from the train split. Mean over seeds; ± is the sample standard \
deviation of the average over seeds (one per calibration set and draw). Time: median seconds of \
merging and calibrating, without loading, decoding and scoring. Hyperparameters in parentheses \
differ from a method's defaults. Task id: whether inference must be told the task. Added: \
parameters kept beside the merged model, of all tasks together. Bold: best merged model by \
average.

| Merger                        | Calibrator   | n     | Seeds   | DTD      | GTSRB    | Average        | Time (s)   | Task id   | Added   |
|:------------------------------|:-------------|:------|:--------|:---------|:---------|:---------------|:-----------|:----------|:--------|
| Base                          |              |       | 1       | 40.0     | 30.0     | 35.0           |            |           |         |
| Average                       | -            |       | 1       | 45.0     | 70.0     | 57.5           | 0.2        | no        | 0       |
| **Average**                   | **FeatCal**  | **8** | **2**   | **55.0** | **85.0** | **70.0 ± 7.1** | **1.5**    | **yes**   | **16k** |
| TIES (density=0.1, scale=1.0) | -            |       | 1       | 55.0     | 60.0     | 57.5           | 0.5        |           |         |
| Experts                       |              |       | 1       | 80.0     | 99.0     | 89.5           |            |           |         |
"""  # noqa: E501

CSV = """\
merger,merger_args,calibrator,calibrator_args,n,split,evaluated_on,seeds,dtd,dtd_sd,gtsrb,gtsrb_sd,average,average_sd,seconds,needs_task_id,added_parameters
base,,none,,0,,test,1,0.4,,0.3,,0.35,,,0,0
average,,none,,0,,test,1,0.45,,0.7,,0.575,,0.25,0,0
average,,featcal,,8,train,test,2,0.55,0.0707107,0.85,0.0707107,0.7,0.0707107,1.5,1,16384
ties,"density=0.1,scale=1.0",none,,0,,test,1,0.55,,0.6,,0.575,,0.5,,
expert,,none,,0,,test,1,0.8,,0.99,,0.895,,,,
"""

LATEX_LINES = r"""
\resizebox{\textwidth}{!}{%
\begin{tabular}{llllllllll}
Merger & Calibrator & n & Seeds & DTD & GTSRB & Average & Time (s) & Task id & Added \\
Base &  &  & 1 & 40.0 & 30.0 & 35.0 &  &  &  \\
Average & - &  & 1 & 45.0 & 70.0 & 57.5 & 0.2 & no & 0 \\
\textbf{Average} & \textbf{FeatCal} & \textbf{8} & \textbf{2} & \textbf{55.0} & \textbf{85.0} & \textbf{70.0 $\pm$ 7.1} & \textbf{1.5} & \textbf{yes} & \textbf{16k} \\
TIES (density=0.1, scale=1.0) & - &  & 1 & 55.0 & 60.0 & 57.5 & 0.5 &  &  \\
Experts &  &  & 1 & 80.0 & 99.0 & 89.5 &  &  &  \\
\end{tabular}}
"""  # noqa: E501


def frame_of(rows, words=WORDS):
    return main_frame(pd.DataFrame(rows), words)


def cells(rows, words=WORDS, form="md"):
    """The text table as a list of dictionaries."""
    return TABLES["main"].text(frame_of(rows, words), words, form).to_dict("records")


def test_the_markdown_is_this_text():
    assert render(TABLES["main"], ROWS, WORDS)["md"].rstrip("\n") == MARKDOWN.rstrip("\n")


def test_the_csv_is_this_text_in_fractions():
    assert render(TABLES["main"], ROWS, WORDS)["csv"] == CSV


def test_the_latex_holds_these_lines_in_order():
    text = render(TABLES["main"], ROWS, WORDS)["tex"]
    lines = [line for line in text.splitlines() if not line.startswith((r"\caption",))]
    wanted = LATEX_LINES.strip().splitlines()
    assert [line for line in lines if line in wanted] == wanted
    assert r"Accuracy in \% on the test split" in text
    assert r"$\pm$ is the sample standard deviation" in text


def test_the_order_of_the_rows_changes_nothing():
    shuffled = ROWS.sample(frac=1, random_state=0)
    assert render(TABLES["main"], shuffled, WORDS) == render(TABLES["main"], ROWS, WORDS)


def test_the_average_is_over_tasks_of_each_run_and_its_spread_over_averages():
    rows = [
        *run("0", scores(0.2, 0.8), seed=0, **CALIBRATED),
        *run("1", scores(0.4, 0.6), seed=1, **CALIBRATED),
        *run("2", scores(0.6, 0.4), seed=2, **CALIBRATED),
    ]
    (line,) = frame_of(rows).to_dict("records")
    assert (line["dtd"], line["dtd_sd"]) == pytest.approx((0.4, 0.2))
    assert (line["average"], line["average_sd"]) == pytest.approx((0.5, 0.0))
    assert cells(rows)[0]["Average"] == "**50.0 ± 0.0**"


def test_only_tasks_of_the_table_enter_an_average():
    rows = [*run("0", scores(0.2, 0.8)), row(run="0", task="average", value=0.99)]
    assert frame_of(rows)["average"].tolist() == [0.5]


def test_one_seed_has_no_spread():
    (line,) = frame_of(run("0", scores(0.2, 0.8))).to_dict("records")
    assert pd.isna(line["average_sd"])
    assert "±" not in cells(run("0", scores(0.2, 0.8)))[0]["Average"]


def test_a_task_that_one_method_lacks_is_not_run_nor_is_its_average():
    rows = [*run("0", {"dtd": 0.5}), *run("1", scores(0.2, 0.4), merger="ties")]
    first, second = cells(rows)
    assert (first["DTD"], first["GTSRB"], first["Average"]) == ("50.0", "not run", "not run")
    assert second["Average"] == "**30.0**"


def test_a_task_that_no_method_has_is_not_run():
    (line,) = cells(run("0", {"dtd": 0.5}))
    assert (line["DTD"].strip("*"), line["GTSRB"].strip("*")) == ("50.0", "not run")
    assert line["Average"].strip("*") == "not run"


def test_the_time_is_the_median_of_merging_and_calibrating_together():
    rows = [
        r
        for seed, seconds in enumerate((1.0, 2.0, 30.0))
        for r in run(str(seed), scores(0.5, 0.5), seconds=seconds, seed=seed, **CALIBRATED)
    ]
    assert frame_of(rows)["seconds"].tolist() == [2.0]


def test_two_best_rows_are_both_bold_and_references_never():
    rows = [
        *run("0", scores(0.2, 0.4)),
        *run("1", scores(0.4, 0.2), merger="ties"),
        *run("2", scores(0.9, 0.9), merger="base"),
    ]
    assert [line["Merger"] for line in cells(rows)] == ["Base", "**Average**", "**TIES**"]


def test_methods_stand_in_the_given_order_uncalibrated_first_sizes_rising():
    rows = [
        *run("0", scores(0.2, 0.4), merger="ties"),
        *run("1", scores(0.2, 0.4), **(CALIBRATED | {"n": 64})),
        *run("2", scores(0.2, 0.4), **CALIBRATED),
        *run("3", scores(0.2, 0.4), merger="average"),
        *run("4", scores(0.2, 0.4), **CALIBRATED, calibrator_args="rho=3.0"),
    ]
    lines = [(line["Merger"], line["Calibrator"], line["n"]) for line in cells(rows)]
    plain = [tuple(text.strip("*") for text in line) for line in lines]
    assert plain == [
        ("Average", "-", ""), ("Average", "FeatCal", "8"), ("Average", "FeatCal", "64"),
        ("Average", "FeatCal (rho=3.0)", "8"), ("TIES", "-", ""),
    ]  # fmt: skip


def test_cross_experts_do_not_enter_the_main_table():
    rows = [*run("0", scores(0.2, 0.4)), *run("1", scores(1, 1), merger="cross_expert")]
    assert frame_of(rows)["merger"].tolist() == ["average"]


def test_notes_stand_below_the_table_and_in_the_latex_caption():
    words = Words(WORDS.methods, WORDS.tasks, notes=("Warning: 50 % of it.", "Runs: a_b."))
    text = render(TABLES["main"], ROWS, words)
    assert text["md"].endswith("|\n\nWarning: 50 % of it.\n\nRuns: a_b.\n")
    assert r"Warning: 50 \% of it. Runs: a\_b." in text["tex"]


def test_the_caption_says_on_which_split_and_how_many_images():
    rows = pd.DataFrame(run("0", scores(0.2, 0.4), evaluated_on="validation"))
    caption = TABLES["main"].caption(rows, WORDS)
    assert "on the validation split of toy (tiny; images: DTD 100, GTSRB 100)" in caption


def test_the_caption_names_the_split_of_calibration_examples_only_if_there_were_any():
    text = TABLES["main"].caption(ROWS, WORDS)
    assert "unlabelled calibration examples per task, from the train split" in text
    without = TABLES["main"].caption(pd.DataFrame(run("0", scores(0.2, 0.4))), WORDS)
    assert "from the none used split" not in without


def test_titles_with_signs_that_latex_reads_are_escaped():
    words = Words(WORDS.methods, {"dtd": "R&D", "gtsrb": "GTSRB_1"})
    cross = run("1", scores(1, 1), merger="cross_expert", merger_args="expert=dtd")
    rows = pd.DataFrame([*run("0", scores(0.2, 0.4)), *cross])
    for table in TABLES.values():
        text = render(table, rows, words)["tex"]
        assert r"R\&D & GTSRB\_1 & Average" in text


CROSS = pd.DataFrame(
    [
        *run("b", scores(0.1, 0.2), merger="base"),
        *run("g", scores(0.3, 0.9), merger="cross_expert", merger_args="expert=gtsrb"),
        *run("d", scores(0.8, 0.4), merger="cross_expert", merger_args="expert=dtd"),
        *run("x", scores(0.7, 0.7)),
    ]
)  # fmt: skip


def test_the_matrix_of_experts_has_the_base_below_and_own_tasks_in_bold():
    text = render(TABLES["cross_experts"], CROSS, WORDS)["md"]
    lines = [
        [c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line
    ]
    assert lines[0] == ["Expert", "DTD", "GTSRB", "Average"]
    assert lines[2:] == [
        ["DTD", "**80.0**", "40.0", "60.0"],
        ["GTSRB", "30.0", "**90.0**", "60.0"],
        ["Base", "10.0", "20.0", "15.0"],
    ]


def test_the_matrix_of_experts_as_csv_holds_fractions():
    assert render(TABLES["cross_experts"], CROSS, WORDS)["csv"].splitlines()[1:] == [
        "dtd,0.8,0.4,0.6", "gtsrb,0.3,0.9,0.6", "base,0.1,0.2,0.15"
    ]  # fmt: skip


def test_the_average_of_an_expert_that_lacks_a_task_is_not_run():
    rows = CROSS[~((CROSS["run"] == "g") & (CROSS["task"] == "dtd"))]
    text = render(TABLES["cross_experts"], rows, WORDS)["md"]
    (line,) = [line for line in text.splitlines() if line.startswith("| GTSRB")]
    assert [c.strip() for c in line.split("|")[2:-1]] == ["not run", "**90.0**", "not run"]
