"""Weight averaging: the mean of the experts (Wortsman et al. 2022, arXiv:2203.05482, uniform)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..api import MERGERS, Pool
from ..state import StateDict, add, total


@MERGERS.register("average", title="Weight Average", paper="arXiv:2203.05482")
@dataclass(frozen=True)
class Average:
    """θ₀ + (1/T) Σ τ_t, the mean of the T experts."""

    needs_data: ClassVar[bool] = False
    draws: ClassVar[bool] = False

    def __call__(self, pool: Pool) -> StateDict:
        """The mean, written with task vectors: exact when experts equal the base."""
        vector = total(vector for _, vector in pool.task_vectors())
        return add(pool.base_weights(), vector, scale=1 / len(pool.experts))
