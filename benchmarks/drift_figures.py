"""Figures of the drift study: over blocks, in two parts, in a plane, and against accuracy."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .drift_tables import STATED, blocks_frame, correlation, drift_per_task
from .style import COLOURS, colour, marker
from .tables import METHOD, Words, label

MERGER_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
CLOUDS = {"merged": ("o", "#999999"), "calibrated": ("^", "#0072B2"), "expert": ("x", "#D55E00")}


def _main(rows: pd.DataFrame, words: Words) -> pd.DataFrame:
    """Rows of the merger with the most runs, at its largest calibration set."""
    methods = rows[~rows["merger"].isin(words.references)]
    if methods.empty:
        return methods
    count = methods.groupby(["merger", "merger_args"])["run"].nunique()
    merger, arguments = count.idxmax()
    kept = methods[(methods["merger"] == merger) & (methods["merger_args"] == arguments)]
    return kept[kept["n"].isin([0, kept["n"].max()])]


def _name(calibrator: str, arguments: str, words: Words) -> str:
    return "no calibration" if calibrator == "none" else label(words, calibrator, arguments)


def drift(rows: pd.DataFrame, words: Words) -> Figure | None:
    """Drift after every block with its spread over tasks; beside it that of the final feature."""
    rows = _main(rows, words)
    frame = blocks_frame(rows, words)
    if frame.empty:
        return None
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7.2, 3.0), gridspec_kw={"width_ratios": [3, 2]}
    )
    apart = set(rows["calibrator"]) - set(frame["calibrator"])
    corrections = [name for name in words.calibrators if name in apart]
    for (calibrator, arguments), curve in frame.groupby(
        ["calibrator", "calibrator_args"], sort=False
    ):
        name = _name(calibrator, arguments, words)
        if calibrator == "none" and corrections:
            name += ", and " + ", ".join(words.methods[c] for c in corrections)
        shade, mean, spread = colour(calibrator, words), curve["drift_l2"], curve["drift_l2_sd"]
        left.plot(curve["block"], mean, color=shade, marker=marker(calibrator, words),
                  markersize=4, label=name)  # fmt: skip
        left.fill_between(curve["block"], mean - spread, mean + spread, color=shade, alpha=0.2,
                          lw=0)  # fmt: skip
    left.set_xlabel("block")
    left.set_ylabel("L2 distance from the expert")
    left.set_title("hidden state; band: ± 1 SD over tasks", loc="left")
    left.set_xticks(sorted(set(frame["block"])))
    left.legend(frameon=False, fontsize=7)
    final = rows[rows["metric"] == "feature_drift_l2"]
    per_task = final.groupby(["calibrator", "calibrator_args", "task"])["value"].mean()
    bars = [key for key in dict.fromkeys(k[:2] for k in per_task.index)]
    bars.sort(key=lambda key: words.calibrators.index(key[0]))
    for place, key in enumerate(bars):
        values = per_task[key]
        right.bar(place, values.mean(), yerr=values.std(ddof=1), color=colour(key[0], words),
                  error_kw={"elinewidth": 0.8, "capsize": 2})  # fmt: skip
    right.set_xticks(
        range(len(bars)),
        [_name(name, "", words) for name, _ in bars],
        rotation=30,
        ha="right",
    )
    right.set_title("final feature, as the head reads it", loc="left")
    right.set_ylabel("L2 distance from the expert")
    for axis in (left, right):
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", color="0.9", linewidth=0.5)
        axis.set_axisbelow(True)
    return figure


def parts(rows: pd.DataFrame, words: Words) -> Figure | None:
    """Per block, the drift as what comes from upstream plus what the block adds."""
    frame = blocks_frame(_main(rows, words), words)
    if frame.empty:
        return None
    panels = list(frame.groupby(["calibrator", "calibrator_args"], sort=False))
    panels.sort(key=lambda item: words.calibrators.index(item[0][0]))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.4 * len(panels) + 0.4, 2.8), sharey=True, squeeze=False
    )
    for axis, ((calibrator, arguments), curve) in zip(axes[0], panels, strict=True):
        places = curve["block"]
        axis.bar(places, curve["drift_upstream"], color=COLOURS[1], label="upstream")
        axis.bar(places, curve["drift_local"], bottom=curve["drift_upstream"].clip(lower=0),
                 color=COLOURS[6], hatch="//", edgecolor="white", label="local")  # fmt: skip
        axis.plot(places, curve["drift_l2"], color="black", marker="_", markersize=9,
                  linestyle="none", label="drift")  # fmt: skip
        axis.set_title(_name(calibrator, arguments, words), loc="left")
        axis.set_xlabel("block")
        axis.set_xticks(places)
        axis.grid(axis="y", color="0.9", linewidth=0.5)
        axis.set_axisbelow(True)
    axes[0, 0].set_ylabel("L2 distance from the expert,\nparts along the drift")
    axes[0, 0].legend(frameon=False)
    return figure


def features(rows: pd.DataFrame, words: Words) -> Figure | None:
    """One task's features before and after calibration beside the expert's (t-SNE)."""
    points = rows[rows["metric"].isin(["tsne_x", "tsne_y"])]
    if points.empty:
        return None
    cosine = rows[rows["metric"] == "feature_cosine"]
    panels = list(points.groupby(["calibrator", "calibrator_args"], sort=False))
    panels.sort(key=lambda item: words.calibrators.index(item[0][0]))
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(3.3 * columns, 3.1 * lines + 0.3), squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, ((calibrator, _), group) in zip(axes.flat, panels, strict=False):
        task, run = group["task"].iloc[0], group["run"].iloc[0]
        merger = group["merger"].iloc[0]
        wide = group.pivot_table(index="block", columns="metric", values="value")
        who = wide.index.str.partition("/").get_level_values(0)
        for cloud, (shape, shade) in CLOUDS.items():
            here = wide[who == cloud]
            axis.scatter(here["tsne_x"], here["tsne_y"], s=9, marker=shape, c=shade,
                         linewidths=0.7, label=cloud)  # fmt: skip
        mine = cosine[cosine["task"] == task]
        before = mine[(mine["merger"] == merger) & (mine["calibrator"] == "none")]["value"]
        after = mine[mine["run"] == run]["value"]
        change = f"{before.mean():.2f} → {after.mean():.2f}" if len(before) else "not run"
        axis.set_title(f"{words.methods[calibrator]}\ncosine to expert {change}", loc="left")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(True)
    handles, names = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False,
                  title=f"features of {words.tasks[task]}, t-SNE without units")  # fmt: skip
    return figure


def against_accuracy(rows: pd.DataFrame, words: Words) -> Figure | None:
    """Accuracy against three drifts, a point per run."""
    per_task = drift_per_task(rows[~rows["merger"].isin(words.references)])
    if per_task["run"].nunique() < 3:
        return None
    runs = per_task.groupby(["run", *METHOD])[["accuracy", *STATED]].mean().reset_index()
    mergers = [name for name in words.methods if name in set(runs["merger"])]
    shown = ("drift_l2", "feature_drift_l2", "output_drift_l2")
    figure, axes = plt.subplots(1, len(shown), figsize=(7.2, 3.0), sharey=True)
    for axis, metric in zip(axes, shown, strict=True):
        for _, run in runs.iterrows():
            axis.plot(
                run[metric],
                100 * run["accuracy"],
                MERGER_MARKERS[mergers.index(run["merger"]) % len(MERGER_MARKERS)],
                color=colour(run["calibrator"], words),
                markersize=5,
                markeredgewidth=0,
                alpha=0.85,
            )
        rank = correlation(runs["accuracy"], runs[metric], "spearman")
        stated = "undefined" if pd.isna(rank) else f"{rank:.2f}"
        axis.set_title(f"Spearman {stated}, {len(runs)} runs", loc="left")
        axis.set_xlabel("drift of " + ", ".join(STATED[metric]))
        axis.grid(color="0.9", linewidth=0.5)
    axes[0].set_ylabel("average accuracy (%)")
    found = [name for name in words.calibrators if name in set(runs["calibrator"])]
    entries = [
        Line2D([], [], color=colour(name, words), marker="o", linestyle="none",
               label=_name(name, "", words))
        for name in found
    ] + [
        Line2D([], [], color="black", marker=MERGER_MARKERS[i % len(MERGER_MARKERS)],
               linestyle="none", label=words.methods[name])
        for i, name in enumerate(mergers)
    ]  # fmt: skip
    figure.legend(handles=entries, loc="outside lower center", ncols=5, frameon=False)
    return figure
