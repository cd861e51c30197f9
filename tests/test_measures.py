"""Scores on hand-made predictions and on corrected models; the stopwatch around a method."""

from __future__ import annotations

import time

import pytest
import torch
from harness import NAMES, toy
from torch import nn

from benchmarks.measures import MEASURES, Trial
from benchmarks.metrics import METRICS, score
from benchmarks.references import REFERENCES
from benchmarks.stopwatch import Stopwatch
from benchmarks.suites.base import Predictions
from merging import Merged


def predicted(outputs, targets, classes=4):
    return Predictions(nn.functional.one_hot(torch.tensor(outputs), classes).float(), None, targets)


def scores_of(model):
    trial = Trial(toy(), model, "test", {})
    return {(task, metric): value for task, metric, _, value in MEASURES["scores"](trial)}


@pytest.mark.parametrize(
    ("outputs", "targets", "value"),
    [([0, 1, 2, 3], [0, 1, 2, 3], 1.0), ([0, 1, 2], [1, 2, 0], 0.0), ([0, 1, 1], [0, 1, 2], 2 / 3)],
)
def test_accuracy_is_the_share_of_right_answers(outputs, targets, value):
    assert score("accuracy", predicted(outputs, targets)) == value


def test_accuracy_is_the_same_on_a_second_call():
    predictions = predicted([0, 1, 1], [0, 1, 2])
    assert score("accuracy", predictions) == score("accuracy", predictions)


def test_accuracy_of_many_predictions_is_exact():
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randint(4, (5000,), generator=draw)
    targets = torch.randint(4, (5000,), generator=draw)
    expected = int((outputs == targets).sum()) / 5000
    assert score("accuracy", predicted(outputs.tolist(), targets.tolist())) == expected


def test_an_unknown_metric_names_the_nearest():
    with pytest.raises(KeyError, match=r"unknown metric 'acuracy'; did you mean 'accuracy'"):
        score("acuracy", predicted([0], [0]))


def test_every_metric_has_a_title_and_a_direction():
    assert {m.better for m in METRICS.values()} <= {"higher", "lower"}
    assert all(metric.title for metric in METRICS.values())


def test_scores_are_of_the_model_as_each_task_sees_it():
    suite = toy()
    head = suite.head(suite.task("east"))

    class ToSecond(nn.Module):
        """Corrects any feature to point at the second class of task east."""

        def forward(self, feature):
            return feature - head[1]

    plain = scores_of(Merged(suite.base_model()))
    got = scores_of(Merged(suite.base_model(), {"east": ToSecond()}))
    labels = torch.tensor(suite._dataset(suite.task("east"), "test")["label"])
    assert got["east", "accuracy"] == pytest.approx((labels == 1).float().mean().item())
    assert got["north", "accuracy"] == plain["north", "accuracy"]
    assert scores_of(Merged(suite.base_model())) == plain  # no hook is left


def test_each_expert_is_measured_on_its_own_task():
    suite = toy()
    pool = suite.pool(0, "", 0)
    experts = REFERENCES.build("expert")(pool)
    for name in NAMES:
        with experts.for_task(name) as model:
            assert model is pool.experts[name]


def test_an_unknown_expert_names_the_nearest():
    with pytest.raises(KeyError, match=r"unknown expert 'nort'; did you mean 'north'"):
        REFERENCES.build("cross_expert:expert=nort")(toy().pool(0, "", 0))


def test_the_cost_of_a_method_is_reported_as_it_was_taken():
    trial = Trial(toy(), Merged(toy().base_model()), "test", {"merge_seconds": 2.0})
    assert list(MEASURES["cost"](trial)) == [
        ("", "merge_seconds", "", 2.0),
        ("", "added_parameters", "", 0.0),
        ("", "needs_task_id", "", 0.0),
    ]


def test_a_stopwatch_takes_loading_off_and_names_what_it_measured():
    loaded = [5.0]
    with Stopwatch("merge", "cpu", lambda: loaded[0]) as watch:
        time.sleep(0.01)
        loaded[0] += 100.0
    assert set(watch.cost) - {"merge_joules"} == {
        "merge_seconds", "merge_loading_seconds", "merge_rss_peak_bytes"
    }  # fmt: skip
    assert -100 < watch.cost["merge_seconds"] < -90


def test_a_stopwatch_sees_memory_that_is_given_back():
    with Stopwatch("merge", "cpu") as watch:
        held = torch.ones(30_000_000)  # 120 MB, far above what else may change meanwhile
        time.sleep(0.1)
        del held
    assert watch.cost["merge_rss_peak_bytes"] > 60e6
