"""TIES-Merging (Yadav et al., NeurIPS 2023, arXiv:2306.01708): trim, elect sign, disjoint merge.

Conventions that decide numbers, as in the official code: the threshold is the
(d - int(d * density))-th smallest magnitude and entries equal to it are kept (so int(d * density)
+ 1 of them without ties in magnitude); a column whose trimmed entries sum to zero takes the sign
of the majority of columns; entries of the elected sign are summed or averaged over those present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..api import MERGERS, Pool
from ..state import StateDict, add

Vectors = Callable[[], Iterator[tuple[str, StateDict]]]  # called once per pass over the experts


@MERGERS.register("ties", title="TIES", paper="arXiv:2306.01708")
@dataclass(frozen=True)
class Ties:
    """θ₀ + scale · the disjoint merge of the trimmed task vectors."""

    needs_data: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    density: float = 0.2  # share of entries kept; the official code's reset_thresh=20 %
    scale: float = 0.3  # fusion_bench, with combine="sum"
    combine: Literal["sum", "mean"] = "sum"
    trim: Literal["global", "tensor"] = "global"  # official: one threshold per task vector

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ValueError(f"ties: density is a share in (0, 1], got {self.density}")

    def __call__(self, pool: Pool) -> StateDict:
        """Two passes over the experts: elect signs, then merge; one task vector in memory."""
        vector = disjoint_merge(
            pool.task_vectors, density=self.density, combine=self.combine, trim=self.trim
        )
        return add(pool.base_weights(), vector, scale=self.scale)


def disjoint_merge(vectors: Vectors, *, density: float, combine: str, trim: str) -> StateDict:
    """The merged task vector: sum or mean of the kept entries that agree with the elected sign."""
    summed: StateDict = {}
    for _, vector in vectors():
        for name, tensor in trimmed(vector, density, trim).items():
            summed[name] = summed[name].add_(tensor) if name in summed else tensor
    positive = elected_positive(summed)
    merged = {name: torch.zeros_like(tensor) for name, tensor in summed.items()}
    counts = {name: torch.zeros_like(tensor) for name, tensor in summed.items()}
    for _, vector in vectors():
        for name, tensor in trimmed(vector, density, trim).items():
            agrees = torch.where(positive[name], tensor > 0, tensor < 0)
            merged[name] += torch.where(agrees, tensor, 0)
            counts[name] += agrees
    if combine == "mean":
        return {name: tensor / counts[name].clamp(min=1) for name, tensor in merged.items()}
    return merged


def elected_positive(summed: StateDict) -> dict[str, Tensor]:
    """Per entry, whether the elected sign is positive; zero sums follow the majority of entries."""
    balance = sum(tensor.sign().sum(dtype=torch.float64) for tensor in summed.values())
    return {
        name: (tensor > 0) | ((tensor == 0) & bool(balance > 0)) for name, tensor in summed.items()
    }


def trimmed(vector: StateDict, density: float, trim: str) -> StateDict:
    """The task vector with all but its largest entries set to zero."""
    if trim == "tensor":
        limits = {name: _threshold(tensor.abs(), density) for name, tensor in vector.items()}
    else:
        flat = torch.cat([tensor.abs().flatten() for tensor in vector.values()])
        limits = dict.fromkeys(vector, _threshold(flat, density))
    return {
        name: torch.where(tensor.abs() >= limits[name], tensor, 0)
        for name, tensor in vector.items()
    }


def _threshold(magnitudes: Tensor, density: float) -> Tensor:
    """The smallest magnitude that is kept; zero keeps everything."""
    dropped = magnitudes.numel() - int(magnitudes.numel() * density)
    if dropped == 0:
        return magnitudes.new_zeros(())
    return magnitudes.flatten().kthvalue(dropped).values
