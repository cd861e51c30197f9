"""Tables of the studies: sample efficiency and run time, and with them those of drift."""

from __future__ import annotations

import pandas as pd

from .drift_tables import DRIFT_TABLES
from .records import ALL
from .tables import (
    METHOD,
    PLUS_MINUS,
    Table,
    Words,
    accuracy_per_run,
    label,
    main_frame,
    method_label,
    only,
    percent,
    plain,
    size,
    transductive_note,
    values_per_run,
)


def efficiency_text(frame: pd.DataFrame, words: Words, form: str) -> pd.DataFrame:
    """A line per method, a column per size: mean ± standard deviation over seeds, in percent."""
    order = frame.assign(last=frame["n"] == ALL).sort_values(["last", "n"])
    sizes = list(dict.fromkeys(size(row) for _, row in order.iterrows() if row["n"]))
    lines: dict[str, dict[str, str]] = {}
    for _, row in frame.iterrows():
        name = method_label(row, words, form)
        line = lines.setdefault(name, {"Method": name, "none": ""} | dict.fromkeys(sizes, ""))
        text = percent(row["average"])
        if row["seeds"] > 1:
            text += PLUS_MINUS[form] + percent(row["average_sd"])
        line[size(row) or "none"] = text
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
    reference = frame.loc[frame["calibrator"] == words.yardstick, "seconds"]
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
                "Feature drift": "not measured" if pd.isna(row["feature_drift_l2"])
                else f"{row['feature_drift_l2']:.4f}",
                "Time (s)": f"{_seconds(row['seconds'])} ({low} to {high})",
                "Encoding (s)": _seconds(row["encode_seconds"]),
                "Fitting (s)": _seconds(row["fit_seconds"]),
                "Times FeatCal's": "not run" if pd.isna(row["times_featcal"])
                else f"{row['times_featcal']:.2f}",
                "Memory (MB)": "not measured" if pd.isna(row["rss_peak_bytes"])
                else f"{row['rss_peak_bytes'] / 1e6:.0f}",
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


def _seconds(value: float) -> str:
    return "not marked" if pd.isna(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


STUDIES = {
    "sample_efficiency": Table(efficiency_caption, main_frame, efficiency_text),
    **DRIFT_TABLES,
    "runtime": Table(runtime_caption, runtime_frame, runtime_text),
}
