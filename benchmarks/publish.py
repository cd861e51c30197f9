"""Copies results to ``results/embedded``, where they are committed, with their provenance."""

from __future__ import annotations

import shutil
from pathlib import Path

from . import readme
from .driver import complete_runs
from .records import read_record, write_json
from .report import remembered
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
    """Copy tables, figures and rows of all sweeps that were run, and rewrite the README's blocks.

    Raises ValueError if a sweep's runs do not come from one clean commit, or if a run that is in
    no sweep would come along unseen.
    """
    sweeps, seen = {}, set()
    if not any(complete_runs(results / "runs")):
        raise ValueError(f"{results / 'runs'} holds 0 complete runs: nothing to publish")
    for name, options in remembered(results):
        specs = sweep_named(name).specs(suite_named(options.suite), options)
        folders = list(complete_runs(results / "runs", [spec.id for spec in specs]))
        if not folders:
            continue
        records = [read_record(folder) for folder in folders]
        stem = stem_of(name, options)
        sweeps[stem] = provenance_of(records, stem)
        seen |= {folder.name for folder in folders}
    stray = [folder.name for folder in complete_runs(results / "runs") if folder.name not in seen]
    if stray:
        raise ValueError(
            f"{len(stray)} complete runs in {results / 'runs'} belong to no sweep as it is now "
            f"(first: {stray[0]}); remove them"
        )
    absent = [p for p in ("tables", "figures", "rows.csv") if not (results / p).exists()]
    if absent:
        raise ValueError(f"{results} lacks {', '.join(absent)}; use `report` first")
    target, aside = results / "embedded", results / ".embedded-unfinished"
    shutil.rmtree(aside, ignore_errors=True)
    for part in ("tables", "figures"):
        shutil.copytree(results / part, aside / part)
    shutil.copyfile(results / "rows.csv", aside / "rows.csv")
    write_json(aside / "provenance.json", sweeps)
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)
    written = sorted(path for path in target.rglob("*") if path.is_file())
    page = Path(__file__).resolve().parent.parent / "README.md"
    if target.resolve().is_relative_to(page.parent):  # not for results kept elsewhere
        readme.update(page, target)
        written.append(page)
    return written
