"""Ridge surgery (ours): one affine map of the feature per task, in closed form.

With FeatCal's closed form in Surgery's place it is the control that tells what "closed form" gives
from what "inside the network" gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..api import CALIBRATORS, Merged, Pool
from ..corrections import AffineMap, cached, refuse_corrected
from ..gram import ridge_solve
from ..timing import section


@CALIBRATORS.register("ridge_surgery", title="Ridge Surgery (ours)", paper="this project")
@dataclass(frozen=True)
class RidgeSurgery:
    """f ↦ A f + a per task, argmin over A and a of E‖A f + a - f_t‖² + λ v ‖A - I‖²,

    with f_t expert t's feature and v the mean variance of the coordinates of f.
    """

    needs_data: ClassVar[bool] = True
    draws: ClassVar[bool] = False
    transductive: ClassVar[bool] = False
    ridge: float = 0.1  # λ

    def __post_init__(self) -> None:
        if self.ridge <= 0:
            raise ValueError(f"ridge_surgery: ridge is above 0, got {self.ridge}")

    def __call__(self, merged: Merged, pool: Pool) -> Merged:
        """The same model with an affine correction per task."""
        refuse_corrected(merged, "ridge_surgery")
        mine, theirs = cached(merged, pool)
        corrections = {}
        for task, features in mine.items():
            with section("fit"):
                x, y = features.double(), theirs[task].double()
                center, target = x.mean(0), y.mean(0)
                x, y = x - center, y - target
                gram = x.T @ x / len(x)
                identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
                # features that do not vary (n = 1) leave A = I, whatever the penalty
                penalty = self.ridge * (gram.diagonal().mean() or 1.0) * identity
                where = f"ridge_surgery, task {task!r}"
                weight = ridge_solve(gram + penalty, x.T @ y / len(x) + penalty, where).T
                bias = target - weight @ center
                corrections[task] = AffineMap(weight.to(features), bias.to(features))
        return Merged(merged.model, corrections)
