"""The thin API: a pool goes into a merger, the merged model into a calibrator."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from .experts import Experts
from .layouts import layout_of
from .registry import Registry, unknown
from .state import StateDict, check_expert, check_keys, load_weights, task_vector, weights

Batch = Mapping[str, Any]  # keyword arguments of the model's forward; never labels
log = logging.getLogger(__name__)

MERGERS = Registry("merger")
CALIBRATORS = Registry("calibrator")


@dataclass(frozen=True, eq=False)
class Pool:
    """What a method may look at: the base model, its experts, and unlabelled calibration batches.

    ``experts`` may be any mapping task → model, also one that loads lazily. ``calibration`` maps
    each task to its batches (empty for methods that need no data). ``exclude`` holds shell
    patterns of parameters that keep the base model's value and that no merger sees.
    """

    base: nn.Module
    experts: Mapping[str, nn.Module]
    calibration: Mapping[str, Sequence[Batch]] = field(default_factory=dict)
    seed: int = 0
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.experts:
            raise ValueError("a pool needs at least one expert, got none")
        if isinstance(self.exclude, str):
            raise TypeError(
                f"exclude holds patterns, got the text {self.exclude!r}; write ({self.exclude!r},)"
            )
        if not isinstance(self.experts, Experts):
            object.__setattr__(self, "experts", Experts(self.experts))

    def base_weights(self) -> StateDict:
        """The base model's mergeable weights by name (not copied)."""
        return weights(self.base, self.exclude)

    def task_vectors(self) -> Iterator[tuple[str, StateDict]]:
        """Task and task vector, one expert at a time, in sorted order of tasks."""
        base = self.base_weights()
        for task in self.experts:
            yield task, task_vector(weights(self.experts[task], self.exclude), base)

    def check(self, *, needs_data: bool = False) -> tuple[str, ...]:
        """Raise ValueError for a pool that no method can use; returns the oddities worth a note.

        Looks at every expert once (keys, shapes, finite values) and remembers that it did.
        """
        if "_notes" not in self.__dict__:
            for name, tensor in self.base_weights().items():
                if not torch.isfinite(tensor).all():
                    raise ValueError(
                        f"the base model: {name} holds NaN or infinite values; load it again"
                    )
            if not self.base_weights():
                raise ValueError(
                    f"nothing is left to merge: exclude={self.exclude} covers all "
                    f"{len(weights(self.base))} weights"
                )
            notes = tuple(
                f"expert {task!r} equals the base model: its task vector is zero"
                for task in self.experts
                if not check_expert(task, self.experts[task], self.base, self.exclude)
            )
            for note in notes:
                log.warning(note)
            object.__setattr__(self, "_notes", notes)
        if needs_data:
            self._check_calibration()
        return self.__dict__["_notes"]

    def _check_calibration(self) -> None:
        if self.base.training:
            raise ValueError("the base model is in training mode; call .eval() on base and experts")
        for task in self.experts:
            batches = self.calibration.get(task, ())
            if not len(batches):
                raise ValueError(
                    f"this method needs calibration batches for every task, task {task!r} has none"
                    f" (tasks with batches: {', '.join(sorted(self.calibration)) or 'none'})"
                )
            for position, batch in enumerate(batches):
                for key, value in batch.items():
                    if isinstance(value, Tensor) and value.dim() and not len(value):
                        raise ValueError(
                            f"calibration batch {position} of task {task!r}: {key!r} is empty"
                        )
                    if (
                        isinstance(value, Tensor)
                        and value.is_floating_point()
                        and not torch.isfinite(value).all()
                    ):
                        raise ValueError(
                            f"calibration batch {position} of task {task!r}: {key!r} holds NaN or "
                            "infinite values"
                        )
        for task in self.calibration:
            if task not in self.experts:
                raise ValueError(unknown("task in the calibration set", task, self.experts))


@dataclass
class Merged:
    """One set of shared weights, and per task an optional correction of the feature.

    A correction is a module f ↦ b_t(f) on features (batch, d); ``for_task`` subtracts it.
    """

    model: nn.Module
    corrections: dict[str, nn.Module] = field(default_factory=dict)

    def parts(self, task: str) -> tuple[nn.Module, nn.Module | None]:
        """The shared model, and the task's correction if it has one."""
        return self.model, self.corrections.get(task)

    @contextlib.contextmanager
    def for_task(self, task: str) -> Iterator[nn.Module]:
        """The model as this task sees it: its correction, if any, hooked onto the feature."""
        _, correction = self.parts(task)
        if correction is None:
            yield self.model
            return
        module = self.model.get_submodule(layout_of(self.model).feature)
        handle = module.register_forward_hook(
            lambda _module, _inputs, feature: feature - correction(feature)
        )
        try:
            yield self.model
        finally:
            handle.remove()

    def copy(self) -> Merged:
        """A deep copy that shares no tensor with this one."""
        return Merged(copy.deepcopy(self.model), copy.deepcopy(self.corrections))


class Merger(Protocol):
    """A frozen dataclass that makes one set of weights from a pool."""

    needs_data: ClassVar[bool]  # reads pool.calibration
    draws: ClassVar[bool]  # depends on pool.seed even without data

    def __call__(self, pool: Pool) -> StateDict:
        """Merged weights by the base model's names; weights left out keep the base's values."""
        ...


class Calibrator(Protocol):
    """A frozen dataclass that repairs a merged model; neither argument is changed."""

    needs_data: ClassVar[bool]
    draws: ClassVar[bool]
    transductive: bool  # is to be fitted to the very split that is scored

    def __call__(self, merged: Merged, pool: Pool) -> Merged:
        """The calibrated model; shares no tensor that it changed with ``merged``."""
        ...


@torch.no_grad()
def merge(method: str | Merger, pool: Pool) -> Merged:
    """Merge the pool's experts, e.g. ``merge("task_arithmetic:scale=0.3", pool)``.

    Mergers work on any ``nn.Module``. Raises KeyError or ValueError for an unknown method or
    field and for a pool whose experts do not fit the base model.
    """
    merger = MERGERS.made(method)
    pool.check(needs_data=merger.needs_data)
    state = merger(pool)
    model = copy.deepcopy(pool.base)
    load_weights(model, state, f"merger {type(merger).__name__}")
    return Merged(model)


@torch.no_grad()
def calibrate(method: str | Calibrator, merged: Merged, pool: Pool) -> Merged:
    """Calibrate a merged model, e.g. ``calibrate("featcal:ridge=0.05", merged, pool)``."""
    calibrator = CALIBRATORS.made(method)
    pool.check(needs_data=calibrator.needs_data)
    do = "calibrate a model that was merged from this pool"
    check_keys("the merged model", weights(merged.model), weights(pool.base), do)
    return calibrator(merged, pool)
