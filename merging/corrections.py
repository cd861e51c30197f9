"""Per-task corrections of the feature: their modules, and their training, all tasks at once.

A correction is f ↦ b_t(f), subtracted from the merged model's feature. The tasks' matrices are
stacked along a first dimension, so one optimiser step is one batched product per layer; Adam works
entry by entry, so this equals one Adam per task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .api import Merged, Pool
from .features import Rows, features
from .seeds import generator_for
from .state import compute_dtype
from .timing import section

Parameters = dict[str, Tensor]  # name → (tasks, ...)
# parameters, merged and expert features (tasks, batch, d), noise of that shape → (tasks,)
Loss = Callable[[Parameters, Tensor, Tensor, Tensor], Tensor]
Pairs = Callable[[Tensor], tuple[Tensor, Tensor]]  # row numbers (tasks, batch) → features twice
NOISE_STEPS = 50  # drawn together


@dataclass(frozen=True)
class Training:
    """Adam's steps, batch and rate. ``fresh`` batches are taken of every shuffle, None: all.

    With ``noise`` the loss is given standard normals, one per coordinate of the batch.
    """

    steps: int
    batch: int
    rate: float
    fresh: int | None = None
    noise: bool = False

    def indices(self, rows: int, size: int, generator: torch.Generator) -> Tensor:
        """Row numbers (steps, size), without replacement within a shuffle."""
        wanted = self.steps * size
        if self.fresh is None:  # epochs follow each other without a gap
            epochs = [torch.randperm(rows, generator=generator) for _ in range(-(-wanted // rows))]
        else:
            usable = min(self.fresh, rows // size) * size
            epochs = [
                torch.randperm(rows, generator=generator)[:usable]
                for _ in range(-(-wanted // usable))
            ]
        return torch.cat(epochs)[:wanted].view(self.steps, size)


def cached(merged: Merged, pool: Pool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Merged and expert features (n, d) of every calibration row, by task: each encoded once."""
    mine, theirs = {}, {}
    for task in pool.experts:
        batches = pool.calibration[task]
        for side, model, who in (
            (mine, merged.model, "merged model"),
            (theirs, pool.experts[task], "expert"),
        ):
            rows = features(model, batches, f"{who}, task {task!r}")
            side[task] = rows.to(compute_dtype(rows.dtype))
    return mine, theirs


