"""The toy suite end to end: what a run leaves behind, and what a second one does."""

from __future__ import annotations

import json
import logging

import pandas as pd
import pytest
import torch
from harness import NAMES, cli, files_under, fresh, run_folder, smoke_results, toy, toy_root
from transformers import AutoTokenizer, CLIPImageProcessor, CLIPModel

from benchmarks.driver import Session
from benchmarks.records import COLUMNS, read_rows
from benchmarks.spec import RunSpec
from benchmarks.sweeps import Options, sweep_named
from merging import calibrate, merge

REPORT = {
    "rows.csv",
    "runs/smoke_toy.json",
    *(f"tables/smoke_toy.{form}" for form in ("csv", "md", "tex")),
    *(f"figures/smoke_toy.{form}" for form in ("png", "svg")),
}
CALIBRATED = {"calibrator": "featcal", "n": 32}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Complete results of ``run smoke``; tests only read them."""
    return smoke_results(tmp_path_factory.mktemp("driver"))


def accuracies(folder):
    rows = read_rows(folder / "rows.csv")
    return rows[rows["metric"] == "accuracy"].set_index("task")["value"].to_dict()


def smoke_specs():
    return sweep_named("smoke").specs(toy(), Options("toy", 32, 1))


def test_a_run_leaves_rows_its_record_and_the_report(results):
    folders = sorted(path.name for path in (results / "runs").iterdir() if path.is_dir())
    assert folders == sorted(spec.id for spec in smoke_specs())
    left = {f"runs/{f}/{n}" for f in folders for n in ("rows.csv", "run.json")}
    assert {f for f in files_under(results) if (results / f).is_file()} == left | REPORT


def test_the_rows_of_a_run_say_what_was_run_on_what(results):
    folder = run_folder(results, **CALIBRATED)
    rows = read_rows(folder / "rows.csv")
    assert list(rows.columns) == COLUMNS
    fixed = rows.drop(columns=["task", "metric", "block", "value"]).drop_duplicates()
    assert fixed.to_dict("records") == [
        {
            "run": folder.name, "suite": "toy", "backbone": "toy-ViT",
            "merger": "task_arithmetic", "merger_args": "", "calibrator": "featcal",
            "calibrator_args": "", "n": 32, "split": "train", "evaluated_on": "test", "seed": 0,
            "source": "measured",
        }
    ]  # fmt: skip
    assert rows[["task", "metric"]].apply(tuple, axis=1).tolist() == [
        *((task, metric) for task in NAMES for metric in ("accuracy", "examples")),
        *(("", f"merge_{what}") for what in ("seconds", "loading_seconds", "rss_peak_bytes")),
        *(("", f"calibrate_{what}") for what in ("seconds", "loading_seconds", "encode_seconds",
                                                 "fit_seconds", "rss_peak_bytes")),
        ("", "load_seconds"), ("", "decode_seconds"),
        ("", "added_parameters"), ("", "needs_task_id"),
    ]  # fmt: skip
    assert rows[rows["metric"] == "examples"]["value"].tolist() == [48, 48, 48]


def test_reference_models_are_rows_of_their_own(results):
    for merger in ("base", "expert"):
        rows = read_rows(run_folder(results, merger=merger) / "rows.csv")
        assert set(zip(rows["calibrator"], rows["n"], rows["split"], strict=True)) == {
            ("none", 0, "")
        }
        costs = {"added_parameters", "needs_task_id"} if merger == "base" else set()
        assert set(rows["metric"]) == {"accuracy", "examples"} | costs  # no method, so no time


def test_a_record_says_what_made_the_run(results):
    record = json.loads((run_folder(results, **CALIBRATED) / "run.json").read_text())
    assert record["spec"]["calibrator"]["ridge"] == 0.05
    assert (record["files"], record["notes"]) == (toy().fingerprint(), [])
    assert (record["device"], record["gpu"], record["threads"]) == ("cpu", "none", 1)
    assert len(record["commit"]) == 40
    assert {"torch", "transformers", "datasets"} <= set(record["packages"])
    assert record["wall_seconds"] > 0


def test_all_rows_are_the_rows_of_all_runs(results):
    every = read_rows(results / "rows.csv")
    parts = [read_rows(p) for p in sorted((results / "runs").glob("*/rows.csv"))]
    pd.testing.assert_frame_equal(every, pd.concat(parts, ignore_index=True))


def independent_accuracy(state, task):
    """Accuracy on test by CLIPModel, its processor and its tokenizer alone."""
    from datasets import Dataset

    clip = CLIPModel.from_pretrained(toy_root() / "base", dtype=torch.float32)
    clip.load_state_dict(state, strict=False)
    tokens = AutoTokenizer.from_pretrained(toy_root() / "base")
    prompts = json.loads((toy_root() / f"labels/{task}.json").read_text())
    table = Dataset.from_parquet(str(toy_root() / f"data/{task}/test.parquet"))
    processor = CLIPImageProcessor.from_pretrained(toy_root() / "base")
    images = processor([i.convert("RGB") for i in table["image"]], return_tensors="pt")
    with torch.inference_mode():
        heads = []
        for name in prompts["classes"]:
            texts = [template.format(name) for template in prompts["templates"]]
            ids = tokens(texts, padding=True, return_tensors="pt")
            ids.pop("token_type_ids", None)
            text = clip.text_projection(clip.text_model(**ids).pooler_output)
            heads.append((text / text.norm(dim=-1, keepdim=True)).mean(0))
        heads = torch.stack([head / head.norm() for head in heads])
        pooled = clip.vision_model(images["pixel_values"]).pooler_output
        scores = clip.visual_projection(pooled) @ heads.T
    return (scores.argmax(-1) == torch.tensor(table["label"])).float().mean().item()


@pytest.mark.parametrize("task", NAMES)
def test_accuracies_equal_those_of_a_computation_of_its_own(results, task):
    base = CLIPModel.from_pretrained(toy_root() / "base", dtype=torch.float32).state_dict()
    experts = {name: toy().experts()[name].state_dict() for name in NAMES}
    merged = {
        name: tensor + 0.3 * sum(expert[name] - tensor for expert in experts.values())
        for name, tensor in base.items()
        if name.startswith("vision_model.")
    }
    for merger, state in (("base", {}), ("expert", experts[task])):
        got = accuracies(run_folder(results, merger=merger))[task]
        assert got == pytest.approx(independent_accuracy(state, task), abs=1e-6)
    got = accuracies(run_folder(results, merger="task_arithmetic", calibrator="none"))[task]
    assert got == pytest.approx(independent_accuracy(merged, task), abs=1e-6)


def test_accuracies_of_a_calibrated_model_equal_those_through_the_thin_api(results):
    pool = toy().pool(32, "train", 0)
    model = calibrate("featcal", merge("task_arithmetic", pool), pool).model
    for task, got in accuracies(run_folder(results, **CALIBRATED)).items():
        assert got == pytest.approx(independent_accuracy(model.state_dict(), task), abs=1e-6)


def test_an_expert_on_every_task_is_in_the_rows_with_its_name(tmp_path):
    suite = toy()
    specs = [RunSpec("toy", f"cross_expert:expert={name}").normalised() for name in NAMES]
    Session(suite, tmp_path).run_all(specs, force=False)
    for name in NAMES:
        folder = next(tmp_path / s.id for s in specs if s.merger.endswith(name))
        rows = read_rows(folder / "rows.csv")
        assert set(rows["merger_args"]) == {f"expert={name}"}
        state = suite.experts()[name].state_dict()
        assert accuracies(folder)["west"] == pytest.approx(independent_accuracy(state, "west"))


def test_a_run_does_not_depend_on_the_runs_before_it(tmp_path, results):
    wanted = next(s for s in smoke_specs() if (s.calibrator, s.n) == ("featcal", 32))
    session = Session(fresh(), tmp_path)
    before = [
        RunSpec("toy", "dare", "featcal", 4, seed=1), RunSpec("toy", "dare", "featcal", 4, seed=2),
        RunSpec("toy", "task_arithmetic:scale=1.0", "featcal", 32),
    ]  # fmt: skip
    session.run_all([*(s.normalised() for s in before), wanted], force=False)
    alone = accuracies(run_folder(results, **CALIBRATED))
    assert accuracies(tmp_path / wanted.id) == alone


def test_dare_draws_anew_for_every_seed(tmp_path):
    specs = [RunSpec("toy", "dare", seed=seed).normalised() for seed in (0, 1)]
    session = Session(toy(), tmp_path)
    models = []
    for spec in specs:
        door = session.trial(spec, session.pool(spec)).model
        models.append(door.model.visual_projection.weight.clone())
        models.append(door.model.vision_model.post_layernorm.weight.clone())
    assert torch.equal(models[0], models[2])  # excluded from merging
    assert not torch.equal(models[1], models[3])


def test_time_spent_loading_is_no_cost_of_a_method(tmp_path, monkeypatch):
    suite, session = toy(), Session(toy(), tmp_path)
    spec = RunSpec("toy", "average").normalised()
    experts = suite.experts()
    with session._timed("merge") as watch:
        monkeypatch.setattr(experts, "seconds", experts.seconds + 1000.0)
    assert watch.cost["merge_seconds"] < -999
    assert watch.cost["merge_loading_seconds"] == pytest.approx(1000.0)
    cost = session.trial(spec, session.pool(spec)).cost
    assert set(cost) == {"load_seconds"} | {
        f"{part}_{what}"
        for part in ("merge", "calibrate")
        for what in ("seconds", "loading_seconds", "rss_peak_bytes")
    }
    assert cost["merge_seconds"] >= 0


def test_a_dry_run_prints_the_runs_and_creates_nothing(tmp_path, capsys):
    assert cli("run", "smoke", "--dry-run", results=tmp_path / "results") == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(s.id for s in smoke_specs())
    assert all("to run" in line for line in lines)
    assert files_under(tmp_path) == []


def test_a_line_per_run_says_what_it_was_and_how_it_went(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    cli("run", "smoke", "--only", "merger=base", results=tmp_path)
    lines = [r.message for r in caplog.records if r.name == "benchmarks.driver"]
    (spec,) = (s for s in smoke_specs() if s.merger == "base")
    mean = 100 * sum(accuracies(tmp_path / "runs" / spec.id).values()) / 3
    assert lines == [f"[1/1] {spec.id} base: mean {mean:.1f} %"]
