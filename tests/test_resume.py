"""Runs are whole or absent: resuming, forcing, failing, crashing, interrupting, changed files."""

from __future__ import annotations

import dataclasses
import logging
from typing import ClassVar

import pytest
from harness import (
    COPY,
    cli,
    copy_toy,
    files_under,
    run_folder,
    smoke_results,
    toy,
)  # fmt: skip

from benchmarks import driver
from benchmarks.driver import Session, complete_runs
from benchmarks.records import read_rows
from benchmarks.spec import RunSpec
from benchmarks.sweeps import SWEEPS, Sweep
from merging import CALIBRATORS, MERGERS

TASK_ARITHMETIC = {"merger": "task_arithmetic", "calibrator": "none"}


def method(name, error):
    """A merger or calibrator of that name that raises ``error`` when called."""

    @dataclasses.dataclass(frozen=True)
    class Broken:
        needs_data: ClassVar[bool] = False
        draws: ClassVar[bool] = False

        def __call__(self, *_):
            raise error

    Broken.name, Broken.title, Broken.paper, Broken.reconstructed = name, name.title(), "", ""
    return Broken


@pytest.fixture
def mixed(monkeypatch):
    """A sweep ``mixed`` of a run that works, one whose merger fails, one whose calibrator does."""
    monkeypatch.setitem(MERGERS, "broken", method("broken", RuntimeError("merger's own words")))
    monkeypatch.setitem(CALIBRATORS, "cracked", method("cracked", ArithmeticError("no inverse")))

    def plan(suite, _):
        yield RunSpec(suite.name, "broken")
        yield RunSpec(suite.name, "average", "cracked")
        yield RunSpec(suite.name, "average")

    monkeypatch.setitem(
        SWEEPS, "mixed", Sweep("mixed", plan, tables=("main",), defaults=SWEEPS["smoke"].defaults)
    )


def ids(results):
    return {path.name for path in complete_runs(results / "runs")}


def stamps(results):
    return {p: p.stat().st_mtime_ns for p in sorted((results / "runs").glob("*/*"))}


def values(results):
    rows = read_rows(results / "rows.csv")
    rows = rows[~rows["metric"].str.endswith(("_seconds", "_bytes"))]
    return rows.drop(columns=["source"]).to_csv(index=False)


def test_a_second_call_computes_nothing_and_says_so(tmp_path, caplog):
    results = smoke_results(tmp_path)
    before = stamps(results)
    caplog.set_level(logging.INFO)
    assert cli("run", "smoke", results=results) == 0
    assert stamps(results) == before
    assert f"nothing to compute: all rows are in {results / 'runs'}" in caplog.text
    assert "0 run, 11 skipped, 0 failed" in caplog.text


def test_a_second_call_writes_the_same_report(tmp_path):
    results = smoke_results(tmp_path)
    reports = [p for p in results.rglob("smoke_toy*")] + [results / "rows.csv"]
    before = {path: path.read_bytes() for path in reports}
    for path in reports:
        path.unlink()
    assert cli("run", "smoke", results=results) == 0
    assert {path: path.read_bytes() for path in reports} == before


def test_only_what_is_missing_is_run(tmp_path):
    results = smoke_results(tmp_path)
    gone = run_folder(results, **TASK_ARITHMETIC)
    (gone / "rows.csv").unlink()
    before = {p: t for p, t in stamps(results).items() if p.parent != gone}
    assert cli("run", "smoke", results=results) == 0
    assert (gone / "rows.csv").is_file()
    assert {p: t for p, t in stamps(results).items() if p.parent != gone} == before


def test_forced_runs_are_made_again_with_the_same_values_bit_for_bit(tmp_path):
    results = smoke_results(tmp_path)
    before, old = stamps(results), values(results)
    assert cli("run", "smoke", "--force", results=results) == 0
    after = stamps(results)
    assert after.keys() == before.keys()
    assert all(after[path] > before[path] for path in after)
    assert values(results) == old


def test_force_with_only_leaves_the_other_runs_alone(tmp_path):
    results = smoke_results(tmp_path)
    before = stamps(results)
    assert cli("run", "smoke", "--force", "--only", "merger=base", results=results) == 0
    changed = {p.parent for p, t in stamps(results).items() if before.get(p) != t}
    assert changed == {run_folder(results, merger="base")}


