"""Publishing: results of one clean commit are copied with their origin, others are refused."""

from __future__ import annotations

import json
import shutil

import pytest
from harness import cli, edit_json, files_under, smoke_results

from benchmarks.records import read_rows

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def results(tmp_path):
    """Complete results that say they come from one clean commit."""
    results = smoke_results(tmp_path)
    for record in sorted((results / "runs").glob("*/run.json")):
        edit_json(record, lambda content: content.update(commit=COMMIT, dirty=False))
    return results


def records(results):
    return sorted((results / "runs").glob("*/run.json"))


def test_clean_results_are_copied_with_their_origin(results):
    assert cli("publish", results=results) == 0
    copied = {*(f"tables/smoke_toy.{e}" for e in ("csv", "md", "tex")),
              *(f"figures/smoke_toy.{e}" for e in ("png", "svg"))}  # fmt: skip
    target = results / "embedded"
    files = {f for f in files_under(target) if (target / f).is_file()}
    assert files == copied | {"provenance.json", "rows/smoke_toy.csv"}
    rows = [read_rows(target / "rows/smoke_toy.csv"), read_rows(results / "rows.csv")]
    assert len(rows[0]) == len(rows[1])
    assert set(rows[0]["run"]) == set(rows[1]["run"])
    assert all((target / f).read_bytes() == (results / f).read_bytes() for f in copied)
    (origin,) = json.loads((target / "provenance.json").read_text()).values()
    assert (origin["commit"], origin["runs"]) == (COMMIT, 11)
    assert {"python", "packages", "cpu", "cores", "threads", "device"} <= set(origin)
    assert origin["wall_seconds"] == round(
        sum(json.loads(r.read_text())["wall_seconds"] for r in records(results))
    )


def test_what_an_earlier_publishing_left_is_replaced(results):
    assert cli("publish", results=results) == 0
    path = results / "embedded/provenance.json"
    old = results / "embedded/tables/old.md"
    old.write_text("old")
    edit_json(path, lambda content: content["smoke_toy"]["files"].append("tables/old.md"))
    assert cli("publish", results=results) == 0
    assert not old.exists()


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        ({"dirty": True}, ["from 1 commits", "1 of them with uncommitted changes"]),
        ({"commit": "f" * 40}, ["from 2 commits", "0 of them with uncommitted changes"]),
        ({"commit": "unknown"}, ["commit"]),
    ],
)
def test_one_run_of_other_code_is_refused(change, fragments, results, capsys):
    edit_json(records(results)[2], lambda content: content.update(change))
    assert cli("publish", results=results) == 2
    message = capsys.readouterr().err
    assert [part for part in fragments if part not in message] == []
    assert "published results of a sweep come from one clean commit" in message
    assert "runs of smoke_toy come" in message
    assert not (results / "embedded").exists()


def test_runs_of_two_machines_are_not_published_as_one_table(results, capsys):
    edit_json(records(results)[1], lambda content: content.update(threads=64))
    assert cli("publish", results=results) == 2
    assert "the runs of smoke_toy come from 2 machines" in capsys.readouterr().err


def test_two_sweeps_may_come_from_two_commits(results):
    before = set(records(results))
    assert cli("run", "drift", "--suite", "toy", "--only", "merger=base", results=results) == 0
    (new,) = set(records(results)) - before
    edit_json(new, lambda content: content.update(commit="f" * 40, dirty=False))
    assert cli("publish", results=results) == 0
    origin = json.loads((results / "embedded/provenance.json").read_text())
    assert {name: (made["commit"], made["runs"]) for name, made in origin.items()} == {
        "smoke_toy": (COMMIT, 11),
        "drift_toy": ("f" * 40, 1),
    }


def test_results_of_no_known_commit_are_refused(results):
    for record in records(results):
        edit_json(record, lambda content: content.update(commit="unknown"))
    assert cli("publish", results=results) == 2
    assert not (results / "embedded").exists()


def test_nothing_to_publish_is_an_error(tmp_path, capsys):
    assert cli("publish", results=tmp_path / "results") == 2
    assert "0 complete runs" in capsys.readouterr().err
    assert files_under(tmp_path) == []


def test_a_sweep_published_before_stays_with_its_own_origin(results, tmp_path):
    assert cli("publish", results=results) == 0
    first = json.loads((results / "embedded/provenance.json").read_text())
    before = {f: (results / "embedded" / f).read_bytes() for f in first["smoke_toy"]["files"]}
    shutil.rmtree(results / "runs")
    assert cli("run", "drift", "--suite", "toy", "--only", "merger=base", results=results) == 0
    for record in records(results):
        edit_json(record, lambda content: content.update(commit="f" * 40, dirty=False))
    assert cli("publish", results=results) == 0
    origin = json.loads((results / "embedded/provenance.json").read_text())
    assert origin["smoke_toy"] == first["smoke_toy"]
    assert {f: (results / "embedded" / f).read_bytes() for f in before} == before
    assert origin["drift_toy"]["commit"] == "f" * 40


def test_a_refused_publishing_leaves_what_was_published(results):
    assert cli("publish", results=results) == 0
    before = files_under(results / "embedded")
    edit_json(records(results)[0], lambda content: content.update(dirty=True))
    assert cli("publish", results=results) == 2
    assert files_under(results / "embedded") == before


def test_a_report_warns_of_several_commits_and_of_uncommitted_changes(results):
    edit_json(records(results)[0], lambda content: content.update(commit="f" * 40, dirty=True))
    assert cli("report", "smoke", results=results) == 0
    text = (results / "tables/smoke_toy.md").read_text()
    assert "\nWarning: runs come from 2 commits (0123456789ab, ffffffffffff).\n" in text
    assert "\nWarning: some runs were made by code with uncommitted changes.\n" in text


def test_a_clean_report_names_its_commit_and_machine_and_warns_of_nothing(results):
    assert cli("report", "smoke", results=results) == 0
    text = (results / "tables/smoke_toy.md").read_text()
    assert "Warning" not in text
    cpu = json.loads(records(results)[0].read_text())["cpu"]
    assert f"\nRuns: commit 0123456789ab; {cpu}, 1 threads, cpu.\n" in text
