"""FeatCal (arXiv:2605.13030): closed-form calibration of linear and normalisation layers.

Written from the equations and from the known behaviour of the released script; the body of the
paper could not be read. Equation numbers are those a third party quotes (weight Eq. 17, bias
Eq. 55, LayerNorm Eq. 59). Token weights in the last block and ε are known from the script only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ..api import CALIBRATORS, Merged, Pool
from ..gram import DiagonalMoments, Moments
from ..layouts import Layout, layout_of
from ..norms import normalised
from ..state import compute_dtype
from ..systems import Affine, LinearSystem, NormSystem
from ..timing import section
from ..walk import Step, calibratable, walk


@dataclass(frozen=True)
class Unit:
    """Modules of one block that share their input and token weights, so also their moments."""

    names: tuple[str, ...]
    token: int | None  # the one token with weight 1, others are weighted down; None: all alike
    images: bool  # accumulate images W_i t instead of t, cheaper where d_out is small
    linear: bool


@CALIBRATORS.register(
    "featcal",
    title="FeatCal",
    paper="arXiv:2605.13030",
    reconstructed="from the released script; the paper's body was not readable",
)
@dataclass(frozen=True)
class FeatCal:
    """Replace each linear map W of each block, in forward order, by the minimiser of

    Σ_i ω_i E‖W x - W_i (α x_i + (1 - α) x)‖² + λ‖W - ρ W_m - (1 - ρ) W_0‖²,

    with ω_i = 1/‖E[x xᵀ]‖_F, x the merged model's own, already calibrated input and x_i expert
    i's on the same token; then its bias, and likewise each LayerNorm. Defaults are the released
    script's; the paper's text says ``rho=2.0,alpha=0.3``.
    """

    needs_data: ClassVar[bool] = True
    draws: ClassVar[bool] = False
    transductive: ClassVar[bool] = False
    ridge: float = 0.05  # λ; absolute, on Gram matrices of unit Frobenius norm
    rho: float = 2.2  # ρ; 1 anchors at the merged weight, above 1 extrapolates from the base
    alpha: float = 0.25  # α; share of the expert's own input in the target
    order: Literal["block", "module"] = "block"  # "module" (ours): each sees the edits before it
    bias: bool = True  # of linear maps
    norm: bool = True  # scales and shifts of LayerNorm and RMSNorm
    token_weight: float = 0.01  # of tokens that the head does not read, in the last block
    epsilon: float = 1e-8  # ε

    def __post_init__(self) -> None:
        for name in ("ridge", "token_weight", "epsilon"):
            if getattr(self, name) < 0:
                raise ValueError(f"featcal: {name} is at least 0, got {getattr(self, name)}")

    @torch.no_grad()
    def __call__(self, merged: Merged, pool: Pool) -> Merged:
        """A calibrated copy of the merged model."""
        if merged.corrections:
            raise ValueError(
                "featcal edits the shared weights, but this merged model has per-task corrections "
                "that were fitted to the present ones; calibrate with featcal first"
            )
        result = merged.copy()
        layout = layout_of(result.model)
        for step in walk(result.model, pool.base, pool.experts, pool.calibration):
            for names in self._order(step):
                self._calibrate(step, names, layout)
        return result

    def _order(self, step: Step) -> Iterable[list[str]]:
        """Which modules are solved from the same replay: all, or those with one common input."""
        names = calibratable(step.merged)
        if not self.norm:
            names = [n for n in names if isinstance(step.merged.get_submodule(n), nn.Linear)]
        if self.order == "block":
            return [names]
        _, _, inputs, _ = next(step.inputs(names))
        by_input: dict[int, list[str]] = {}
        for name, value in inputs.items():  # in the order in which the modules ran
            by_input.setdefault(id(value), []).append(name)
        return list(by_input.values())

    def _calibrate(self, step: Step, names: list[str], layout: Layout) -> None:
        """Gather the moments of one set of modules over all tasks, then solve and edit them."""
        units: list[Unit] = []
        systems: dict[Unit, LinearSystem | NormSystem] = {}
        for task, batches in groupby(step.inputs(names), key=lambda item: item[0]):
            moments: dict[Unit, Moments | DiagonalMoments] = {}
            experts: dict[Unit, Affine] = {}
            for _, expert, mine, theirs in batches:
                units = units or self._units(step, mine, theirs, layout)
                for unit in units:
                    if unit not in moments:
                        moments[unit] = Moments() if unit.linear else DiagonalMoments()
                        maps = [expert.get_submodule(n) for n in unit.names]
                        experts[unit] = Affine.of(maps, mine[unit.names[0]].device)
                    name = unit.names[0]
                    module = step.merged.get_submodule(name)
                    with section("fit"):
                        self._add(
                            moments[unit], unit, experts[unit], module, mine[name], theirs[name]
                        )
            for unit in units:
                where = f"featcal, block {step.path}, {'+'.join(unit.names)}, task {task!r}"
                moments[unit].check_finite(where)
                if unit.linear:
                    system = systems.setdefault(unit, LinearSystem(epsilon=self.epsilon))
                    system.fold(moments[unit], experts[unit], images=unit.images)
                else:
                    system = systems.setdefault(unit, NormSystem(epsilon=self.epsilon))
                    system.fold(moments[unit], experts[unit])
        with section("fit"):
            for unit, system in systems.items():
                self._edit(step, unit, system)

    def _units(
        self, step: Step, mine: dict[str, Tensor], theirs: dict[str, Tensor], layout: Layout
    ) -> list[Unit]:
        """Group modules by the identity of their inputs (query, key and value share theirs)."""
        pools = step.last and step.stack == layout.stacks[-1]
        groups: dict[tuple[int, int, int | None, bool], list[str]] = {}
        for name, x in mine.items():
            linear = isinstance(step.merged.get_submodule(name), nn.Linear)
            all_tokens = not pools or name.endswith(layout.all_token_modules)
            token = None if all_tokens else layout.pooled_token
            groups.setdefault((id(x), id(theirs[name]), token, linear), []).append(name)
        units = []
        for (_, _, token, linear), names in groups.items():
            modules = [step.merged.get_submodule(name) for name in names]
            # Per token row, images cost 2 d_in d_out multiplications and plain targets d_in²
            images = linear and 2 * sum(m.out_features for m in modules) < modules[0].in_features
            units.append(Unit(tuple(names), token, images, linear))
        return units

    def _add(  # noqa: PLR0917
        self,
        moments: Moments | DiagonalMoments,
        unit: Unit,
        expert: Affine,
        module: nn.Module,
        x: Tensor,
        expert_x: Tensor,
    ) -> None:
        """Fold one batch of merged and expert inputs, (batch, tokens, d), into the moments."""
        weight = None
        if unit.token is not None:
            dtype = compute_dtype(x.dtype)
            weight = x.new_full(x.shape[:-1], self.token_weight, dtype=dtype)
            weight[:, unit.token] = 1.0
        if unit.linear:
            # in the merged model's type: experts may be stored in another one
            target = torch.lerp(x, expert_x.to(x), self.alpha)
            moments.add(x, target, weight=weight, maps=expert.weight if unit.images else None)
        else:
            moments.add(normalised(module, x), weight=weight)

    def _edit(self, step: Step, unit: Unit, system: LinearSystem | NormSystem) -> None:
        """Solve one unit and write the solution into the merged block."""
        modules = [step.merged.get_submodule(name) for name in unit.names]
        device = modules[0].weight.device
        base = Affine.of([step.base.get_submodule(name) for name in unit.names], device)
        anchor = Affine.of(modules, device).blend(base, self.rho)
        where = f"featcal, block {step.path}, {'+'.join(unit.names)}"
        if unit.linear:
            solution = system.solve(anchor, ridge=self.ridge, where=where)
        else:
            shift = getattr(modules[0], "bias", None) is not None
            solution = system.solve(anchor, ridge=self.ridge, shift=shift)
        if not (torch.isfinite(solution.weight).all() and torch.isfinite(solution.bias).all()):
            raise FloatingPointError(f"{where}: the solution is not finite; raise the field ridge")
        sizes = [len(module.weight) for module in modules]
        for module, weight, bias in zip(
            modules, solution.weight.split(sizes), solution.bias.split(sizes), strict=True
        ):
            module.weight.copy_(weight)
            if getattr(module, "bias", None) is not None and (self.bias or not unit.linear):
                module.bias.copy_(bias)
        if not all(torch.isfinite(module.weight).all() for module in modules):
            raise FloatingPointError(
                f"{where}: the solution overflows {modules[0].weight.dtype}; load the models in "
                "float32"
            )
