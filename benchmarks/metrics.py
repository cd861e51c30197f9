"""Scores as ``evaluate.Metric`` classes of our own: loading one by name would need the Hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import datasets
import evaluate
from sklearn.metrics import accuracy_score

from merging.registry import unknown

from .suites.base import Predictions


class Accuracy(evaluate.Metric):
    """Share of predictions equal to their reference."""

    def _info(self) -> evaluate.MetricInfo:
        label = datasets.Value("int64")
        return evaluate.MetricInfo(
            description="Share of predictions equal to their reference, in [0, 1].",
            citation="",
            features=datasets.Features(predictions=label, references=label),
        )

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        return {"accuracy": float(accuracy_score(references, predictions))}


@dataclass(frozen=True)
class Score:
    """A metric's title, direction, and its value on predictions."""

    title: str
    better: str  # "higher" or "lower"
    compute: Callable[[Predictions], float]


def _accuracy(predictions: Predictions) -> float:
    outputs = predictions.scores.argmax(-1).tolist()
    return _metric(Accuracy, "accuracy", outputs, predictions.targets)


def _metric(kind: type[evaluate.Metric], key: str, outputs: Any, targets: Any) -> float:
    metric = kind(keep_in_memory=True)
    return metric.compute(predictions=outputs, references=targets)[key]


METRICS = {"accuracy": Score("Accuracy", "higher", _accuracy)}


def score(name: str, predictions: Predictions) -> float:
    """The named metric; KeyError names the known ones."""
    if name not in METRICS:
        raise KeyError(unknown("metric", name, METRICS))
    return METRICS[name].compute(predictions)