def test_a_failing_run_is_named_and_the_others_go_on(tmp_path, mixed, caplog):
    caplog.set_level(logging.INFO)
    assert cli("run", "mixed", results=tmp_path) == 1
    specs = {spec.title(): spec.id for spec in SWEEPS["mixed"].specs(toy(), None)}
    failed = [specs["broken"], specs["average + cracked"]]
    for run, text in zip(failed, ("RuntimeError: merger's own words", "no inverse"), strict=True):
        assert files_under(tmp_path / "runs" / run) == ["error.txt"]
        error = (tmp_path / "runs" / run / "error.txt").read_text()
        assert text in error
        assert "Traceback" in error
        assert run in caplog.text
    assert ids(tmp_path) == {specs["average"]}
    assert set(read_rows(tmp_path / "rows.csv")["run"]) == {specs["average"]}
    assert "1 run, 0 skipped, 2 failed" in caplog.text
    assert f"failed: {', '.join(failed)} (see error.txt" in caplog.text
    assert "Incomplete: 2 of 3 runs are missing" in (tmp_path / "tables/mixed_toy.md").read_text()


def test_a_failed_run_is_tried_again_and_its_error_goes_away(tmp_path, mixed, monkeypatch):
    cli("run", "mixed", results=tmp_path)
    working = dataclasses.dataclass(frozen=True)(type("Mended", (MERGERS["broken"],), {
        "__call__": lambda self, pool: {}}))  # fmt: skip
    monkeypatch.setitem(MERGERS, "broken", working)
    assert cli("run", "mixed", results=tmp_path) == 1  # the calibrator still fails
    folder = run_folder(tmp_path, merger="broken")
    assert files_under(folder) == ["rows.csv", "run.json"]


def test_a_sweep_of_failures_alone_leaves_no_rows(tmp_path, mixed):
    assert cli("run", "mixed", "--only", "merger=broken", results=tmp_path) == 1
    assert [f for f in files_under(tmp_path) if f.endswith((".csv", ".md"))] == []


def test_a_forced_run_that_fails_removes_the_old_rows(tmp_path, monkeypatch):
    results = smoke_results(tmp_path)
    folder = run_folder(results, calibrator="featcal", n=32)

    def fail(*_):
        raise RuntimeError("now")

    monkeypatch.setattr(CALIBRATORS["featcal"], "__call__", fail)
    arguments = ("--force", "--only", "calibrator=featcal")
    assert cli("run", "smoke", *arguments, results=results) == 1
    assert not (folder / "rows.csv").exists()
    assert (folder / "error.txt").is_file()
    assert "featcal" not in set(read_rows(results / "rows.csv")["calibrator"])


@pytest.mark.parametrize("error", [RuntimeError("disk full"), KeyboardInterrupt()])
def test_a_crash_between_record_and_rows_leaves_no_rows_and_is_run_again(
    error, tmp_path, monkeypatch
):
    spec = RunSpec("toy", "base").normalised()
    session = Session(toy(), tmp_path)

    def crash(*_):
        raise error

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(driver, "write_rows", crash)
        session.run(spec)
    assert files_under(tmp_path) == []
    assert not session.complete(spec)
    assert session.run_all([spec], force=False).done == [spec.id]
    assert session.complete(spec)


def test_an_interrupted_run_leaves_no_rows_and_ends_the_sweep(tmp_path, mixed, monkeypatch):
    monkeypatch.setitem(MERGERS, "broken", method("broken", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        cli("run", "mixed", results=tmp_path)
    assert not [f for f in files_under(tmp_path) if f.endswith("rows.csv")]


def test_a_half_written_file_is_never_taken_for_a_result(tmp_path):
    results = smoke_results(tmp_path)
    folder = run_folder(results, merger="base")
    (folder / "rows.csv").rename(folder / ".rows.csv-x1y2z3")
    session = Session(toy(), results / "runs")
    assert not session.complete(RunSpec("toy", "base").normalised())
    assert len(ids(results)) == 10
    assert cli("run", "smoke", results=results) == 0
    assert files_under(folder) == ["rows.csv", "run.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_damaged_record_makes_a_run_incomplete(content, tmp_path):
    results = smoke_results(tmp_path)
    (run_folder(results, merger="base") / "run.json").write_text(content)
    session = Session(toy(), results / "runs")
    assert not session.complete(RunSpec("toy", "base").normalised())


def test_changed_files_of_a_suite_make_its_runs_again(tmp_path, monkeypatch, caplog):
    root, results = copy_toy(tmp_path, monkeypatch), tmp_path / "results"
    arguments = ("run", "smoke", "--suite", COPY, "--only", "calibrator=none")
    cli(*arguments, results=results)
    before = values(results)
    (root / "experts/north/model.safetensors").write_bytes(
        (root / "experts/west/model.safetensors").read_bytes()
    )
    caplog.set_level(logging.INFO)
    assert cli(*arguments, results=results) == 0
    assert "3 run, 0 skipped" in caplog.text
    assert values(results) != before
