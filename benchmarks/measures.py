"""What is measured about a run; each measure yields (task, metric, block, value)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from merging import Merged
from merging.features import features
from merging.seeds import generator_for, seed_for

from .drift import drift_by_block, feature_terms
from .suites.base import Suite, Task

Value = tuple[str, str, str, float]
HELD_OUT = 128  # examples per task of the evaluated split on which hidden states are compared


class Door(Protocol):
    """Anything that shows itself to a task as one model: a merged model, or a reference."""

    def for_task(self, task: str) -> AbstractContextManager[nn.Module]:
        """The model as the task sees it."""
        ...

    def parts(self, task: str) -> tuple[nn.Module, nn.Module | None]:
        """The model without the task's correction, and that correction."""
        ...


@dataclass(frozen=True)
class Trial:
    """A finished model and what is needed to measure it; ``before`` is the uncalibrated one."""

    suite: Suite
    model: Door
    evaluate: str
    cost: Mapping[str, float]
    before: Door | None = None

    def held_out(self, task: Task) -> list[Mapping]:
        """Batches of the same few examples of the evaluated split for every run."""
        size = self.suite.size(task, self.evaluate)
        generator = generator_for(0, "held out", self.suite.name, task.name)
        rows = torch.randperm(size, generator=generator)[:HELD_OUT].tolist()
        return self.suite.batches(task, self.evaluate, rows)


def scores(trial: Trial) -> Iterator[Value]:
    """Each task's metrics on all of its split."""
    from .metrics import score  # slow to import (evaluate pulls in all of transformers)

    for task in trial.suite.tasks:
        model, correction = trial.model.parts(task.name)
        predictions = trial.suite.predict(model, task, trial.evaluate, correction)
        for metric in task.metrics:
            yield task.name, metric, "", score(metric, predictions)
        yield task.name, "examples", "", float(len(predictions.targets))


def cost(trial: Trial) -> Iterator[Value]:
    """Time, memory and energy of the method, and what it adds to the model."""
    for metric, value in trial.cost.items():
        yield "", metric, "", value
    if isinstance(trial.model, Merged):
        modules = trial.model.corrections.values()
        added = sum(p.numel() for module in modules for p in module.parameters())
        yield "", "added_parameters", "", float(added)
        yield "", "needs_task_id", "", float(bool(modules))


def drift(trial: Trial) -> Iterator[Value]:
    """Distance of hidden states from each expert's, per task and block, on held-out examples."""
    if not isinstance(trial.model, Merged):  # several models have no one stack of blocks
        return
    suite = trial.suite
    inputs = {task.name: trial.held_out(task) for task in suite.tasks}
    model = trial.model.model
    for task, block, means in drift_by_block(model, suite.base_model(), suite.experts(), inputs):
        for metric, value in means.items():
            yield task, metric, block, value


def feature_drift(trial: Trial) -> Iterator[Value]:
    """Distance from each expert of the final (corrected) feature, and of the scores.

    Features on held-out examples, scores on the whole split.
    """
    suite = trial.suite
    for task in suite.tasks:
        expert, batches = suite.experts()[task.name], trial.held_out(task)
        mine = _seen_by_head(trial.model, task, batches)
        theirs = features(expert, batches, f"expert, task {task.name!r}")
        for metric, value in feature_terms(mine, theirs).items():
            yield task.name, metric, "", value
        model, correction = trial.model.parts(task.name)
        ours = suite.predict(model, task, trial.evaluate, correction).scores
        if ours is not None:
            gap = ours - suite.predict(expert, task, trial.evaluate).scores
            yield task.name, "output_drift_l2", "", float(gap.norm(dim=-1).mean())


def tsne(trial: Trial) -> Iterator[Value]:
    """One task's features of merged model, calibrated model and expert in one plane (t-SNE).

    ``block`` is "merged/0", "calibrated/0", "expert/0" and so on, a point per held-out example.
    """
    from sklearn.manifold import TSNE

    task = trial.suite.task(trial.suite.shown or trial.suite.tasks[0].name)
    batches = trial.held_out(task)
    expert = trial.suite.experts()[task.name]
    clouds = {
        "merged": _seen_by_head(trial.before or trial.model, task, batches),
        "calibrated": _seen_by_head(trial.model, task, batches),
        "expert": features(expert, batches, f"expert, task {task.name!r}"),
    }
    units = [nn.functional.normalize(cloud.float(), dim=-1).cpu() for cloud in clouds.values()]
    points = torch.cat(units).numpy()  # on the sphere, where the head compares them
    plane = TSNE(
        perplexity=min(30.0, len(points) / 4),
        init="pca",
        random_state=seed_for(0, "tsne", task.name) % 2**32,
    ).fit_transform(points)
    for who, block in zip(clouds, np.split(plane, len(clouds)), strict=True):
        for number, (x, y) in enumerate(block):
            yield task.name, "tsne_x", f"{who}/{number}", float(x)
            yield task.name, "tsne_y", f"{who}/{number}", float(y)


def _seen_by_head(door: Door, task: Task, batches: list[Mapping]) -> Tensor:
    """Features (n, d) after the task's correction, if there is one."""
    model, correction = door.parts(task.name)
    with torch.no_grad():
        rows = features(model, batches, f"merged model, task {task.name!r}")
        return rows if correction is None else rows - correction(rows)


MEASURES: dict[str, Callable[[Trial], Iterator[Value]]] = {
    "scores": scores,
    "cost": cost,
    "drift": drift,
    "feature_drift": feature_drift,
    "tsne": tsne,
}
