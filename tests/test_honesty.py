"""What would make a number quietly wrong: stale code, test data, permuted classes, lost inputs."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys

import datasets
import pytest
import torch
from harness import copy_toy, suite_at, toy
from tiny import pool_of
from torch import nn

from benchmarks import driver
from benchmarks.driver import Session, code_of
from benchmarks.images import checked_labels
from benchmarks.spec import RunSpec
from benchmarks.suites.base import Source
from merging import MERGERS, Pool, calibrate, merge
from merging.layouts import LAYOUTS, Layout

METHOD = """
from dataclasses import dataclass
from typing import ClassVar
from merging import MERGERS

@MERGERS.register("edited", title="Edited")
@dataclass(frozen=True)
class Edited:
    needs_data: ClassVar[bool] = False
    draws: ClassVar[bool] = False

    def __call__(self, pool):
        return {}
"""


def test_an_edited_method_is_another_code_and_other_methods_are_not(tmp_path, monkeypatch):
    path = tmp_path / "edited.py"
    path.write_text(METHOD)
    spec = importlib.util.spec_from_file_location("edited", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "edited", module)
    spec.loader.exec_module(module)
    try:
        edited, other = RunSpec("toy", "edited"), RunSpec("toy", "average")
        before = code_of(edited), code_of(other)
        path.write_text(METHOD.replace("return {}", "return {1: 2}"))
        assert code_of(edited) != before[0]
        assert code_of(other) == before[1]
    finally:
        del MERGERS["edited"]


def test_dare_depends_on_the_code_of_ties_that_it_imports():
    assert code_of(RunSpec("toy", "dare")) != code_of(RunSpec("toy", "average"))
    names = {
        getattr(v, "__module__", "") for v in vars(sys.modules["merging.mergers.dare"]).values()
    }
    assert "merging.mergers.ties" in names


def test_a_run_by_other_code_is_run_again(tmp_path, monkeypatch):
    session, spec = Session(toy(), tmp_path), RunSpec("toy", "base").normalised()
    assert session.run_all([spec], force=False).done == [spec.id]
    assert session.complete(spec)
    monkeypatch.setattr(driver, "code_of", lambda _: "other")
    assert not session.complete(spec)


def test_a_run_that_cannot_take_its_place_is_an_error(tmp_path, monkeypatch):
    session, spec = Session(toy(), tmp_path), RunSpec("toy", "base").normalised()

    def refuse(*_):
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(driver.Path, "rename", refuse)
        outcome = session.run_all([spec], force=False)
    assert outcome.failed == [spec.id]
    assert not session.complete(spec)


@pytest.mark.parametrize("evaluate", ["test", "validation"])
def test_the_test_split_never_feeds_a_calibrator(evaluate):
    spec = RunSpec("toy", "average", "featcal", 4, split="test", evaluate=evaluate)
    with pytest.raises(ValueError, match="'test' split"):
        spec.normalised()


@pytest.mark.parametrize("splits", [{"train": "test"}, {"validation": "test"}])
def test_a_source_whose_test_split_is_used_twice_is_refused(splits):
    with pytest.raises(ValueError, match="its test split is used as another one too"):
        Source("somewhere", **splits)


def test_a_permutation_beside_a_synonym_is_found():
    features = datasets.Features(label=datasets.ClassLabel(names=["dog", "cat", "automobile"]))
    data = datasets.Dataset.from_dict({"label": [0, 1]}, features=features)
    with pytest.raises(ValueError, match="another order"):
        checked_labels(data, ["cat", "dog", "car"], "here")
    assert checked_labels(data, ["dog", "cat", "car"], "here") == [0, 1]


def test_another_revision_or_split_is_another_fingerprint(tmp_path, monkeypatch):
    suite = suite_at(copy_toy(tmp_path, monkeypatch))
    before, task = suite.fingerprint(), suite.tasks[0]
    source = dataclasses.replace(task.source, revision="other")
    suite.tasks = (dataclasses.replace(task, source=source), *suite.tasks[1:])
    assert suite.fingerprint() != before


class InPlace(nn.Module):
    """One residual block that overwrites its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x += self.linear(x)
        return x


class Tower(nn.Module):
    """A stem and two such blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(4, 4), nn.ModuleList([InPlace(), InPlace()])

    def forward(self, x):
        return self.blocks[1](self.blocks[0](self.stem(x)))


def test_a_block_that_changes_its_input_in_place_is_refused(monkeypatch):
    monkeypatch.setitem(LAYOUTS, "Tower", Layout(("blocks",), ""))
    base, expert = Tower().eval(), Tower().eval()
    pool = Pool(base, {"a": expert}, {"a": [{"x": torch.randn(2, 3, 4)}]})
    with pytest.raises(ValueError, match="in place"):
        calibrate("featcal", merge("average", pool), pool)


def test_an_excluded_mask_may_be_infinite():
    pool = pool_of("mlp")
    for model in (pool.base, *pool.experts.values()):
        model.register_buffer("mask", torch.full((2, 2), float("-inf")))
    masked = Pool(pool.base, dict(pool.experts), exclude=("mask",))
    assert torch.isinf(merge("average", masked).model.mask).all()
