"""Tables as functions of the rows alone: a frame of fractions, then CSV, Markdown and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pandas as pd

from .records import ALL

METHOD = ["merger", "merger_args", "calibrator", "calibrator_args", "n", "split", "evaluated_on"]
PLUS_MINUS, BOLD = {"md": " ± ", "tex": r" $\pm$ "}, {"md": "**{}**", "tex": r"\textbf{{{}}}"}


@dataclass(frozen=True)
class Words:
    """Names for people: of methods and tasks, in the order in which a table shows them."""

    methods: Mapping[str, str]
    tasks: Mapping[str, str]
    references: tuple[str, ...] = ("base", "expert", "cross_expert")
    calibrators: tuple[str, ...] = ()
    yardstick: str = "featcal"  # the calibrator whose time others are compared with
    chosen: Mapping[str, str] = field(default_factory=dict)  # calibrator → the suite's setting
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Table:
    """A table: its frame of plain values, and the frame as text for one format."""

    caption: Callable[[pd.DataFrame, Words], str]
    frame: Callable[[pd.DataFrame, Words], pd.DataFrame]
    text: Callable[[pd.DataFrame, Words, str], pd.DataFrame]


def accuracy_per_run(rows: pd.DataFrame, words: Words) -> pd.DataFrame:
    """One line per run: its method columns and seed, one column per task, and their average."""
    scores = rows[(rows["metric"] == "accuracy") & (rows["merger"] != "cross_expert")]
    wide = scores.pivot_table(
        index=["run", *METHOD, "seed"], columns="task", values="value", aggfunc="first"
    ).reindex(columns=list(words.tasks))
    wide["average"] = wide.mean(axis=1, skipna=False)
    return wide.reset_index()


def main_frame(rows: pd.DataFrame, words: Words) -> pd.DataFrame:
    """Mean and sample standard deviation over seeds per method, in fractions.

    The average over tasks is taken within each run first, so that its spread is that of averages.
    """
    runs = accuracy_per_run(rows, words)
    if runs.empty:
        return pd.DataFrame()
    columns = [*words.tasks, "average"]
    grouped = runs.groupby(METHOD, sort=False)
    mean, spread = grouped[columns].mean(), grouped[columns].std(ddof=1)
    frame = mean.join(spread.add_suffix("_sd"))
    frame = frame[[name for c in columns for name in (c, f"{c}_sd")]]
    frame.insert(0, "seeds", grouped.size())
    seconds = rows[rows["metric"].isin(["merge_seconds", "calibrate_seconds"])]
    per_run = seconds.groupby("run")["value"].sum()
    runs["seconds"] = runs["run"].map(per_run)
    frame["seconds"] = runs.groupby(METHOD, sort=False)["seconds"].median()
    for metric in ("needs_task_id", "added_parameters"):
        runs[metric] = runs["run"].map(values_per_run(rows, metric))
        frame[metric] = runs.groupby(METHOD, sort=False)[metric].first()
    frame = frame.reset_index()
    return frame.loc[sorted(frame.index, key=lambda i: _rank(frame.loc[i], words))].reset_index(
        drop=True
    )


def values_per_run(rows: pd.DataFrame, metric: str) -> pd.Series:
    """A metric of whole runs, by run."""
    return rows[(rows["metric"] == metric) & (rows["task"] == "")].set_index("run")["value"]


def _rank(row: pd.Series, words: Words) -> tuple:
    """Base first, experts last, between them the methods; uncalibrated before calibrated."""
    methods = list(words.methods)
    place = {"base": -1, "expert": 10**6}.get(row["merger"], methods.index(row["merger"]))
    return (
        place,
        row["merger_args"],
        row["calibrator"] != "none",
        methods.index(row["calibrator"]),
        row["calibrator_args"],
        row["n"] if row["n"] != ALL else math.inf,
    )


def main_text(frame: pd.DataFrame, words: Words, form: str) -> pd.DataFrame:
    """Percent with one decimal, the average with its spread, the best merged row in bold."""
    # rows marked (!) do not compete
    merged = ~frame["merger"].isin(words.references) & (frame["split"] != frame["evaluated_on"])
    best = frame.index[merged & (frame["average"] == frame.loc[merged, "average"].max())]
    lines = []
    for index, row in frame.iterrows():
        reference = row["merger"] in words.references
        line = {
            "Merger": _label(words, row["merger"], row["merger_args"], form),
            "Calibrator": ""
            if reference
            else _label(words, row["calibrator"], row["calibrator_args"], form),
            "n": size(row),
            "Seeds": str(row["seeds"]),
            **{plain(title, form): percent(row[task]) for task, title in words.tasks.items()},
            "Average": percent(row["average"]),
            "Time (s)": "" if pd.isna(row["seconds"]) else f"{row['seconds']:.1f}",
            "Task id": "" if reference else {0.0: "no", 1.0: "yes"}.get(row["needs_task_id"], ""),
            "Added": "" if reference else _count(row["added_parameters"]),
        }
        if row["seeds"] > 1:
            line["Average"] += PLUS_MINUS[form] + percent(row["average_sd"])
        if index in best:
            line = {key: BOLD[form].format(value) if value else "" for key, value in line.items()}
        lines.append(line)
    return pd.DataFrame(lines)


def size(row: pd.Series) -> str:
    """Calibration examples per task as text, marked if they are of the split that is scored."""
    count = "all" if row["n"] == ALL else str(row["n"]) if row["n"] else ""
    return f"{count} of {row['split']} (!)" if row["split"] == row["evaluated_on"] else count


def transductive_note(rows: pd.DataFrame) -> str:
    """A sentence for captions if some runs were calibrated on the very split that is scored."""
    if (rows["split"] == rows["evaluated_on"]).any():
        return (
            " Rows marked (!) were calibrated on the unlabelled examples of the very split that "
            "they are scored on; they are not comparable with the others."
        )
    return ""


def main_caption(rows: pd.DataFrame, words: Words) -> str:
    """What the numbers are: data, seeds, spread, protocol."""
    sizes = rows[rows["metric"] == "examples"].groupby("task")["value"].first()
    counted = ", ".join(
        f"{words.tasks[task]} {int(sizes[task])}" for task in words.tasks if task in sizes
    )
    splits = ", ".join(sorted(set(rows["split"]) - {""}))
    drawn = f", from the {splits} split" if splits else ""
    evaluated = ", ".join(sorted(set(rows["evaluated_on"])))
    return (
        f"Accuracy in % on the {evaluated} split of {only(rows, 'suite')} "
        f"({only(rows, 'backbone')}; images: {counted}). n: unlabelled calibration examples per "
        f"task{drawn}. Mean over seeds; ± is the sample standard deviation of "
        "the average over seeds (one per calibration set and draw). Time: median seconds of "
        "merging and calibrating, without loading, decoding and scoring. Hyperparameters in "
        "parentheses differ from a method's defaults. Task id: whether inference must be told the "
        "task. Added: parameters kept beside the merged model, of all tasks together. Bold: best "
        "merged model by average." + transductive_note(rows)
    )


def cross_frame(rows: pd.DataFrame, words: Words) -> pd.DataFrame:
    """Accuracy of every expert on every task, base below, in fractions."""
    scores = rows[(rows["metric"] == "accuracy") & rows["merger"].isin(["cross_expert", "base"])]
    if not (scores["merger"] == "cross_expert").any():
        return pd.DataFrame()
    scores = scores.assign(expert=scores["merger_args"].str.removeprefix("expert="))
    wide = scores.pivot_table(index="expert", columns="task", values="value", aggfunc="first")
    order = [name for name in [*words.tasks, ""] if name in wide.index]
    wide = wide.loc[order].reindex(columns=list(words.tasks))
    wide["average"] = wide.mean(axis=1, skipna=False)
    return wide.rename(index={"": "base"}).reset_index()


def cross_text(frame: pd.DataFrame, words: Words, form: str) -> pd.DataFrame:
    """Percent with one decimal; each expert's own task in bold."""
    lines = []
    for _, row in frame.iterrows():
        line = {"Expert": plain(words.tasks.get(row["expert"], words.methods["base"]), form)}
        for task, title in [*words.tasks.items(), ("average", "Average")]:
            text = percent(row[task])
            line[plain(title, form)] = BOLD[form].format(text) if task == row["expert"] else text
        lines.append(line)
    return pd.DataFrame(lines)


