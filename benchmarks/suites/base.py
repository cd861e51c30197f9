"""What a suite is: one base model, tasks with their experts and data, and how they are scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from merging import Pool
from merging.api import Batch
from merging.experts import Experts
from merging.registry import unknown
from merging.seeds import generator_for

from ..checkpoints import Checkpoint
from ..records import ALL


@dataclass(frozen=True)
class Source:
    """A data set: folder or Hub id, configuration, and its names of our three splits."""

    path: str
    config: str | None = None
    train: str = "train"
    validation: str | None = "validation"
    test: str = "test"
    revision: str | None = None

    def __post_init__(self) -> None:
        if self.test in (self.train, self.validation):
            raise ValueError(f"data set {self.path}: its test split is used as another one too")

    def split(self, name: str) -> str:
        """The data set's own name of the split "train", "validation" or "test"."""
        own = {"train": self.train, "validation": self.validation, "test": self.test}
        if name not in own or own[name] is None:
            known = ", ".join(key for key, value in own.items() if value)
            raise ValueError(f"data set {self.path} has no split {name!r} (known: {known})")
        return own[name]


@dataclass(frozen=True)
class Task:
    """One problem of a suite, with its expert, its data and the metrics it is scored with."""

    name: str
    title: str
    expert: Checkpoint
    source: Source
    metrics: tuple[str, ...] = ("accuracy",)


@dataclass(frozen=True)
class Predictions:
    """What a model says on a split: class scores (n, classes) or outputs, and the targets."""

    scores: Tensor | None
    outputs: Sequence[Any] | None
    targets: Sequence[Any]


@dataclass(eq=False)
class Suite(ABC):
    """Tasks over one base model. Subclasses load models and data and make predictions.

    ``settings`` maps a calibrator's name to the spec that was chosen for this suite on its
    validation splits; ``exclude`` are the parameters that no merger touches.
    """

    name: str
    backbone: str
    base: Checkpoint
    tasks: tuple[Task, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    device: str = "cpu"
    shown: str = ""  # task whose features are drawn; "" is the first one
    decode_seconds: float = 0.0  # spent so far on reading and decoding examples

    @abstractmethod
    def base_model(self) -> nn.Module:
        """The base model in canonical form: eval mode, float32, on the suite's device."""

    @abstractmethod
    def experts(self) -> Experts:
        """Task → expert, read from disk when asked for."""

    @abstractmethod
    def size(self, task: Task, split: str) -> int:
        """Number of examples of a split."""

    @abstractmethod
    def batches(self, task: Task, split: str, indices: Sequence[int]) -> list[Batch]:
        """Model inputs, without labels, of the given examples of a split, in that order."""

    @abstractmethod
    def predict(
        self, model: nn.Module, task: Task, split: str, correction: nn.Module | None = None
    ) -> Predictions:
        """The model's predictions on all of a split, ``correction`` taken off its feature."""

    @abstractmethod
    def check(
        self, splits: Sequence[str] = ("train", "test"), scored: Sequence[str] = ("test",)
    ) -> None:
        """Raise before work starts if a file is missing, damaged or does not fit the others.

        ``splits`` are all that will be read, ``scored`` those on which predictions are made.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash over everything the suite reads: runs on other files are other runs."""

    def task(self, name: str) -> Task:
        """The task of that name; KeyError names the nearest ones."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise KeyError(unknown(f"task of suite {self.name}", name, [t.name for t in self.tasks]))

    def calibration_indices(self, task: Task, n: int, split: str, seed: int) -> list[int]:
        """The first n of a permutation seeded by suite, task and seed: sizes are nested.

        ``ALL`` takes every example of the split.
        """
        size = self.size(task, split)
        n = size if n == ALL else n
        if n > size:
            raise ValueError(
                f"suite {self.name}, task {task.name!r}: {n} calibration examples asked for, "
                f"its {split} split has {size}; choose n of at most {size}"
            )
        # the split is no part of the seed's purpose: each split has its own size anyway
        generator = generator_for(seed, "calibration", self.name, task.name)
        return torch.randperm(size, generator=generator)[:n].tolist()

    def pool(self, n: int, split: str, seed: int) -> Pool:
        """Base, experts and n unlabelled calibration examples per task (none for n = 0)."""
        calibration = {
            task.name: self.batches(task, split, self.calibration_indices(task, n, split, seed))
            for task in (self.tasks if n else ())
        }
        return Pool(self.base_model(), self.experts(), calibration, seed, self.exclude)


SUITES: dict[str, Callable[[], Suite]] = {}


def suite_named(name: str, device: str = "cpu") -> Suite:
    """A suite by name; KeyError names the known ones."""
    if name not in SUITES:
        raise KeyError(unknown("suite", name, SUITES))
    suite = SUITES[name]()
    suite.device = device
    return suite
