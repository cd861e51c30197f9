"""ProbSurgery (ICML 2025): Surgery whose correction is Gaussian, sampled in training.

Module, loss and settings as in the authors' code, whose inference uses the mean (the abstract
speaks of sampling); the paper's body was not readable. The matched protocol is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..api import CALIBRATORS, Merged, Pool
from ..corrections import Parameters, Training, corrected


@CALIBRATORS.register(
    "probsurgery",
    title="ProbSurgery",
    paper="ICML 2025",
    reconstructed="from the authors' code; the paper's body was not readable",
)
@dataclass(frozen=True)
class ProbSurgery:
    """h = relu(E_t f), z ~ N(M_t h, exp(V_t h)): f - z is fitted to expert t's feature.

    The loss is the mean absolute error plus ``kl`` times the divergence of z from N(0, I).
    Inference subtracts the mean M_t h. ``protocol`` and ``recompute`` are as in Surgery; the
    authors' loader gives 100 batches per shuffle.
    """

    needs_data: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    hidden: int = 128
    steps: int = 1000  # as Surgery's; the authors' script defaults to 500, their launcher to 5000
    batch: int = 16
    rate: float = 1e-3
    kl: float = 1e-4
    normalise: bool = False
    protocol: Literal["matched", "native"] = "matched"
    recompute: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"probsurgery: {name} is at least 1, got {getattr(self, name)}")
        if self.rate <= 0 or self.kl < 0:
            raise ValueError(
                f"probsurgery: rate is above 0 and kl at least 0, got {self.rate} and {self.kl}"
            )

    @property
    def transductive(self) -> bool:
        """Whether it is to be fitted to the split that is scored."""
        return self.protocol == "native"

    def __call__(self, merged: Merged, pool: Pool) -> Merged:
        """The same model with a correction per task."""

        def loss(p: Parameters, mine: Tensor, theirs: Tensor, noise: Tensor) -> Tensor:
            return probsurgery_loss(p, mine, theirs, noise, kl=self.kl)

        fresh = 100 if self.protocol == "native" else None
        return corrected(
            merged,
            pool,
            "probsurgery",
            sizes={
                "encoder": (self.hidden, None),
                "mean": (None, self.hidden),
                "log_variance": (None, self.hidden),
            },
            loss=loss,
            training=Training(self.steps, self.batch, self.rate, fresh, noise=True),
            normalise=self.normalise,
            recompute=self.recompute,
        )


def probsurgery_loss(
    p: Parameters, mine: Tensor, theirs: Tensor, noise: Tensor, *, kl: float
) -> Tensor:
    """Absolute error of one sample per task, (T,), plus ``kl`` times the divergence from N(0, I).

    Features and noise are (T, B, d); both are means over the batch, the error is a mean over
    coordinates and the divergence a sum.
    """
    hidden = torch.relu(mine @ p["encoder"].mT)
    mean, log_variance = hidden @ p["mean"].mT, hidden @ p["log_variance"].mT
    z = mean + (0.5 * log_variance).exp() * noise
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1).mean(1)
    return (mine - z - theirs).abs().mean((1, 2)) + kl * divergence
