"""Tables of the three studies: sample efficiency, feature drift, run time."""

from __future__ import annotations

import pandas as pd

from .records import ALL
from .tables import (
    METHOD,
    PLUS_MINUS,
    Table,
    Words,
    accuracy_per_run,
    label,
    main_frame,
    only,
    percent,
    plain,
    size,
    transductive_note,
    values_per_run,
)

LINES = ("base", "expert")  # references that studies show
STATED = {  # metrics of one run in the order and words of the drift table
    "drift_l2": ("last block", "L2"),
    "drift_relative": ("last block", "relative"),
    "drift_cosine": ("last block", "cosine"),
    "feature_drift_l2": ("feature", "L2"),
    "feature_drift_relative": ("feature", "relative"),
    "feature_cosine": ("feature", "cosine"),
    "output_drift_l2": ("logits", "L2"),
}


def method_label(row: pd.Series, words: Words, form: str = "md") -> str:
    """Merger and calibrator in one cell; a reference by its own name."""
    text = label(words, row["merger"], row["merger_args"])
    if row["merger"] not in words.references and row["calibrator"] != "none":
        text += " + " + label(words, row["calibrator"], row["calibrator_args"])
    return plain(text, form)


def efficiency_text(frame: pd.DataFrame, words: Words, form: str) -> pd.DataFrame:
    """A line per method, a column per size: mean ± standard deviation over seeds, in percent."""
    sizes = sorted(set(frame["n"]) - {0, ALL})
    lines: dict[str, dict[str, str]] = {}
    for _, row in frame.iterrows():
        name = method_label(row, words, form)
        line = lines.setdefault(name, {"Method": name, "none": ""} | {str(n): "" for n in sizes})
        text = percent(row["average"])
        if row["seeds"] > 1:
            text += PLUS_MINUS[form] + percent(row["average_sd"])
        line[str(row["n"]) if row["n"] else "none"] = text
    return pd.DataFrame(lines.values())


def efficiency_caption(rows: pd.DataFrame, words: Words) -> str:
    """What the columns are."""
    seeds = rows[rows["n"] > 0]["seed"].nunique()
    return (
        f"Average accuracy in % over {len(words.tasks)} tasks of {only(rows, 'suite')} "
        f"({only(rows, 'backbone')}, {only(rows, 'evaluated_on')} split) against the number of "
        f"unlabelled calibration examples per task (columns; none: not calibrated). Mean ± sample "
        f"standard deviation over {seeds} seeds; within a seed smaller sets are parts of larger "
        "ones." + transductive_note(rows)
    )


