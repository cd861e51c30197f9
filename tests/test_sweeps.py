"""Sweeps of the studies, which splits they may read, and how the driver runs repeats."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from harness import NAMES, fresh, toy

from benchmarks import driver
from benchmarks.driver import Session
from benchmarks.records import ALL, read_rows
from benchmarks.spec import RunSpec
from benchmarks.sweeps import FEW, SWEEPS, Options, chosen_settings, stem_of
from merging import CALIBRATORS

CALIBRATED = [name for name in CALIBRATORS if name != "none"]


def specs_of(name, n=16, seeds=2):
    return SWEEPS[name].specs(toy(), Options("toy", n, seeds))


def name_of(spec):
    return spec.calibrator.partition(":")[0]


def spec(calibrator="featcal", n=8, **fields):
    return RunSpec("toy", "average", calibrator, n, **fields).normalised()


# ---- what the sweeps hold


@pytest.mark.parametrize(
    ("n", "sizes"),
    [(4, {4}), (64, {4, 8, 16, 32, 64}), (48, {4, 8, 16, 32, 48}), (2, {2})],
)
def test_sample_efficiency_runs_every_size_below_n_and_n_itself(n, sizes):
    assert {s.n for s in specs_of("sample-efficiency", n)} == sizes | {0}


def test_sample_efficiency_crosses_every_size_with_every_calibrator_and_seed():
    specs = specs_of("sample-efficiency", 16, 3)
    crossed = {(name_of(s), s.n, s.seed) for s in specs if s.n}
    assert crossed == set(itertools.product(CALIBRATED, (4, 8, 16), (0, 1, 2)))
    assert len(specs) == len(crossed) + 3
    assert [s.merger for s in specs if not s.n] == ["base", "expert", "task_arithmetic"]


@pytest.mark.parametrize("name", ["sample-efficiency", "runtime", "drift"])
def test_studies_take_the_settings_that_were_chosen_for_the_suite(name):
    plain = {s.calibrator for s in specs_of(name) if "recompute" not in s.calibrator}
    assert plain == set(chosen_settings(toy()))
    assert "surgery:steps=100" in plain


def test_run_time_repeats_every_calibrator_and_its_variant_without_a_cache():
    specs = specs_of("runtime", seeds=3)
    repeated = Counter((s.calibrator, s.repeat) for s in specs)
    variants = {f"{c}:recompute=true,steps=100" for c in ("surgery", "probsurgery")}
    wanted = itertools.product({*chosen_settings(toy()), *variants}, (1, 2, 3))
    assert repeated == Counter(wanted)
    assert {(s.n, s.seed) for s in specs if s.calibrator != "none"} == {(16, 0)}


def test_run_time_lets_all_calibrators_take_turns():
    specs = specs_of("runtime", seeds=3)
    turns = [[s.calibrator for s in group] for _, group in itertools.groupby(
        specs, key=lambda s: s.repeat)]  # fmt: skip
    assert len(turns) == 3
    assert turns[0] == turns[1] == turns[2]


def test_repeats_are_runs_of_their_own():
    ids = {spec(repeat=repeat).id for repeat in (0, 1, 2)}
    assert len(ids) == 3
    assert spec(repeat=2).title() == "average + featcal n=8 seed 0 repeat 2"


def test_drift_is_measured_of_all_runs_and_points_are_drawn_of_one_seed():
    specs = specs_of("drift", seeds=2)
    assert all({"scores", "cost", "drift", "feature_drift"} <= set(s.measures) for s in specs)
    drawn = [s for s in specs if "tsne" in s.measures]
    assert {(s.merger, s.n, s.seed) for s in drawn} == {("task_arithmetic", 16, 0)}
    assert [name_of(s) for s in drawn] == CALIBRATED
    assert {s.n for s in specs} == {0, FEW, 16}


# ---- which splits they read


def test_only_the_native_protocol_reads_the_test_split():
    specs = specs_of("native")
    native = [s for s in specs if "protocol=native" in s.calibrator]
    assert {(name_of(s), s.seed) for s in native} == set(
        itertools.product(("surgery", "probsurgery"), (0, 1))
    )
    assert {(s.n, s.split, s.evaluate) for s in native} == {(ALL, "test", "test")}
    assert {s.split for s in specs if s not in native} == {"", "train"}
    assert {name_of(s) for s in specs if s.split == "train"} == set(CALIBRATED)


@pytest.mark.parametrize("name", sorted(set(SWEEPS) - {"native"}))
def test_no_other_sweep_calibrates_on_anything_but_train(name):
    specs = specs_of(name)
    assert {s.split for s in specs} == {"", "train"}
    assert not any("native" in s.calibrator for s in specs)


def test_the_search_for_settings_of_corrections_never_sees_the_test_split():
    specs = specs_of("tune-surgery", 64, 1)
    assert {s.evaluate for s in specs} == {"validation"}
    searched = [s for s in specs if s.n]
    assert {name_of(s) for s in searched} == {"surgery", "probsurgery", "ridge_surgery"}
    both = Counter(s.calibrator for s in searched)
    assert set(both.values()) == {2}  # once at each size
    assert {s.n for s in searched} == {FEW, 64}


# ---- names of files


@pytest.mark.parametrize(
    ("name", "options", "stem"),
    [
        ("drift", Options("toy", 256, 3), "drift_toy"),
        ("drift", Options("mini-clip8", 256, 3), "drift_mini-clip8"),
        ("drift", Options("toy", 64, 3), "drift_toy_n64"),
        ("drift", Options("toy", 64, 1), "drift_toy_n64_seeds1"),
        ("runtime", Options("toy", 256, 5), "runtime_toy"),
        ("runtime", Options("toy", 256, 3), "runtime_toy_seeds3"),
    ],
)
def test_file_names_hold_what_is_not_the_sweeps_default(name, options, stem):
    assert stem_of(name, options) == stem


# ---- what a spec refuses

NATIVE = ["surgery:protocol=native", "probsurgery:protocol=native"]
MATCHED = ["surgery", "probsurgery", "ridge_surgery", "featcal"]


@pytest.mark.parametrize("calibrator", NATIVE)
@pytest.mark.parametrize(
    ("split", "evaluate"), [("train", "test"), ("validation", "test"), ("test", "validation")]
)
def test_the_native_protocol_must_be_given_the_split_that_is_scored(calibrator, split, evaluate):
    reason = (
        f"fitted to the very examples that are scored.*split='{evaluate}' .got split='{split}'"
        ".*protocol=matched"
    )
    with pytest.raises(ValueError, match=reason):
        spec(calibrator, split=split, evaluate=evaluate)


@pytest.mark.parametrize("calibrator", NATIVE)
@pytest.mark.parametrize("split", ["test", "validation"])
def test_the_native_protocol_on_the_split_that_is_scored_is_allowed(calibrator, split):
    run = spec(calibrator, ALL, split=split, evaluate=split)
    assert (run.n, run.split, run.evaluate) == (ALL, split, split)


@pytest.mark.parametrize("calibrator", MATCHED)
@pytest.mark.parametrize(
    ("split", "evaluate"),
    [("test", "test"), ("test", "validation"), ("validation", "validation")],
)
def test_other_calibrators_are_refused_the_test_split_and_the_scored_one(
    calibrator, split, evaluate
):
    with pytest.raises(ValueError, match=f"from the '{split}' split would be scored on that split"):
        spec(calibrator, split=split, evaluate=evaluate)


def test_all_examples_of_a_split_are_a_size():
    run = spec("featcal", ALL)
    assert run.n == ALL
    assert run.title() == "average + featcal n=all seed 0"
    pool = toy().pool(ALL, "validation", 0)
    for name in NAMES:
        assert sum(len(b["pixel_values"]) for b in pool.calibration[name]) == 32


def test_a_run_on_the_scored_split_says_so_in_its_title():
    run = spec("surgery:protocol=native", ALL, split="test")
    assert "n=all of the test split" in run.title()


# ---- repeats in the driver


def counted(monkeypatch):
    """(calibrator's name, examples of the first task) of every calibration that is run."""
    calls, real = [], driver.calibrate

    def calibrate(method, merged, pool):
        made = CALIBRATORS.made(method)
        batches = pool.calibration.get(NAMES[0], ())
        calls.append((made.name, sum(len(b["pixel_values"]) for b in batches)))
        return real(method, merged, pool)

    monkeypatch.setattr(driver, "calibrate", calibrate)
    return calls


def test_a_session_warms_each_calibrator_up_once_on_two_examples(tmp_path, monkeypatch):
    calls = counted(monkeypatch)
    for folder in ("one", "two"):
        session = Session(fresh(), tmp_path / folder)
        for repeat, calibrator in itertools.product((1, 2), ("none", "featcal", "surgery:steps=2")):
            run = spec(calibrator, repeat=repeat, measures=("cost",))
            session.run(run)
        first = [("none", 0), ("featcal", 8), ("surgery", 8)]
        warm = [("none", 0), ("none", 0), ("featcal", 2), first[1], ("surgery", 2), first[2]]
        assert calls == warm + first
        calls.clear()


def test_a_run_that_is_no_repeat_is_not_warmed_up(tmp_path, monkeypatch):
    calls = counted(monkeypatch)
    Session(toy(), tmp_path).run(spec(measures=("cost",)))
    assert calls == [("featcal", 8)]


def test_encoding_anew_changes_no_accuracy_and_no_drift(tmp_path):
    session, tables = Session(toy(), tmp_path), []
    for anew in ("false", "true"):
        run = spec(f"surgery:steps=20,rate=0.01,recompute={anew}", repeat=1,
                   measures=("scores", "feature_drift"))  # fmt: skip
        session.run(run)
        rows = read_rows(tmp_path / run.id / "rows.csv")
        assert set(rows["calibrator_args"].str.contains("recompute=true")) == {anew == "true"}
        tables.append(rows.set_index(["metric", "task"])["value"])
    kept, recomputed = tables
    assert kept["accuracy"].to_dict() == recomputed["accuracy"].to_dict()
    for metric in ("feature_drift_l2", "feature_drift_l1", "feature_cosine"):
        assert kept[metric].to_dict() == pytest.approx(recomputed[metric].to_dict(), abs=1e-5)
    uncorrected = spec("none", measures=("feature_drift",))
    session.run(uncorrected)
    rows = read_rows(tmp_path / uncorrected.id / "rows.csv").set_index(["metric", "task"])["value"]
    assert (rows["feature_drift_l1"] - kept["feature_drift_l1"]).min() > 1e-3
