"""Figures as functions of the rows alone, saved as PNG and SVG.

Metadata is fixed, so that equal rows give equal files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from . import drift_figures, study_figures
from .style import HATCHES, STYLE, colour
from .tables import Words, cross_frame, label, main_frame


def accuracy(rows: pd.DataFrame, words: Words) -> Figure | None:
    """Per merger a panel: bars per task and calibrator, experts and base as lines."""
    frame = main_frame(rows, words)
    if frame.empty:
        return None
    references = {
        name: frame[frame["merger"] == name].iloc[0]
        for name in ("expert", "base")
        if (frame["merger"] == name).any()
    }
    methods = frame[~frame["merger"].isin(words.references)]
    if methods.empty:
        return None
    largest = methods["n"].max()
    methods = methods[methods["n"].isin([0, largest])]
    # bars for the suite's chosen settings; the table has the published ones too
    setting = methods["calibrator"].map(words.chosen).fillna("")
    if (methods["calibrator_args"] == setting).any():
        methods = methods[methods["calibrator_args"] == setting]
    panels = list(methods.groupby(["merger", "merger_args"], sort=False))
    columns = [*words.tasks, "average"]
    places = np.arange(len(columns))
    height = 1.9 * len(panels) + 0.6
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(7.2, height), sharex=True, sharey=True, squeeze=False
    )
    found = dict.fromkeys(zip(methods["calibrator"], methods["calibrator_args"], strict=True))
    variants = sorted(found, key=lambda variant: list(words.methods).index(variant[0]))
    for axis, ((merger, arguments), group) in zip(axes[:, 0], panels, strict=True):
        width = 0.8 / len(variants)
        for position, (_, row) in enumerate(group.iterrows()):
            variant = variants.index((row["calibrator"], row["calibrator_args"]))
            name = "no calibration" if row["calibrator"] == "none" else label(
                words, row["calibrator"], row["calibrator_args"])  # fmt: skip
            spread = 100 * row[[f"{c}_sd" for c in columns]].fillna(0).to_numpy(dtype=float)
            axis.bar(
                places + (position - (len(group) - 1) / 2) * width,
                100 * row[columns].to_numpy(dtype=float),
                width * 0.92,
                yerr=spread if row["seeds"] > 1 else None,
                error_kw={"elinewidth": 0.8, "capsize": 1.5},
                color=colour(row["calibrator"], words),
                hatch=HATCHES[variant % len(HATCHES)],
                edgecolor="white",
                linewidth=0.3,
                label=name,
            )
        for name, row in references.items():
            axis.hlines(
                100 * row[columns].to_numpy(dtype=float),
                places - 0.43,
                places + 0.43,
                colors="black",
                linestyles="solid" if name == "expert" else "dotted",
                linewidth=1.1,
                label=words.methods[name],
            )
        axis.set_title(label(words, merger, arguments), loc="left")
        axis.set_ylabel("accuracy (%)")
        axis.set_ylim(0, 100)
        axis.axvline(len(words.tasks) - 0.5, color="0.8", linewidth=0.6)
        axis.grid(axis="y", color="0.9", linewidth=0.5)
        axis.set_axisbelow(True)
    axes[-1, 0].set_xticks(places, [*words.tasks.values(), "Average"])
    entries: dict[str, object] = {}
    for axis in axes[:, 0]:  # a variant may be missing from the first panel
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    figure.legend(entries.values(), entries, loc="outside upper center", ncols=3, frameon=False)
    seeds = int(methods["seeds"].max())
    sample = f"n = {largest} calibration images per task, " if largest else ""
    spread = f"{seeds} seeds; error bars: standard deviation over seeds" if seeds > 1 else "1 seed"
    axes[-1, 0].set_xlabel(sample + spread)
    return figure


def cross_experts(rows: pd.DataFrame, words: Words) -> Figure | None:
    """Accuracy of every expert on every task as a matrix."""
    frame = cross_frame(rows, words)
    if frame.empty:
        return None
    values = 100 * frame[list(words.tasks)].to_numpy(dtype=float)
    figure, axis = plt.subplots(figsize=(5.4, 4.6))
    image = axis.imshow(values, cmap="cividis", vmin=0, vmax=100)
    for (i, j), value in np.ndenumerate(values):
        colour = "black" if value > 60 else "white"
        axis.text(j, i, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=7)
    axis.set_xticks(range(len(words.tasks)), words.tasks.values(), rotation=35, ha="right")
    names = [words.tasks.get(name, words.methods["base"]) for name in frame["expert"]]
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("task")
    axis.set_ylabel("expert")
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, label="accuracy (%)", shrink=0.8)
    return figure


FIGURES: dict[str, Callable[[pd.DataFrame, Words], Figure | None]] = {
    "accuracy": accuracy,
    "cross_experts": cross_experts,
    "sample_efficiency": study_figures.sample_efficiency,
    "runtime": study_figures.runtime,
    "drift": drift_figures.drift,
    "drift_parts": drift_figures.parts,
    "features": drift_figures.features,
    "drift_accuracy": drift_figures.against_accuracy,
}


def save(name: str, rows: pd.DataFrame, words: Words, stem: Path) -> list[Path]:
    """Draw one figure and write ``stem``.png and ``stem``.svg, each aside and then renamed.

    Returns the files, none if the rows hold nothing to draw.
    """
    mpl.use("Agg")
    written = []
    with plt.rc_context(STYLE):
        figure = FIGURES[name](rows, words)
        if figure is None:
            return []
        stem.parent.mkdir(parents=True, exist_ok=True)
        try:
            for form, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
                path = stem.with_name(f"{stem.name}.{form}")
                aside = path.with_name(f".{os.getpid()}-{path.name}")
                try:
                    figure.savefig(aside, format=form, metadata=metadata)
                    aside.replace(path)
                finally:
                    aside.unlink(missing_ok=True)
                written.append(path)
        finally:
            plt.close(figure)
    return written
