"""Models that a merged model is measured against; they enter the rows as mergers of their own.

``base`` is the base model on every task, ``expert`` each expert on its own task, ``cross_expert``
one expert on every task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from merging import Merged, Pool
from merging.registry import Registry, unknown

REFERENCES = Registry("reference")


@dataclass(frozen=True)
class EachExpert:
    """The pool's experts behind the same door as a merged model."""

    pool: Pool

    @contextlib.contextmanager
    def for_task(self, task: str) -> Iterator[nn.Module]:
        """The task's own expert."""
        yield self.pool.experts[task]

    def parts(self, task: str) -> tuple[nn.Module, None]:
        """The task's own expert, which needs no correction."""
        return self.pool.experts[task], None


@REFERENCES.register("base", title="Base model")
@dataclass(frozen=True)
class Base:
    """The base model, zero-shot."""

    needs_data: ClassVar[bool] = False
    draws: ClassVar[bool] = False

    def __call__(self, pool: Pool) -> Merged:
        """The base model as it is."""
        return Merged(pool.base)


@REFERENCES.register("expert", title="Experts")
@dataclass(frozen=True)
class Expert:
    """Each expert on its own task: what merging tries to keep."""

    needs_data: ClassVar[bool] = False
    draws: ClassVar[bool] = False

    def __call__(self, pool: Pool) -> EachExpert:
        """The experts, one per task."""
        return EachExpert(pool)


@REFERENCES.register("cross_expert", title="Expert")
@dataclass(frozen=True)
class CrossExpert:
    """One expert on every task."""

    needs_data: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    expert: str = ""

    def __call__(self, pool: Pool) -> Merged:
        """That expert's model."""
        if self.expert not in pool.experts:
            raise KeyError(unknown("expert", self.expert, pool.experts))
        return Merged(pool.experts[self.expert])
