"""Tables of the drift study: per method, per block, and the correlation with accuracy."""

from __future__ import annotations

import pandas as pd

from .tables import (
    METHOD,
    PLUS_MINUS,
    Table,
    Words,
    main_frame,
    method_label,
    only,
    percent,
    size,
)

STATED = {  # metrics of one run in the order and words of the drift table
    "drift_l2": ("last block", "L2"),
    "drift_relative": ("last block", "relative"),
    "drift_cosine": ("last block", "cosine"),
    "feature_drift_l2": ("feature", "L2"),
    "feature_drift_relative": ("feature", "relative"),
    "feature_cosine": ("feature", "cosine"),
    "output_drift_l2": ("logits", "L2"),
}


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


def corrected_runs(rows: pd.DataFrame) -> set[str]:
    """Runs that correct the feature alone: all their blocks are the merged model's."""
    return set(rows[(rows["metric"] == "needs_task_id") & (rows["value"] == 1)]["run"])


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
        inside = set(group["run"]).isdisjoint(corrected_runs(rows))
        if key[2] != "none" and key[:2] in before.index and inside:
            counts[key] = int((after < before[key[0], key[1]]).sum())
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
    kept = rows[(rows["block"] != "") & rows["metric"].str.startswith("drift_")]
    kept = kept[~kept["run"].isin(corrected_runs(rows))]
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


def correlation(left: pd.Series, right: pd.Series, kind: str) -> float:
    """The correlation, NaN without a warning where one side does not vary."""
    if left.nunique() < 2 or right.nunique() < 2:
        return float("nan")
    return left.corr(right, method=kind)


def correlation_frame(rows: pd.DataFrame, words: Words) -> pd.DataFrame:
    """How each drift goes with accuracy: over runs (averages over tasks), and within tasks."""
    per_task = drift_per_task(rows[~rows["merger"].isin(words.references)])
    if per_task["run"].nunique() < 3:
        return pd.DataFrame()
    per_task = per_task.dropna(axis=1, how="all")  # e.g. a suite without scores
    averages = per_task.groupby("run")[["accuracy", *STATED]].mean()
    lines = []
    for metric in [name for name in STATED if name in averages]:
        within = pd.Series(
            correlation(group["accuracy"], group[metric], "spearman")
            for _, group in per_task.groupby("task")
        ).dropna()
        lines.append(
            {
                "metric": metric,
                "runs": int(averages[metric].notna().sum()),
                **{
                    kind: correlation(averages["accuracy"], averages[metric], kind)
                    for kind in ("pearson", "spearman", "kendall")
                },
                "spearman_within_tasks": within.mean(),
                "spearman_within_tasks_min": min(within, key=abs, default=float("nan")),
            }
        )
    return pd.DataFrame(lines)


def correlation_text(frame: pd.DataFrame, words: Words, form: str) -> pd.DataFrame:
    """Two decimals."""
    return pd.DataFrame(
        {
            "Drift": ", ".join(STATED[row["metric"]]),
            "Runs": str(row["runs"]),
            "Pearson": _coefficient(row["pearson"]),
            "Spearman": _coefficient(row["spearman"]),
            "Kendall": _coefficient(row["kendall"]),
            "Spearman within tasks, mean": _coefficient(row["spearman_within_tasks"]),
            "weakest": _coefficient(row["spearman_within_tasks_min"]),
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


def _fallen(count: float, row: pd.Series, words: Words) -> str:
    if pd.isna(count):
        calibrated = row["merger"] not in words.references and row["calibrator"] != "none"
        return "as merged" if calibrated else ""
    return f"{count:.0f} of {len(words.tasks)}"


def _coefficient(value: float) -> str:
    return "undefined" if pd.isna(value) else f"{value:.2f}"


def _number(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.3f}"


DRIFT_TABLES = {
    "drift": Table(drift_caption, drift_frame, drift_text),
    "drift_blocks": Table(blocks_caption, blocks_frame, blocks_text),
    "drift_correlation": Table(correlation_caption, correlation_frame, correlation_text),
}
