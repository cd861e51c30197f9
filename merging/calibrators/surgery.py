"""Representation Surgery (Yang et al., ICML 2024, arXiv:2402.02705): a bottleneck per task.

Module, loss and settings as in the authors' code. The matched protocol (FeatCal's calibration
images, one Adam per task, last iterate, no test data) is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..api import CALIBRATORS, Merged, Pool
from ..corrections import Parameters, Training, corrected


@CALIBRATORS.register("surgery", title="Surgery", paper="arXiv:2402.02705")
@dataclass(frozen=True)
class Surgery:
    """f ↦ f - U_t relu(D_t f), fitted to expert t's feature in mean absolute error.

    ``protocol="native"`` streams the split that is scored, as the authors' code does (two batches
    of every fresh shuffle); the run spec must then ask for that split. ``recompute`` encodes every
    batch anew, as that code does: it changes the time and not the result.
    """

    needs_data: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    rank: int = 16
    steps: int = 1000  # 500 iterations of two batches
    batch: int = 16
    rate: float = 1e-3
    normalise: bool = False  # true: features on the unit sphere, fusion_bench's variant
    protocol: Literal["matched", "native"] = "matched"
    recompute: bool = False

    def __post_init__(self) -> None:
        for name in ("rank", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"surgery: {name} is at least 1, got {getattr(self, name)}")
        if self.rate <= 0:
            raise ValueError(f"surgery: rate is above 0, got {self.rate}")

    @property
    def transductive(self) -> bool:
        """Whether it is to be fitted to the split that is scored."""
        return self.protocol == "native"

    def __call__(self, merged: Merged, pool: Pool) -> Merged:
        """The same model with a correction per task."""
        fresh = 2 if self.protocol == "native" else None
        return corrected(
            merged,
            pool,
            "surgery",
            sizes={"down": (self.rank, None), "up": (None, self.rank)},
            loss=surgery_loss,
            training=Training(self.steps, self.batch, self.rate, fresh),
            normalise=self.normalise,
            recompute=self.recompute,
        )


def surgery_loss(p: Parameters, mine: Tensor, theirs: Tensor, _noise: Tensor) -> Tensor:
    """Mean absolute error per task, (T,), over batch and coordinates; features (T, B, d)."""
    hidden = torch.relu(mine @ p["down"].mT)
    return (mine - hidden @ p["up"].mT - theirs).abs().mean((1, 2))
