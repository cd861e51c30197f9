"""Pools over bare tensors, and the mergers' formulas written out densely, one row per task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from merging import Pool, merge


class Bag(nn.Module):
    """A module that is nothing but named parameters."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_parameter(name, nn.Parameter(tensor.clone()))


def bag_pool(rows: Tensor, base: Tensor | None = None, split: int = 2, **fields: object) -> Pool:
    """A pool whose task vectors are the rows, cut into parameters ``left`` and ``right``."""
    base = torch.zeros(rows.shape[1], dtype=rows.dtype) if base is None else base
    experts = {
        f"task{n:02d}": Bag(left=(base + row)[:split], right=(base + row)[split:])
        for n, row in enumerate(rows)
    }
    return Pool(Bag(left=base[:split], right=base[split:]), experts, **fields)


def merged_row(method: str, pool: Pool) -> Tensor:
    """The merged weights as one vector."""
    state = merge(method, pool).model.state_dict()
    return torch.cat([state["left"], state["right"]])


def keep_largest(row: Tensor, density: float) -> Tensor:
    """The row with entries below its (d - int(d * density))-th smallest magnitude set to zero."""
    dropped = len(row) - int(len(row) * density)
    if dropped == 0:
        return row.clone()
    limit = row.abs().sort().values[dropped - 1]
    return row * (row.abs() >= limit)


def dense_ties(
    rows: Tensor, density: float, combine: str, cuts: tuple[int, ...] | None = None
) -> Tensor:
    """TIES on the whole matrix of task vectors; ``cuts`` are the sizes of separate trims."""
    cuts = (rows.shape[1],) if cuts is None else cuts
    kept = torch.stack(
        [torch.cat([keep_largest(part, density) for part in row.split(cuts)]) for row in rows]
    )
    sign = kept.sum(0).sign()
    majority = 1.0 if sign.sum() > 0 else -1.0
    sign = torch.where(sign == 0, majority, sign)
    agrees = (kept.sign() == sign) & (kept != 0)
    summed = (kept * agrees).sum(0)
    return summed / agrees.sum(0).clamp(min=1) if combine == "mean" else summed
