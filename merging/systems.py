"""Regularised least-squares systems over several tasks, folded one task at a time.

Memory is that of one system, O(d_in² + d_in d_out), whatever the number of tasks: a task's weight
needs only its own Gram matrix, so the task can be added as soon as its moments are complete.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .gram import DiagonalMoments, Moments, ridge_solve


@dataclass(frozen=True)
class Affine:
    """Weight (d_out, d_in) and bias (d_out,) of linear maps that share one input, in float64.

    For a normalisation layer: its scale (d,) and shift (d,). A map without bias has zeros there.
    """

    weight: Tensor
    bias: Tensor

    @staticmethod
    def of(modules: list[nn.Module], device: torch.device) -> Affine:
        """The maps of several modules stacked along d_out, on the given device."""
        weights = [module.weight.to(device).double() for module in modules]
        # RMSNorm layers have no bias attribute at all
        biases = [getattr(module, "bias", None) for module in modules]
        return Affine(
            torch.cat(weights),
            torch.cat(
                [
                    torch.zeros_like(weight[..., 0] if weight.dim() > 1 else weight)
                    if bias is None
                    else bias.to(device).double()
                    for weight, bias in zip(weights, biases, strict=True)
                ]
            ),
        )

    def blend(self, other: Affine, rho: float) -> Affine:
        """``rho * self + (1 - rho) * other``."""
        return Affine(
            rho * self.weight + (1 - rho) * other.weight, rho * self.bias + (1 - rho) * other.bias
        )


class LinearSystem:
    """Σ_i ω_i E‖W x - W_i t_i‖² + λ‖W - A‖² + ε‖W‖² and, after it, the bias for that W."""

    def __init__(self, *, epsilon: float) -> None:
        self.epsilon = epsilon
        self.normal = self.right = self.bias = self.mean = self.weight = 0.0

    def fold(self, moments: Moments, expert: Affine, *, images: bool) -> None:
        """Add a task; ``images`` says that the moments were taken with the expert's maps."""
        gram, cross = moments.gram, moments.cross
        omega = 1 / max(float(gram.norm()), self.epsilon)
        self.normal = self.normal + omega * gram
        self.right = self.right + omega * (cross if images else cross @ expert.weight.T)
        self.bias = self.bias + omega * (expert.bias + expert.weight @ moments.mean_t)
        self.mean = self.mean + omega * moments.mean_x
        self.weight += omega

    def solve(self, anchor: Affine, *, ridge: float, where: str) -> Affine:
        """The minimiser: W by the weight's own system, then b for that W (two stages)."""
        identity = torch.eye(len(self.normal), dtype=torch.float64, device=self.normal.device)
        weight = ridge_solve(
            self.normal + (ridge + self.epsilon) * identity,
            self.right + ridge * anchor.weight.T,
            where,
        ).T
        bias = (self.bias - weight @ self.mean + ridge * anchor.bias) / (self.weight + ridge)
        return Affine(weight, bias)


class NormSystem:
    """Σ_i E‖(γ z + β) - (γ_i z + β_i)‖² + λ(‖γ - γ_A‖² + ‖β - β_A‖²), coordinate by coordinate."""

    def __init__(self, *, epsilon: float) -> None:
        self.epsilon = epsilon
        self.tasks = 0
        self.square = self.mean = self.right_scale = self.right_shift = 0.0

    def fold(self, moments: DiagonalMoments, expert: Affine) -> None:
        """Add a task with weight one; z is the merged model's normalised input."""
        mean, square = moments.mean, moments.square
        self.tasks += 1
        self.square = self.square + square
        self.mean = self.mean + mean
        self.right_scale = self.right_scale + square * expert.weight + mean * expert.bias
        self.right_shift = self.right_shift + mean * expert.weight + expert.bias

    def solve(self, anchor: Affine, *, ridge: float, shift: bool) -> Affine:
        """Scale and shift; without ``shift`` (RMSNorm) the restriction β = 0."""
        a11, a12, a22 = self.square + ridge, self.mean, self.tasks + ridge
        right_scale = self.right_scale + ridge * anchor.weight
        if not shift:
            scale = right_scale / a11.clamp(min=self.epsilon)
            return Affine(scale, torch.zeros_like(scale))
        right_shift = self.right_shift + ridge * anchor.bias
        determinant = (a11 * a22 - a12 * a12).clamp(min=self.epsilon)
        return Affine(
            (a22 * right_scale - a12 * right_shift) / determinant,
            (a11 * right_shift - a12 * right_scale) / determinant,
        )