def cross_caption(rows: pd.DataFrame, _: Words) -> str:
    """What the matrix shows."""
    evaluated = ", ".join(sorted(set(rows["evaluated_on"])))
    return (
        f"Accuracy in % of each expert (rows) on each task (columns), {evaluated} split of "
        f"{only(rows, 'suite')}; the base model in the last row. Bold: the expert's own task."
    )


TABLES = {
    "main": Table(main_caption, main_frame, main_text),
    "cross_experts": Table(cross_caption, cross_frame, cross_text),
}


def render(table: Table, rows: pd.DataFrame, words: Words) -> dict[str, str]:
    """The table as text by file ending: csv (fractions), md and tex (percent)."""
    frame, caption = table.frame(rows, words), table.caption(rows, words)
    markdown = table.text(frame, words, "md").to_markdown(index=False, disable_numparse=True)
    notes = "".join(f"\n{note}\n" for note in words.notes)
    latex = table.text(frame, words, "tex").to_latex(
        index=False, escape=False, caption=_tex(" ".join([caption, *words.notes])), position="t"
    )
    return {
        "csv": frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"),
        "md": f"{caption}\n\n{markdown}\n{notes}",
        # wide tables fit the page; needs the package graphicx
        "tex": latex.replace(
            r"\begin{tabular}", "\\resizebox{\\textwidth}{!}{%\n\\begin{tabular}"
        ).replace(r"\end{tabular}", r"\end{tabular}}"),
    }


def label(words: Words, name: str, arguments: str) -> str:
    """A method's title, with the hyperparameters that differ from its defaults."""
    title = words.methods[name]
    return f"{title} ({arguments.replace(',', ', ')})" if arguments else title


def method_label(row: pd.Series, words: Words, form: str = "md") -> str:
    """Merger and calibrator in one cell; a reference by its own name."""
    text = label(words, row["merger"], row["merger_args"])
    if row["merger"] not in words.references and row["calibrator"] != "none":
        text += " + " + label(words, row["calibrator"], row["calibrator_args"])
    return plain(text, form)


def _label(words: Words, name: str, arguments: str, form: str) -> str:
    return plain(label(words, name, arguments), form)


def plain(text: str, form: str) -> str:
    """Text as a format needs it: LaTeX's own signs escaped."""
    return _tex(text) if form == "tex" else text


def _count(value: float) -> str:
    return "" if pd.isna(value) else f"{value / 1000:,.0f}k" if value >= 10_000 else f"{value:.0f}"


def percent(value: float) -> str:
    """A fraction as percent with one decimal."""
    return "not run" if pd.isna(value) else f"{100 * value:.1f}"


def _tex(text: str) -> str:
    for sign in "%&_#":
        text = text.replace(sign, "\\" + sign)
    return text.replace("±", r"$\pm$")


def only(rows: pd.DataFrame, column: str) -> str:
    """The values of a column, which are mostly one."""
    return ", ".join(sorted(set(rows[column])))
