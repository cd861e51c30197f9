"""The command line: requests that cannot be carried out, listings, and the report alone."""

from __future__ import annotations

import logging
import shutil

import pytest
from harness import COPY, cli, copy_toy, files_under, run_folder, smoke_results

from benchmarks.__main__ import main
from benchmarks.records import read_rows
from benchmarks.suites import SUITES
from merging import CALIBRATORS, MERGERS

TABLE = "tables/smoke_toy.md"


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("smok",), ["unknown sweep 'smok'", "did you mean 'smoke'", "table-clip"]),
        (("smoke", "--suite", "toi"), ["unknown suite 'toi'", "did you mean 'toy'"]),
        (("smoke", "--n", "0"), ["--n and --seeds are at least 1, got 0 and 1"]),
        (("smoke", "--seeds", "-1"), ["--n and --seeds are at least 1, got 32 and -1"]),
        (("smoke", "--only", "merger=bas"), ["matches no run", "did you mean 'base'"]),
        (("smoke", "--only", "speed=1"), ["expected key=value with a key of: suite, merger"]),
        (("smoke", "--device", "cuda"), ["--device cuda", "no CUDA"]),
        (("smoke", "--device", "gpu"), ["device", "gpu", "cpu"]),
        (("smoke", "--threads", "0"), ["threads", "0"]),
        (
            ("smoke", "--n", "1000"),
            ["1000 calibration examples asked for, its train split has 64", "of at most 64"],
        ),
    ],
)
def test_a_request_that_cannot_be_carried_out_ends_with_2_and_writes_nothing(
    arguments, fragments, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    copy_toy(tmp_path / "other", monkeypatch)  # builds the toy suite, so that time is not counted
    code = cli("run", *arguments, results=tmp_path / "results")
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert [part for part in fragments if part not in message] == [], message
    assert (code, files_under(tmp_path / "results")) == (2, [])


def test_an_error_about_a_name_is_not_put_in_quotes(tmp_path, capsys):
    cli("run", "smok", results=tmp_path)
    assert capsys.readouterr().err.startswith("error: unknown sweep 'smok'")


@pytest.mark.parametrize("arguments", [[], ["walk"], ["run"], ["run", "smoke", "--n", "many"]])
def test_a_command_line_that_cannot_be_parsed_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: python -m benchmarks" in capsys.readouterr().err


def test_the_list_names_every_method_with_its_fields_and_every_suite_and_sweep(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for registry in (MERGERS, CALIBRATORS):
        assert [name for name in registry if f"  {name} " not in text] == []
    assert "ridge=0.05, rho=2.2, alpha=0.25" in text
    assert "reconstructed: from the released script" in text
    assert [name for name in (*SUITES, "table-clip", "smoke", "scores") if name not in text] == []


def test_a_report_is_made_again_from_complete_runs_alone(tmp_path, monkeypatch):
    results = smoke_results(tmp_path)
    before = {p.name: p.read_bytes() for part in ("tables", "figures")
              for p in (results / part).iterdir()}  # fmt: skip
    for part in ("tables", "figures"):
        shutil.rmtree(results / part)
    assert cli("report", "smoke", results=results) == 0
    assert {p.name: p.read_bytes() for part in ("tables", "figures")
            for p in (results / part).iterdir()} == before  # fmt: skip


def test_a_report_without_runs_is_refused(tmp_path, capsys):
    assert cli("report", results=tmp_path / "results") == 2
    assert "holds no complete run" in capsys.readouterr().err
    assert files_under(tmp_path) == []


def test_a_record_that_cannot_be_read_is_named_by_the_report(tmp_path, capsys):
    results = smoke_results(tmp_path)
    folder = run_folder(results, merger="base")
    (folder / "run.json").write_text("{")
    assert cli("report", results=results) == 2
    assert str(folder / "run.json") in capsys.readouterr().err


def test_a_report_keeps_the_options_of_the_run(tmp_path, monkeypatch):
    copy_toy(tmp_path, monkeypatch)
    results = tmp_path / "results"
    assert cli("run", "smoke", "--suite", COPY, "--n", "5", results=results) == 0
    path = results / f"tables/smoke_{COPY}_n5.md"
    before = path.read_bytes()
    shutil.rmtree(results / "tables")
    assert cli("report", results=results) == 0
    assert path.read_bytes() == before


def test_a_table_says_how_many_runs_are_missing(tmp_path):
    results = smoke_results(tmp_path)
    shutil.rmtree(run_folder(results, calibrator="featcal", n=4))
    assert cli("report", "smoke", results=results) == 0
    assert "\nIncomplete: 1 of 11 runs are missing" in (results / TABLE).read_text()


@pytest.mark.parametrize(
    "only", ["merger=base", "merger=task_arithmetic", "calibrator=featcal", "n=4"]
)
def test_a_sweep_narrowed_to_some_runs_reports_these(only, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    assert cli("run", "smoke", "--only", only, results=tmp_path) == 0
    key, value = only.split("=")
    assert set(read_rows(tmp_path / "rows.csv")[key].astype(str)) == {value}
    assert (tmp_path / TABLE).is_file()


@pytest.mark.parametrize(
    ("only", "ending"),
    [("merger=base", ""), ("merger=average", ""), ("merger=cross_expert", "_cross_experts")],
)
def test_the_clip_table_narrowed_to_some_runs_reports_these(only, ending, tmp_path, monkeypatch):
    copy_toy(tmp_path, monkeypatch)
    results = tmp_path / "results"
    arguments = ("--suite", COPY, "--n", "8", "--seeds", "1", "--only", only)
    assert cli("run", "table-clip", *arguments, results=results) == 0
    names = [p.name for p in (results / "tables").glob("*.md")]
    assert names == [f"table-clip_{COPY}_n8_seeds1{ending}.md"]


def test_the_whole_clip_table_runs_on_the_toy_suite(tmp_path, monkeypatch):
    copy_toy(tmp_path, monkeypatch)
    results = tmp_path / "results"
    arguments = ("--suite", COPY, "--n", "16", "--seeds", "2")
    assert cli("run", "table-clip", *arguments, results=results) == 0
    table = (results / f"tables/table-clip_{COPY}_n16_seeds2.md").read_text()
    for cls in MERGERS.values():
        assert f"| {cls.title} " in table.replace("**", "")
    assert table.count(" ± ") >= len(MERGERS) + 2
    matrix = (results / f"tables/table-clip_{COPY}_n16_seeds2_cross_experts.csv").read_text()
    assert [line.split(",")[0] for line in matrix.splitlines()] == [
        "expert", "north", "east", "west", "base"
    ]  # fmt: skip
    rows = read_rows(results / "rows.csv")
    experts = rows[(rows["merger"] == "expert") & (rows["metric"] == "accuracy")]
    for task, value in zip(experts["task"], experts["value"], strict=True):
        own = rows[(rows["merger_args"] == f"expert={task}") & (rows["task"] == task)]
        assert own[own["metric"] == "accuracy"]["value"].tolist() == [value]
