"""From complete runs to tables and figures, with warnings about what they were made from."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from merging import CALIBRATORS, MERGERS

from .driver import complete_runs
from .figures import save
from .records import read_record, read_rows, write_json, write_text
from .references import REFERENCES
from .study_tables import STUDIES
from .suites import Suite
from .sweeps import Options, stem_of, sweep_named
from .tables import TABLES, Words, render

log = logging.getLogger(__name__)


def remember(name: str, options: Options, results: Path) -> None:
    """Note which sweep was run with which options, so that ``report`` can find its runs again."""
    path = results / "runs" / f"{stem_of(name, options)}.json"
    write_json(path, {"sweep": name, **dataclasses.asdict(options)})


def remembered(results: Path) -> list[tuple[str, Options]]:
    """The sweeps that were run, each with the options of its last call."""
    found = []
    for path in sorted((results / "runs").glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        found.append((content.pop("sweep"), Options(**content)))
    return found


def report_sweep(name: str, suite: Suite, options: Options, results: Path) -> list[Path]:
    """Write the sweep's tables and figures, and the rows of all runs; returns the files."""
    sweep = sweep_named(name)
    ids = [spec.id for spec in sweep.specs(suite, options)]
    folders = list(complete_runs(results / "runs", ids))
    if not folders:
        return []
    rows = pd.concat([read_rows(folder / "rows.csv") for folder in folders], ignore_index=True)
    notes = _notes(folders, len(ids), suite)
    chosen = {n: CALIBRATORS.canonical(suite.settings.get(n, n)) for n in CALIBRATORS}
    methods = {**REFERENCES, **_by_year(MERGERS), **_by_year(CALIBRATORS)}
    words = Words(
        methods={key: cls.title for key, cls in methods.items()},
        tasks={task.name: task.title for task in suite.tasks},
        calibrators=("none", *(name for name in _by_year(CALIBRATORS) if name != "none")),
        chosen={name: spec.partition(":")[2] for name, spec in chosen.items()},
        notes=tuple(notes),
    )
    stem = stem_of(name, options)
    written, tables = [], TABLES | STUDIES
    for table in sweep.tables:
        made = tables[table]
        if made.frame(rows, words).empty:  # e.g. a sweep narrowed to some runs
            continue
        file = stem if table == sweep.tables[0] else f"{stem}_{table}"
        for form, text in render(made, rows, words).items():
            path = results / "tables" / f"{file}.{form}"
            write_text(path, text)
            written.append(path)
    for figure in sweep.figures:
        file = stem if figure == sweep.figures[0] else f"{stem}_{figure}"
        written += save(figure, rows, words, results / "figures" / file)
    written.append(write_all_rows(results))
    return written


def _by_year(registry: Mapping[str, type]) -> dict[str, type]:
    """Methods in order of their papers: arXiv numbers begin with year and month; ours come last."""

    def when(item: tuple[str, type]) -> str:
        found = re.search(r"arXiv:(\d{4})|20(\d\d)", item[1].paper)
        if found is None:
            return "9999" if item[1].paper else "0000"
        return found[1] or f"{found[2]}06"  # a conference of that year, about its middle

    return dict(sorted(registry.items(), key=when))


def write_all_rows(results: Path) -> Path:
    """The rows of every complete run in one file."""
    folders = complete_runs(results / "runs")
    frames = [read_rows(folder / "rows.csv") for folder in folders]
    write_text(
        results / "rows.csv",
        pd.concat(frames, ignore_index=True).to_csv(index=False, lineterminator="\n"),
    )
    return results / "rows.csv"


def _notes(folders: list[Path], planned: int, suite: Suite) -> list[str]:
    """What a reader of the table must know about the runs behind it."""
    records = [read_record(folder) for folder in folders]
    notes = []
    if len(folders) < planned:
        missing = planned - len(folders)
        notes.append(
            f"Incomplete: {missing} of {planned} runs are missing (not selected or not run)."
        )
    notes += sorted({f"Warning: {note}." for record in records for note in record["notes"]})
    commits = sorted({record["commit"][:12] for record in records})
    if len(commits) > 1:
        notes.append(f"Warning: runs come from {len(commits)} commits ({', '.join(commits)}).")
    present = suite.fingerprint()
    if any(record["files"] != present for record in records):
        notes.append(
            "Warning: some runs were made from other versions of the suite's files; run it again."
        )
    if any(record["dirty"] for record in records):
        notes.append("Warning: some runs were made by code with uncommitted changes.")
    for note in notes:
        log.warning(note)
    machines = sorted({f"{r['cpu']}, {r['threads']} threads, {r['device']}" for r in records})
    return [*notes, f"Runs: commit {', '.join(commits)}; {'; '.join(machines)}."]
