"""Figures of two studies: accuracy against calibration-set size, and against time and memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from .study_tables import runtime_frame
from .style import colour, marker
from .tables import Words, label, main_frame


def sample_efficiency(rows: pd.DataFrame, words: Words) -> Figure | None:
    """A curve per calibrator with its spread over seeds; base, merged model, experts as lines."""
    frame = main_frame(rows, words)
    if frame.empty or not (frame["n"] > 0).any():
        return None
    figure, axis = plt.subplots(figsize=(5.2, 3.6))
    curves = frame[frame["n"] > 0].groupby(["calibrator", "calibrator_args"], sort=False)
    for (calibrator, arguments), curve in curves:
        points = curve.sort_values("n")
        mean, spread = 100 * points["average"], 100 * points["average_sd"].fillna(0)
        shade = colour(calibrator, words)
        axis.plot(
            points["n"],
            mean,
            color=shade,
            marker=marker(calibrator, words),
            markersize=4,
            linewidth=1.4,
            label=label(words, calibrator, arguments),
        )
        axis.fill_between(points["n"], mean - spread, mean + spread, color=shade, alpha=0.25, lw=0)
    for name, style in (("expert", "solid"), ("none", "dashed"), ("base", "dotted")):
        line = frame[(frame["merger"] == name) & (frame["n"] == 0)]
        if name == "none":
            line = frame[~frame["merger"].isin(words.references) & (frame["n"] == 0)]
        if len(line):
            row = line.iloc[0]
            title = label(words, row["merger"], row["merger_args"])
            title += ", not calibrated" if name == "none" else ""
            axis.axhline(
                100 * row["average"], color="black", linestyle=style, linewidth=1, label=title
            )
    sizes = sorted(n for n in set(frame["n"]) if n > 0)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(n) for n in sizes])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("unlabelled calibration examples per task")
    axis.set_ylabel("average accuracy (%)")
    axis.grid(color="0.9", linewidth=0.5)
    seeds = int(frame.loc[frame["n"] > 0, "seeds"].max())
    if seeds > 1:
        axis.set_title(f"mean of {seeds} seeds, band: ± 1 standard deviation", loc="left")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def runtime(rows: pd.DataFrame, words: Words) -> Figure | None:
    """Accuracy against calibration time, on a log scale, and against memory; extremes as bars."""
    frame = runtime_frame(rows, words)
    if frame.empty:
        return None
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.3), sharey=True)
    panels = (
        ("seconds", 1.0, "calibration time (s), log scale"),
        ("rss_peak_bytes", 1e6, "memory above the starting level (MB)"),
    )
    for axis, (metric, unit, title) in zip(axes, panels, strict=True):
        for _, row in frame.iterrows():
            middle = row[metric] / unit
            reach = [[middle - row[f"{metric}_min"] / unit], [row[f"{metric}_max"] / unit - middle]]
            anew = "recompute=true" in row["calibrator_args"]
            axis.errorbar(
                middle,
                100 * row["average"],
                xerr=np.clip(reach, 0, None),
                color=colour(row["calibrator"], words),
                marker=marker(row["calibrator"], words),
                markerfacecolor="white" if anew else None,
                markersize=7,
                capsize=2,
                linestyle="none",
                label=label(words, row["calibrator"], row["calibrator_args"]),
            )
        axis.set_xlabel(title)
        axis.grid(color="0.9", linewidth=0.5)
    axes[0].set_xscale("log")
    axes[0].set_ylabel("average accuracy (%)")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(
        f"median of {int(frame['repeats'].max())} repeats, bars from least to most; hollow: every "
        "batch encoded anew",
        fontsize=8,
        x=0.01,
        ha="left",
    )
    return figure
