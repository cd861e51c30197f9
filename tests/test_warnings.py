"""Warnings that a report carries: an expert that equals the base, runs of several commits."""

from __future__ import annotations

import json

from harness import COPY, cli, copy_toy, edit_json, edit_tensors, run_folder, suite_at
from safetensors.torch import load_file, save_file

from benchmarks.driver import Session
from benchmarks.records import read_rows
from benchmarks.spec import RunSpec


def test_an_expert_equal_to_the_base_gives_a_warning_in_the_report(tmp_path, monkeypatch):
    root, results = copy_toy(tmp_path, monkeypatch), tmp_path / "results"
    path = root / "base/model.safetensors"
    tower = {n: t for n, t in load_file(path).items() if n.startswith("vision_model.")}
    save_file(tower, root / "experts/north/model.safetensors")
    assert cli("run", "smoke", "--suite", COPY, "--n", "4", results=results) == 0
    warning = "Warning: expert 'north' equals the base model: its task vector is zero."
    for form in ("md", "tex"):
        text = (results / f"tables/smoke_{COPY}_n4.{form}").read_text()
        assert text.count("equals the base model") == 1
    assert warning in (results / f"tables/smoke_{COPY}_n4.md").read_text()
    for record in (results / "runs").glob("*/run.json"):
        assert json.loads(record.read_text())["notes"] == [warning[9:-1]]
    base, expert = (
        read_rows(run_folder(results, merger=m) / "rows.csv") for m in ("base", "expert")
    )
    assert base["value"][0] == expert["value"][0]


def test_the_note_about_an_expert_is_kept_by_runs_that_share_a_pool(tmp_path, monkeypatch):
    root = copy_toy(tmp_path, monkeypatch)
    path = root / "base/model.safetensors"
    edit_tensors(root / "experts/west", lambda t: t.update(
        {n: x for n, x in load_file(path).items() if n in t}))  # fmt: skip
    session = Session(suite_at(root), tmp_path / "runs")
    specs = [RunSpec(COPY, m).normalised() for m in ("average", "ties")]
    assert session.run_all(specs, force=False).failed == []
    for spec in specs:
        record = json.loads((tmp_path / "runs" / spec.id / "run.json").read_text())
        assert record["notes"] == ["expert 'west' equals the base model: its task vector is zero"]


def test_a_report_on_runs_from_other_files_of_the_suite_says_so(tmp_path, monkeypatch):
    root, results = copy_toy(tmp_path, monkeypatch), tmp_path / "results"
    assert cli("run", "smoke", "--suite", COPY, "--n", "4", results=results) == 0
    path = root / "experts/west/model.safetensors"
    path.write_bytes((root / "experts/east/model.safetensors").read_bytes())
    arguments = ("--suite", COPY, "--n", "4", "--only", "merger=expert")
    assert cli("run", "smoke", *arguments, results=results) == 0
    for record in (results / "runs").glob("*/run.json"):
        edit_json(record, lambda content: content.update(commit="0" * 40, dirty=False))
    assert cli("report", results=results) == 0
    text = (results / f"tables/smoke_{COPY}_n4.md").read_text()
    warnings = [line for line in text.splitlines() if line.startswith("Warning: ")]
    assert len(warnings) == 1
    assert "files" in warnings[0]