def last_block(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows without the blocks' before the last one."""
    blocks = pd.to_numeric(rows["block"], errors="coerce")
    return rows[blocks.isna() | (blocks == blocks.max())]


def drift_per_task(rows: pd.DataFrame) -> pd.DataFrame:
    """A line per run and task: method, accuracy and every stated drift."""
    kept = last_block(rows[rows["metric"].isin(["accuracy", *STATED])])
    return (
        kept.pivot_table(index=["run", *METHOD, "seed", "task"], columns="metric", values="value")
        .reindex(columns=["accuracy", *STATED])
        .reset_index()
    )


def drift_frame(rows: pd.DataFrame, words: Words) -> pd.DataFrame:
    """Means over tasks and seeds; and in how many tasks the last block's drift fell."""
    per_task = drift_per_task(rows)
    if per_task.empty:
        return pd.DataFrame()
    order = main_frame(rows, words)[METHOD]
    means = per_task.groupby(METHOD, sort=False)[["accuracy", *STATED]].mean()
    plain_runs = per_task[per_task["calibrator"] == "none"]
    before = plain_runs.groupby(["merger", "merger_args", "task"])["drift_l2"].mean()
    counts = {}
    for key, group in per_task.groupby(METHOD, sort=False):
        after = group.groupby("task")["drift_l2"].mean()
        if key[2] != "none" and key[:2] in before.index:
            merged = before[key[0], key[1]]
            if not after.equals(merged):  # corrections leave all blocks as they are
                counts[key] = int((after < merged).sum())
    means["tasks_below_merged"] = pd.Series(counts, dtype="float").reindex(means.index)
    return order.merge(means.reset_index(), on=METHOD)


def drift_text(frame: pd.DataFrame, words: Words, form: str) -> pd.DataFrame:
    """Three decimals; accuracy in percent."""
    lines = []
    for _, row in frame.iterrows():
        fallen = row["tasks_below_merged"]
        lines.append(
            {
                "Method": method_label(row, words, form),
                "n": size(row),
                "Accuracy": percent(row["accuracy"]),
                **{f"{place}, {what}": _number(row[metric])
                   for metric, (place, what) in STATED.items()},
                "Tasks with less": _fallen(fallen, row, words),
            }
        )  # fmt: skip
    return pd.DataFrame(lines)


def drift_caption(rows: pd.DataFrame, words: Words) -> str:
    """What is compared, and on what."""
    return (
        f"Drift from each task's expert on {only(rows, 'suite')} ({only(rows, 'evaluated_on')} "
        "split, examples that no method saw): of the hidden state after the last block (at the "
        "token that the head reads), of the final projected feature (with the task's correction, "
        "if the method has one), and of the logits. Means over examples, tasks and seeds. "
        "Relative: L2 over the expert's norm. Tasks with less: in how many tasks the drift after "
        "the last block is below that of the merged model; a correction of the feature leaves all "
        "blocks as merged. The definitions are our reading of FeatCal's figure."
    )


def blocks_frame(rows: pd.DataFrame, _: Words) -> pd.DataFrame:
    """Every drift metric per method and block: mean over tasks and seeds, spread over tasks.

    Methods that correct the feature alone are left out: all their blocks are the merged model's.
    """
    outside = rows[(rows["metric"] == "needs_task_id") & (rows["value"] == 1)]["run"]
    kept = rows[(rows["block"] != "") & rows["metric"].str.startswith("drift_")]
    kept = kept[~kept["run"].isin(outside)]
    if kept.empty:
        return pd.DataFrame()
    per_task = kept.groupby([*METHOD, "block", "metric", "task"], sort=False)["value"].mean()
    grouped = per_task.groupby([*METHOD, "block", "metric"], sort=False)
    wide = pd.concat({"": grouped.mean(), "_sd": grouped.std(ddof=1)}, axis=1)
    wide = wide.unstack("metric")
    wide.columns = [f"{metric}{part}" for part, metric in wide.columns]
    frame = wide.reset_index()
    frame["block"] = pd.to_numeric(frame["block"])
    return frame.sort_values([*METHOD, "block"], ignore_index=True)


def blocks_text(frame: pd.DataFrame, words: Words, form: str) -> pd.DataFrame:
    """L2 with its spread, other lengths, and the two parts of the drift."""
    lines = []
    for _, row in frame.iterrows():
        lines.append(
            {
                "Method": method_label(row, words, form),
                "n": size(row),
                "Block": str(row["block"]),
                "L2": _number(row["drift_l2"]) + PLUS_MINUS[form] + _number(row["drift_l2_sd"]),
                "L2, mean over tokens": _number(row["drift_tokens_l2"]),
                "relative": _number(row["drift_relative"]),
                "cosine": _number(row["drift_cosine"]),
                "upstream": _number(row["drift_upstream"]),
                "local": _number(row["drift_local"]),
            }
        )
    return pd.DataFrame(lines)


def blocks_caption(rows: pd.DataFrame, words: Words) -> str:
    """What the parts are."""
    return (
        f"Drift of the hidden states after each block on {only(rows, 'suite')}; ± is the standard "
        "deviation over tasks. Upstream and local: the drift's two parts along its own direction, "
        "from the block's input and from the block's weights; they add up to L2."
    )


def correlation_frame(rows: pd.DataFrame, words: Words) -> pd.DataFrame:
    """How each drift goes with accuracy: over runs (averages over tasks), and within tasks."""
    per_task = drift_per_task(rows[~rows["merger"].isin(words.references)])
    if per_task["run"].nunique() < 3:
        return pd.DataFrame()
    averages = per_task.groupby("run")[["accuracy", *STATED]].mean()
    lines = []
    for metric in STATED:
        within = [
            group["accuracy"].corr(group[metric], method="spearman")
            for _, group in per_task.groupby("task")
        ]
        lines.append(
            {
                "metric": metric,
                "runs": int(averages[metric].notna().sum()),
                **{
                    kind: averages["accuracy"].corr(averages[metric], method=kind)
                    for kind in ("pearson", "spearman", "kendall")
                },
                "spearman_within_tasks": sum(within) / len(within),
                "spearman_within_tasks_min": min(within, key=abs),
            }
        )
    return pd.DataFrame(lines)


def correlation_text(frame: pd.DataFrame, words: Words, form: str) -> pd.DataFrame:
    """Two decimals."""
    return pd.DataFrame(
        {
            "Drift": ", ".join(STATED[row["metric"]]),
            "Runs": str(row["runs"]),
            "Pearson": f"{row['pearson']:.2f}",
            "Spearman": f"{row['spearman']:.2f}",
            "Kendall": f"{row['kendall']:.2f}",
            "Spearman within tasks, mean": f"{row['spearman_within_tasks']:.2f}",
            "weakest": f"{row['spearman_within_tasks_min']:.2f}",
        }
        for _, row in frame.iterrows()
    )


def correlation_caption(rows: pd.DataFrame, words: Words) -> str:
    """What is correlated."""
    return (
        f"Correlation of accuracy with drift over the merged and calibrated models of "
        f"{only(rows, 'suite')} (averages over tasks; within tasks: over models, one task at a "
        "time). Models that share a merger are not independent."
    )


def runtime_frame(rows: pd.DataFrame, words: Words) -> pd.DataFrame:
    """Medians and extremes over repeats of time and memory, and the ratio to FeatCal's time."""
    runs = accuracy_per_run(rows, words)
    runs = runs[~runs["merger"].isin(words.references) & (runs["calibrator"] != "none")]
    if runs.empty:
        return pd.DataFrame()
    for metric in ("seconds", "encode_seconds", "fit_seconds", "rss_peak_bytes",
                   "cuda_peak_bytes", "joules"):  # fmt: skip
        runs[metric] = runs["run"].map(values_per_run(rows, f"calibrate_{metric}"))
    for metric in ("decode_seconds", "load_seconds"):
        runs[metric] = runs["run"].map(values_per_run(rows, metric))
    gap = rows[rows["metric"] == "feature_drift_l2"].groupby("run")["value"].mean()
    runs["feature_drift_l2"] = runs["run"].map(gap)
    columns = ["average", "feature_drift_l2", "seconds", "encode_seconds", "fit_seconds",
               "decode_seconds", "load_seconds", "rss_peak_bytes", "cuda_peak_bytes",
               "joules"]  # fmt: skip
    grouped = runs.groupby(METHOD, sort=False)
    frame = grouped[columns].median()
    frame.insert(0, "repeats", grouped.size())
    for end in ("min", "max"):
        for metric in ("seconds", "rss_peak_bytes"):
            frame[f"{metric}_{end}"] = getattr(grouped[metric], end)()
    frame = frame.reset_index()
    reference = frame.loc[frame["calibrator"] == "featcal", "seconds"]
    frame["times_featcal"] = frame["seconds"] / reference.min() if len(reference) else float("nan")
    return frame.sort_values("seconds", ignore_index=True)


def runtime_text(frame: pd.DataFrame, words: Words, form: str) -> pd.DataFrame:
    """Seconds with one or two decimals, MB, and "not read" where there is no meter."""
    lines = []
    for _, row in frame.iterrows():
        low, high = _seconds(row["seconds_min"]), _seconds(row["seconds_max"])
        lines.append(
            {
                "Calibrator": plain(label(words, row["calibrator"], row["calibrator_args"]), form),
                "n": size(row),
                "Repeats": str(row["repeats"]),
                "Accuracy": percent(row["average"]),
                "Feature drift": f"{row['feature_drift_l2']:.4f}",
                "Time (s)": f"{_seconds(row['seconds'])} ({low} to {high})",
                "Encoding (s)": _seconds(row["encode_seconds"]),
                "Fitting (s)": _seconds(row["fit_seconds"]),
                "Times FeatCal's": "not run" if pd.isna(row["times_featcal"])
                else f"{row['times_featcal']:.2f}",
                "Memory (MB)": f"{row['rss_peak_bytes'] / 1e6:.0f}",
                "GPU memory (MB)": "no GPU" if pd.isna(row["cuda_peak_bytes"])
                else f"{row['cuda_peak_bytes'] / 1e6:.0f}",
                "Energy (J)": "not readable" if pd.isna(row["joules"]) else f"{row['joules']:.0f}",
                "Decoding (s)": _seconds(row["decode_seconds"]),
                "Loading (s)": _seconds(row["load_seconds"]),
            }
        )  # fmt: skip
    return pd.DataFrame(lines)


def runtime_caption(rows: pd.DataFrame, words: Words) -> str:
    """What is inside the timer."""
    return (
        f"Time and memory of calibrating one merged model of {only(rows, 'suite')} "
        f"({only(rows, 'backbone')}), after a warm-up, repeats of all methods taking turns in one "
        "process: median (least to most). Time is that of the method alone; it contains encoding "
        "(forward passes) and fitting, and not decoding the images nor loading the experts, which "
        "stand apart. recompute: every batch is encoded anew by both models, as in the authors' "
        "code; without it features are encoded once and kept, with the same result. Memory: peak "
        "of the process above its level at the start, nearly nothing where memory freed earlier "
        "is used again. Feature drift: L2 distance of the corrected feature from the expert's."
    )


def _fallen(count: float, row: pd.Series, words: Words) -> str:
    if pd.isna(count):
        calibrated = row["merger"] not in words.references and row["calibrator"] != "none"
        return "as merged" if calibrated else ""
    return f"{count:.0f} of {len(words.tasks)}"


def _seconds(value: float) -> str:
    return "not marked" if pd.isna(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _number(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.3f}"


STUDIES = {
    "sample_efficiency": Table(efficiency_caption, main_frame, efficiency_text),
    "drift": Table(drift_caption, drift_frame, drift_text),
    "drift_blocks": Table(blocks_caption, blocks_frame, blocks_text),
    "drift_correlation": Table(correlation_caption, correlation_frame, correlation_text),
    "runtime": Table(runtime_caption, runtime_frame, runtime_text),
}
