"""Copies results to ``results/embedded``, where they are committed, with their provenance."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd

from . import readme
from .driver import complete_runs
from .records import read_record, read_rows, write_json, write_text
from .report import remembered, report_sweep
from .suites import suite_named
from .sweeps import stem_of, sweep_named

STATED = ("commit", "python", "packages", "platform", "cpu", "cores", "threads", "device", "gpu")


def provenance_of(records: list[dict], sweep: str) -> dict:
    """What made a sweep's runs; ValueError unless that is one clean commit on one machine."""
    commits = sorted({record["commit"] for record in records})
    dirty = sum(record["dirty"] for record in records)
    if len(commits) != 1 or "unknown" in commits or dirty:
        raise ValueError(
            f"published results of a sweep come from one clean commit; the {len(records)} complete "
            f"runs of {sweep} come from {len(commits)} commits ({', '.join(commits)}), {dirty} of "
            "them with uncommitted changes; commit, remove these runs and run them again"
        )
    machines = {(r["cpu"], r["threads"], r["device"], r["gpu"]) for r in records}
    if len(machines) != 1:
        raise ValueError(
            f"the runs of {sweep} come from {len(machines)} machines or settings of threads "
            f"({sorted(machines)}), so that their times cannot stand in one table; run them on one"
        )
    shared = {key: records[0][key] for key in STATED}
    seconds = round(sum(record["wall_seconds"] for record in records))
    return {**shared, "runs": len(records), "wall_seconds": seconds}


def publish(results: Path) -> list[Path]:
    """Copy tables, figures and rows of every sweep that was run; rewrite the README's blocks.

    Sweeps that were published before and are not in ``results`` stay as they are, each with its
    own provenance. Raises ValueError if a sweep's runs do not come from one clean commit.
    """
    target, aside = results / "embedded", results / ".embedded-unfinished"
    shutil.rmtree(aside, ignore_errors=True)
    made: dict[str, tuple[dict, list[Path]]] = {}
    for name, options in remembered(results):
        suite, stem = suite_named(options.suite), stem_of(name, options)
        ids = [spec.id for spec in sweep_named(name).specs(suite, options)]
        folders = list(complete_runs(results / "runs", ids))
        if folders:
            origin = provenance_of([read_record(folder) for folder in folders], stem)
            made[stem] = origin, folders
    if not made:
        raise ValueError(f"{results / 'runs'} holds 0 complete runs of a sweep: nothing to publish")
    if target.is_dir():
        shutil.copytree(target, aside)
    sweeps = _published(aside)
    for name, options in remembered(results):
        stem = stem_of(name, options)
        if stem not in made:
            continue
        origin, folders = made[stem]
        for old in sweeps.get(stem, {}).get("files", []):
            (aside / old).unlink(missing_ok=True)
        files = [
            path.relative_to(results)
            for path in report_sweep(name, suite_named(options.suite), options, results)
            if path.parent != results  # the rows of all runs
        ]
        for file in files:
            (aside / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(results / file, aside / file)
        rows = Path("rows") / f"{stem}.csv"
        frames = [read_rows(folder / "rows.csv") for folder in folders]
        table = pd.concat(frames, ignore_index=True).to_csv(index=False, lineterminator="\n")
        write_text(aside / rows, table)
        sweeps[stem] = {**origin, "files": [file.as_posix() for file in (*files, rows)]}
    write_json(aside / "provenance.json", sweeps)
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)
    written = sorted(path for path in target.rglob("*") if path.is_file())
    page = Path(__file__).resolve().parent.parent / "README.md"
    if target.resolve().is_relative_to(page.parent):  # not for results kept elsewhere
        readme.update(page, target)
        written.append(page)
    return written


def _published(folder: Path) -> dict[str, dict]:
    path = folder / "provenance.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
