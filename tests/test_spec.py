"""Specs and sweeps: one spelling per run, ids, filters, errors that name the nearest."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json

import pytest
from harness import toy

from benchmarks.spec import RunSpec, selected
from benchmarks.sweeps import FEW, SWEEPS, Options, Sweep, sweep_named
from merging import CALIBRATORS, MERGERS
from merging.mergers.task_arithmetic import TaskArithmetic


def spec(merger="task_arithmetic", calibrator="none", n=0, **more):
    return RunSpec("toy", merger, calibrator, n, **more).normalised()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("task_arithmetic",), ("task_arithmetic:scale=0.3",)),
        (("task_arithmetic:scale=0.30",), ("task_arithmetic:scale=3e-1",)),
        (("dare: scale=0.4 , drop=0.9",), ("dare:drop=0.9,scale=0.4",)),
        (("average", "featcal:rho=2.2", 8), ("average", "featcal", 8)),
        (("average", "featcal:rho=2,ridge=1", 8), ("average", "featcal:ridge=1.0,rho=2.0", 8)),
    ],
)
def test_two_spellings_of_a_run_are_one_run(one, other):
    assert spec(*one) == spec(*other)
    assert spec(*one).id == spec(*other).id


@pytest.mark.parametrize(
    "other",
    [
        spec("task_arithmetic:scale=0.4", "featcal", 8),
        spec("average", "featcal", 8),
        spec("task_arithmetic", "featcal:rho=2.0", 8),
        spec("task_arithmetic", "featcal", 9),
        spec("task_arithmetic", "featcal", 8, seed=1),
        spec("task_arithmetic", "featcal", 8, split="validation"),
        spec("task_arithmetic", "featcal", 8, evaluate="validation"),
        spec("task_arithmetic", "featcal", 8, measures=("scores",)),
        dataclasses.replace(spec("task_arithmetic", "featcal", 8), suite="mini-clip8"),
    ],
)
def test_whatever_changes_a_result_changes_the_id(other):
    assert other.id != spec("task_arithmetic", "featcal", 8).id


def test_an_id_is_twelve_hex_digits_and_the_same_in_every_process():
    text = json.dumps(spec().resolved(), sort_keys=True)
    assert spec().id == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_a_changed_default_changes_the_id(monkeypatch):
    before, old = spec(), spec().id

    @dataclasses.dataclass(frozen=True)
    class Changed(TaskArithmetic):
        scale: float = 0.4

    monkeypatch.setitem(MERGERS, "task_arithmetic", Changed)
    assert spec() == before  # the same short spelling ...
    assert spec().id != old  # ... is another run


def test_a_resolved_spec_holds_every_hyperparameter_in_force():
    resolved = spec("task_arithmetic:scale=0.5", "featcal:rho=2.0", 8).resolved()
    assert resolved["merger"] == {"name": "task_arithmetic", "scale": 0.5}
    fields = {f.name: f.default for f in dataclasses.fields(CALIBRATORS["featcal"])}
    assert resolved["calibrator"] == {"name": "featcal", **fields, "rho": 2.0}


@pytest.mark.parametrize("merger", ["average", "task_arithmetic", "ties", "base", "expert"])
def test_a_run_without_data_has_no_n_no_split_and_seed_zero(merger):
    run = spec(merger, n=64, seed=2, split="validation")
    assert (run.n, run.split, run.seed) == (0, "", 0)


def test_dare_keeps_its_seed_and_nothing_else():
    run = spec("dare", n=64, seed=2)
    assert (run.n, run.split, run.seed) == (0, "", 2)


def test_a_calibrated_run_keeps_size_split_and_seed():
    run = spec("average", "featcal", n=64, seed=2)
    assert (run.n, run.split, run.seed) == (64, "train", 2)


@pytest.mark.parametrize("split", ["test", "validation"])
def test_calibrating_on_the_split_that_is_scored_is_refused(split):
    with pytest.raises(ValueError, match=f"from the '{split}' split would be scored on that split"):
        spec("average", "featcal", 8, split=split, evaluate=split)


@pytest.mark.parametrize("n", [0, -2])
def test_a_calibrator_without_examples_is_refused(n):
    with pytest.raises(ValueError, match=f"featcal need calibration examples, got n={n}"):
        spec("average", "featcal", n)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (("task_aritmetic",), r"unknown merger 'task_aritmetic'; did you mean 'task_arithmetic'"),
        (("average", "featcall"), r"unknown calibrator 'featcall'; did you mean 'featcal'"),
        (("ties:desity=1",), r"merger 'ties' has no hyperparameter 'desity'; it has: .*density"),
    ],
)
def test_an_unknown_method_or_field_names_the_known(run, message):
    with pytest.raises((KeyError, ValueError), match=message):
        spec(*run)


def test_titles_are_for_people():
    assert spec("base").title() == "base"
    assert spec("dare", seed=1).title() == "dare seed 1"
    calibrated = spec("task_arithmetic:scale=0.2", "featcal", 8, seed=2)
    assert calibrated.title() == "task_arithmetic:scale=0.2 + featcal n=8 seed 2"


def test_an_unknown_sweep_names_the_nearest():
    with pytest.raises(KeyError, match=r"unknown sweep 'table-klip'; did you mean 'table-clip'"):
        sweep_named("table-klip")


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_holds_each_run_once_in_one_spelling(name):
    specs = SWEEPS[name].specs(toy(), Options("toy", 16, 2))
    assert len({s.id for s in specs}) == len(specs) > 0
    assert all(s == s.normalised() for s in specs)


def test_runs_that_share_a_merged_model_lie_side_by_side():
    specs = SWEEPS["table-clip"].specs(toy(), Options("toy", 16, 3))
    mergers = [s.merger for s in specs]
    assert len(list(itertools.groupby(mergers))) == len(set(mergers))
    dare = [s.seed for s in specs if s.merger == "dare"]
    assert dare == sorted(dare)


def test_the_table_sweep_crosses_every_merger_with_every_calibrator():
    specs = SWEEPS["table-clip"].specs(toy(), Options("toy", 16, 2))
    assert {"base", "expert"} <= {s.merger for s in specs}
    crossed = {(s.merger, s.calibrator, s.n, s.seed) for s in specs}
    for merger in MERGERS:
        assert {(merger, "featcal", 16, seed) for seed in (0, 1)} <= crossed
        assert (merger, "none", 0, 0) in crossed
    assert ("task_arithmetic", "featcal", FEW, 1) in crossed
    assert {s.merger for s in specs if s.merger.startswith("cross")} == {
        f"cross_expert:expert={task}" for task in ("north", "east", "west")
    }


def test_the_search_for_hyperparameters_never_sees_the_test_split():
    specs = SWEEPS["tune-featcal"].specs(toy(), Options("toy", 16, 1))
    assert {s.evaluate for s in specs} == {"validation"}
    assert {s.split for s in specs} <= {"", "train"}


def test_a_suites_chosen_settings_enter_the_table_beside_the_published_ones():
    suite = dataclasses.replace(toy(), settings={"featcal": "featcal:ridge=0.5"})
    specs = SWEEPS["table-clip"].specs(suite, Options("toy", 16, 1))
    chosen = {(s.merger, s.n) for s in specs if s.calibrator == "featcal:ridge=0.5"}
    assert chosen == {(merger, 16) for merger in MERGERS} | {("task_arithmetic", FEW)}
    assert {(s.merger, s.n) for s in specs if s.calibrator == "featcal"} == {
        ("task_arithmetic", 16)
    }


SPECS = [
    spec("base"),
    spec("task_arithmetic"),
    spec("task_arithmetic:scale=0.4"),
    spec("task_arithmetic", "featcal", 8),
    spec("dare", "featcal:rho=2.0", 8, seed=1),
]


@pytest.mark.parametrize(
    ("only", "kept"),
    [
        ([], [0, 1, 2, 3, 4]),
        (["merger=task_arithmetic"], [1, 2, 3]),
        (["merger=task_arithmetic:scale=0.4"], [2]),
        (["calibrator=featcal"], [3, 4]),
        (["n=8"], [3, 4]),
        (["seed=1"], [4]),
        (["calibrator=featcal", "merger=dare"], [4]),
    ],
)
def test_only_keeps_the_runs_that_match_every_condition(only, kept):
    assert selected(SPECS, only) == [SPECS[i] for i in kept]


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("merger", r"--only 'merger': expected key=value with a key of: suite, merger, cal"),
        ("mergr=base", r"--only 'mergr=base': expected key=value with a key of"),
        ("merger=bas", r"--only 'merger=bas' matches no run; .* did you mean 'base'"),
        ("seed=7", r"--only 'seed=7' matches no run; .*known: 0, 1"),
    ],
)
def test_only_refuses_what_matches_nothing(only, message):
    with pytest.raises(ValueError, match=message):
        selected(SPECS, [only])


def test_a_sweep_is_plain_python():
    def plan(suite, options):
        for seed in range(options.seeds):
            yield RunSpec(suite.name, "average", "featcal", options.n, seed=seed)
            yield RunSpec(suite.name, "average", seed=seed)

    specs = Sweep("mine", plan).specs(toy(), Options("toy", 4, 2))
    assert [(s.calibrator, s.n, s.seed) for s in specs] == [
        ("featcal", 4, 0), ("none", 0, 0), ("featcal", 4, 1)
    ]  # fmt: skip
