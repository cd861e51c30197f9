"""What is measured about a run; each measure yields (task, metric, block, value)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import psutil
import torch
from torch import nn

from .suites.base import Suite

Value = tuple[str, str, str, float]


class Door(Protocol):
    """Anything that shows itself to a task as one model: a merged model, or a reference."""

    def for_task(self, task: str) -> AbstractContextManager[nn.Module]:
        """The model as the task sees it."""
        ...


@dataclass(frozen=True)
class Trial:
    """A finished model and what is needed to measure it."""

    suite: Suite
    model: Door
    evaluate: str
    cost: Mapping[str, float]


def scores(trial: Trial) -> Iterator[Value]:
    """Each task's metrics on all of its split."""
    from .metrics import score  # slow to import (evaluate pulls in all of transformers)

    for task in trial.suite.tasks:
        with trial.model.for_task(task.name) as model:
            predictions = trial.suite.predict(model, task, trial.evaluate)
        for metric in task.metrics:
            yield task.name, metric, "", score(metric, predictions)
        yield task.name, "examples", "", float(len(predictions.targets))


def cost(trial: Trial) -> Iterator[Value]:
    """Time and memory of the method alone: not of loading, decoding or scoring."""
    for metric, value in trial.cost.items():
        yield "", metric, "", value


MEASURES: dict[str, Callable[[Trial], Iterator[Value]]] = {"scores": scores, "cost": cost}


@dataclass
class Stopwatch:
    """Seconds and peak memory above the starting level of a ``with`` block, by its name.

    ``paused`` returns seconds spent on loading so far; what passes inside the block is taken off.
    """

    name: str
    device: str
    paused: Callable[[], float] = lambda: 0.0
    cost: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> Stopwatch:
        self._sampler = _PeakMemory()
        self._sampler.start()
        self._synchronise()
        if self.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(self.device)
            self._cuda = torch.cuda.memory_allocated(self.device)
        self._paused, self._start = self.paused(), time.perf_counter()
        return self

    def __exit__(self, *_: Any) -> None:
        self._synchronise()
        loading = self.paused() - self._paused
        self.cost[f"{self.name}_seconds"] = time.perf_counter() - self._start - loading
        self.cost[f"{self.name}_rss_peak_bytes"] = float(self._sampler.stop())
        if self.device.startswith("cuda"):
            peak = torch.cuda.max_memory_allocated(self.device) - self._cuda
            self.cost[f"{self.name}_cuda_peak_bytes"] = float(peak)

    def _synchronise(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)


class _PeakMemory(threading.Thread):
    """Samples resident memory every 20 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._process, self._stopped = psutil.Process(), threading.Event()
        self._first = self._peak = self._process.memory_info().rss

    def run(self) -> None:
        """Sample until stopped."""
        while not self._stopped.wait(0.02):
            self._peak = max(self._peak, self._process.memory_info().rss)

    def stop(self) -> int:
        """End sampling; bytes by which the peak exceeded the start."""
        self._stopped.set()
        self.join()
        return max(self._peak, self._process.memory_info().rss) - self._first