def looked_up(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Pairs:
    """Pairs from cached features, all tasks by one look-up."""
    sides = [torch.cat(list(side.values())) for side in (mine, theirs)]
    counts = torch.tensor([0, *(len(rows) for rows in mine.values())])
    starts = counts.cumsum(0)[:-1, None]

    def pairs(indices: Tensor) -> tuple[Tensor, Tensor]:
        places = (indices + starts).to(sides[0].device)
        return sides[0][places], sides[1][places]

    return pairs


def recomputed(merged: Merged, pool: Pool) -> tuple[dict[str, int], Pairs]:
    """Rows per task, and pairs that encode each batch anew, as the authors' code does."""
    rows = {t: Rows(merged.model, pool.calibration[t]) for t in pool.experts}

    def pairs(indices: Tensor) -> tuple[Tensor, Tensor]:
        mine, theirs = [], []
        for task, chosen in zip(pool.experts, indices, strict=True):
            mine.append(rows[task].encode(merged.model, chosen, f"merged model, task {task!r}"))
            theirs.append(rows[task].encode(pool.experts[task], chosen, f"expert, task {task!r}"))
        mine, theirs = torch.stack(mine), torch.stack(theirs)
        dtype = compute_dtype(mine.dtype)
        return mine.to(dtype), theirs.to(dtype)

    return {task: len(value) for task, value in rows.items()}, pairs


def fit(
    start: Parameters,
    loss: Loss,
    pairs: Pairs,
    rows: Mapping[str, int],
    training: Training,
    *,
    seed: int,
    name: str,
) -> Parameters:
    """The parameters after the last step; nothing is selected on the way.

    A batch never holds more rows than the smallest task has. Every task draws its batches and its
    noise from generators of its own. Raises FloatingPointError if the loss does not stay finite.
    """
    size = min(training.batch, *rows.values())
    draws = [generator_for(seed, name, "batches", task) for task in rows]
    indices = torch.stack(
        [training.indices(n, size, g) for n, g in zip(rows.values(), draws, strict=True)], dim=1
    )
    noises = [generator_for(seed, name, "noise", task) for task in rows if training.noise]
    device = next(iter(start.values())).device
    parameters = {key: value.clone().requires_grad_() for key, value in start.items()}
    optimiser = torch.optim.Adam(list(parameters.values()), lr=training.rate, fused=True)
    for step, chosen in enumerate(indices):
        mine, theirs = pairs(chosen)
        place = step % NOISE_STEPS
        if place == 0:
            shape = (NOISE_STEPS, *mine.shape[1:])
            drawn = [torch.randn(shape, generator=g, dtype=mine.dtype) for g in noises]
            noise = torch.stack(drawn, dim=1).to(device) if noises else mine.new_empty(shape[:1])
        with section("fit"), torch.enable_grad():
            value = loss(parameters, mine, theirs, noise[place]).sum()
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
        asked = (step + 1) % 100 == 0 or step + 1 == training.steps  # asking makes a GPU wait
        if asked and not torch.isfinite(value):
            raise FloatingPointError(
                f"{name}: the loss is not finite after step {step + 1}; lower the field 'rate'"
            )
    fitted = {key: value.detach() for key, value in parameters.items()}
    if not all(torch.isfinite(value).all() for value in fitted.values()):
        raise FloatingPointError(f"{name}: the last step overflows; lower the field 'rate'")
    return fitted


def kaiming(tasks: Mapping[str, object], shape: tuple[int, int], seed: int, name: str) -> Tensor:
    """(tasks, *shape), uniform in ±1/√fan_in, each task from a generator of its own.

    That is Kaiming's initialisation with a = √5, the default of ``nn.Linear``.
    """
    bound = shape[1] ** -0.5
    drawn = [
        torch.rand(shape, generator=generator_for(seed, name, "initial weights", task))
        for task in tasks
    ]
    return torch.stack(drawn) * (2 * bound) - bound


class Bottleneck(nn.Module):
    """f ↦ up · relu(down · f), without biases; down (rank, d), up (d, rank)."""

    def __init__(self, down: Tensor, up: Tensor) -> None:
        super().__init__()
        self.down, self.up = (nn.Parameter(t.clone(), requires_grad=False) for t in (down, up))

    def forward(self, feature: Tensor) -> Tensor:
        """What is to be subtracted from the feature."""
        hidden = torch.relu(feature.to(self.down.dtype) @ self.down.T)
        return (hidden @ self.up.T).to(feature.dtype)


class OnUnitSphere(nn.Module):
    """A correction fitted to normalised features: the corrected feature is u - b(u), u = f/‖f‖."""

    def __init__(self, correction: nn.Module) -> None:
        super().__init__()
        self.correction = correction

    def forward(self, feature: Tensor) -> Tensor:
        """What is to be subtracted from the feature as the model gives it."""
        unit = nn.functional.normalize(feature, dim=-1)
        return feature - (unit - self.correction(unit))


class AffineMap(nn.Module):
    """A correction that makes the corrected feature A f + a; A (d, d), a (d,)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(t.clone(), requires_grad=False) for t in (weight, bias)
        )

    def forward(self, feature: Tensor) -> Tensor:
        """What is to be subtracted from the feature."""
        mapped = nn.functional.linear(feature.to(self.weight.dtype), self.weight, self.bias)
        return feature - mapped.to(feature.dtype)


def corrected(
    merged: Merged,
    pool: Pool,
    name: str,
    *,
    sizes: Mapping[str, tuple[int | None, int | None]],
    loss: Loss,
    training: Training,
    normalise: bool,
    recompute: bool,
) -> Merged:
    """Fit stacked matrices and attach the first two as a bottleneck per task.

    ``sizes`` maps each matrix to its shape, None standing for the feature's width. The first one
    starts at random, the others at zero, so that the first correction is zero.
    """
    refuse_corrected(merged, name)
    if recompute:
        rows, pairs = recomputed(merged, pool)
        width = pairs(torch.zeros(len(rows), 1, dtype=torch.long))[0].shape[-1]
    else:
        mine, theirs = cached(merged, pool)
        rows, pairs = {task: len(value) for task, value in mine.items()}, looked_up(mine, theirs)
        width = next(iter(mine.values())).shape[-1]
    if normalise:
        plain = pairs

        def pairs(indices: Tensor) -> tuple[Tensor, Tensor]:
            mine, theirs = plain(indices)
            return nn.functional.normalize(mine, dim=-1), nn.functional.normalize(theirs, dim=-1)

    reference = next(merged.model.parameters())
    start: Parameters = {}
    for key, size in sizes.items():
        shape = tuple(width if s is None else s for s in size)
        first = kaiming(rows, shape, pool.seed, name) if not start else None
        matrix = torch.zeros(len(rows), *shape) if first is None else first
        start[key] = matrix.to(reference.device, compute_dtype(reference.dtype))
    fitted = fit(start, loss, pairs, rows, training, seed=pool.seed, name=name)
    down, up = list(fitted.values())[:2]
    corrections: dict[str, nn.Module] = {
        task: Bottleneck(d, u) for task, d, u in zip(rows, down, up, strict=True)
    }
    if normalise:
        corrections = {task: OnUnitSphere(module) for task, module in corrections.items()}
    return Merged(merged.model, corrections)


def refuse_corrected(merged: Merged, name: str) -> None:
    """ValueError if the model already has corrections: a second one would undo the first."""
    if merged.corrections:
        raise ValueError(
            f"{name} was given a model that already has per-task corrections (tasks "
            f"{', '.join(sorted(merged.corrections))}); give it the merged model"
        )
