"""DARE (Yu et al., ICML 2024, arXiv:2311.03099): drop entries at random and rescale the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..api import MERGERS, Pool
from ..seeds import generator_for
from ..state import StateDict, add, total
from .ties import disjoint_merge


@MERGERS.register("dare", title="DARE", paper="arXiv:2311.03099")
@dataclass(frozen=True)
class Dare:
    """Task Arithmetic or TIES on task vectors thinned by dropout.

    ``drop`` is the share of entries set to zero; the others are divided by (1 - drop). With
    ``then="ties"`` the thinned vectors go through TIES with its own ``density`` (1: no second
    trim) and ``combine``.
    """

    needs_data: ClassVar[bool] = False
    draws: ClassVar[bool] = True
    drop: float = 0.5  # fusion_bench
    scale: float = 0.3
    then: Literal["task_arithmetic", "ties"] = "task_arithmetic"
    density: float = 1.0
    combine: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1:
            raise ValueError(f"dare: drop is a share in [0, 1), got {self.drop}")
        if not 0 < self.density <= 1:
            raise ValueError(f"dare: density is a share in (0, 1], got {self.density}")

    def __call__(self, pool: Pool) -> StateDict:
        """Thin every task vector with its own draw, then merge."""

        def thinned() -> Iterator[tuple[str, StateDict]]:
            for task, vector in pool.task_vectors():
                yield (
                    task,
                    {name: self._thin(x, pool.seed, task, name) for name, x in vector.items()},
                )

        if self.then == "ties":
            vector = disjoint_merge(
                thinned, density=self.density, combine=self.combine, trim="global"
            )
        else:
            vector = total(vector for _, vector in thinned())
        return add(pool.base_weights(), vector, scale=self.scale)

    def _thin(self, tensor: Tensor, seed: int, task: str, name: str) -> Tensor:
        # one generator per task and tensor, on the CPU: order, threads and device change nothing
        draw = torch.rand(tensor.shape, generator=generator_for(seed, "dare", task, name))
        keep = (draw >= self.drop).to(tensor.device)
        return torch.where(keep, tensor / (1 - self.drop), 0)
