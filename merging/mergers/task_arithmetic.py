"""Task Arithmetic (Ilharco et al., ICLR 2023, arXiv:2212.04089, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..api import MERGERS, Pool
from ..state import StateDict, add, total


@MERGERS.register("task_arithmetic", title="Task Arithmetic", paper="arXiv:2212.04089")
@dataclass(frozen=True)
class TaskArithmetic:
    """θ₀ + scale · Σ τ_t."""

    needs_data: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    scale: float = 0.3  # the value of the eight-task tables in this field

    def __call__(self, pool: Pool) -> StateDict:
        """Add the scaled sum of the task vectors to the base model."""
        vector = total(vector for _, vector in pool.task_vectors())
        return add(pool.base_weights(), vector, scale=self.scale)
