"""FeatCal written out densely in float64, from full forward passes and by least squares.

Written from specs/featcal.md; nothing here uses the walk, the streamed moments or the normal
equations of ``merging``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from merging import Pool

DEFAULTS = {"ridge": 0.05, "rho": 2.2, "alpha": 0.25, "epsilon": 1e-8, "token_weight": 0.01}
_CLIP_PARTS = (  # in the order in which they run; modules of one line share their input
    ("layer_norm1",),
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.out_proj",),
    ("layer_norm2",),
    ("mlp.fc1",),
    ("mlp.fc2",),
)
_OPEN_CLIP_PARTS = (
    ("ln_1",),
    ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    ("attn.out_proj",),
    ("ln_2",),
    ("mlp.c_fc",),
    ("mlp.c_proj",),
)


def _t5_attention(layer: int, kind: str) -> tuple[tuple[str, ...], ...]:
    q, k, v, o = (f"layer.{layer}.{kind}.{part}" for part in "qkvo")
    norm = (f"layer.{layer}.layer_norm",)
    return (norm, (q, k, v), (o,)) if kind == "SelfAttention" else (norm, (q,), (k, v), (o,))


def _t5_dense(layer: int) -> tuple[tuple[str, ...], ...]:
    wi_0, wi_1, wo = (f"layer.{layer}.DenseReluDense.{part}" for part in ("wi_0", "wi_1", "wo"))
    return (f"layer.{layer}.layer_norm",), (wi_0, wi_1), (wo,)


PARTS = {  # stack → parts of each of its two blocks
    "clip": {"vision_model.encoder.layers": _CLIP_PARTS},
    "open_clip": {"transformer.resblocks": _OPEN_CLIP_PARTS},
    "t5": {
        "encoder.block": (*_t5_attention(0, "SelfAttention"), *_t5_dense(1)),
        "decoder.block": (
            *_t5_attention(0, "SelfAttention"),
            *_t5_attention(1, "EncDecAttention"),
            *_t5_dense(2),
        ),
    },
}


def plan(family: str, order: str) -> list[tuple[str, ...]]:
    """Sets of modules that are solved at the same time, in forward order."""
    sets: list[tuple[str, ...]] = []
    for stack, parts in PARTS[family].items():
        for index in range(2):
            named = [tuple(f"{stack}.{index}.{name}" for name in part) for part in parts]
            sets += named if order == "module" else [sum(named, ())]
    return sets


def weighted(family: str) -> set[str]:
    """Modules whose tokens other than the class token are weighted down."""
    if family == "t5":
        return set()
    last = plan(family, "block")[-1]
    return {name for name in last if not name.endswith(("k_proj", "v_proj"))}


def forward(model: nn.Module, batch: Mapping[str, Any]) -> Any:
    """The model's own forward pass."""
    names = {"pixel_values": "x"} if type(model).__name__ == "VisionTransformer" else {}
    with torch.no_grad():
        return model(**{names.get(key, key): value for key, value in batch.items()})


def inputs_of(
    model: nn.Module, names: Sequence[str], batch: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The input of each named module in one full forward pass."""
    kept: dict[str, torch.Tensor] = {}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _module, args, name=name: kept.__setitem__(name, args[0].detach().clone())
        )
        for name in names
    ]
    forward(model, batch)
    for handle in handles:
        handle.remove()
    return kept


def numbers(tensor: torch.Tensor | None) -> np.ndarray | float:
    return 0.0 if tensor is None else tensor.detach().double().numpy()


def affine(module: nn.Module) -> tuple[np.ndarray, np.ndarray | float]:
    return numbers(module.weight), numbers(getattr(module, "bias", None))


def least_squares(rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """By QR decomposition of the rows, which have full column rank."""
    both = torch.from_numpy(rows), torch.from_numpy(targets)
    return torch.linalg.lstsq(*both, driver="gels").solution.numpy()


def solve_linear(tasks, anchor, *, ridge, epsilon):
    """argmin Σ ω E‖W x - W_i t‖² + λ‖W - A‖² + ε‖W‖², then b for that W; tasks: (x, t, p, W, b)."""
    rows, targets, omegas = [], [], []
    for x, t, p, w_i, _ in tasks:
        omega = 1 / max(np.linalg.norm((x * p[:, None]).T @ x), epsilon)
        omegas.append(omega)
        scale = np.sqrt(omega * p)[:, None]
        rows.append(scale * x)
        targets.append(scale * (t @ w_i.T))
    width = tasks[0][0].shape[1]
    rows += [np.sqrt(ridge) * np.eye(width), np.sqrt(epsilon) * np.eye(width)]
    targets += [np.sqrt(ridge) * anchor[0].T, np.zeros_like(anchor[0].T)]
    weight = least_squares(np.concatenate(rows), np.concatenate(targets)).T
    upper = ridge * anchor[1]
    for omega, (x, t, p, w_i, b_i) in zip(omegas, tasks, strict=True):
        upper = upper + omega * (p[:, None] * (t @ w_i.T + b_i - x @ weight.T)).sum(0)
    return weight, upper / (sum(omegas) + ridge)


def solve_norm(tasks, anchor, *, ridge, shift):
    """Coordinate by coordinate argmin Σ E(γ z + β - γ_i z - β_i)² + λ(γ - γ_A)² + λ(β - β_A)²."""
    width = tasks[0][0].shape[1]
    gamma, beta = np.empty(width), np.zeros(width)
    for j in range(width):
        rows, targets = [], []
        for z, p, gamma_i, beta_i in tasks:
            beta_ij = beta_i[j] if shift else 0.0
            rows.append(np.sqrt(p)[:, None] * np.stack([z[:, j], np.ones(len(z))], 1))
            targets.append(np.sqrt(p) * (gamma_i[j] * z[:, j] + beta_ij))
        rows.append(np.sqrt(ridge) * np.eye(2))
        targets.append(np.sqrt(ridge) * np.array([anchor[0][j], anchor[1][j] if shift else 0.0]))
        columns = np.concatenate(rows)[:, : 2 if shift else 1]
        solution = least_squares(columns, np.concatenate(targets)[:, None])[:, 0]
        gamma[j] = solution[0]
        if shift:
            beta[j] = solution[1]
    return gamma, beta


def normal_part(module: nn.Module, x: np.ndarray) -> np.ndarray:
    """LayerNorm or RMSNorm without scale and shift."""
    if isinstance(module, nn.LayerNorm):
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + module.eps)
    return x / np.sqrt((x**2).mean(1, keepdims=True) + module.variance_epsilon)


def dense_featcal(
    family: str, model: nn.Module, pool: Pool, *, order: str = "block", **changed: float
) -> nn.Module:
    """A calibrated copy of the merged model."""
    options = {**DEFAULTS, **changed}
    model = copy.deepcopy(model)
    down = weighted(family)
    everything = sum(plan(family, "block"), ())
    seen_by_experts = {
        task: [inputs_of(expert, everything, batch) for batch in pool.calibration[task]]
        for task, expert in pool.experts.items()
    }
    for names in plan(family, order):
        gathered: dict[str, list[Any]] = {name: [] for name in names}
        for task in sorted(pool.experts):
            expert = pool.experts[task]
            mine = [inputs_of(model, names, batch) for batch in pool.calibration[task]]
            theirs = seen_by_experts[task]
            for name in names:
                x, x_e = (
                    np.concatenate([numbers(i[name]).reshape(-1, i[name].shape[-1]) for i in kept])
                    for kept in (mine, theirs)
                )
                p = np.ones(len(x))
                if name in down:
                    tokens = mine[0][name].shape[1]
                    p[np.arange(len(x)) % tokens != 0] = options["token_weight"]
                p /= p.sum()
                alpha = options["alpha"]
                w_i, b_i = affine(expert.get_submodule(name))
                gathered[name].append((x, alpha * x_e + (1 - alpha) * x, p, w_i, b_i))
        solved = {name: solve(model, pool.base, name, gathered[name], options) for name in names}
        for name, (weight, bias) in solved.items():
            module = model.get_submodule(name)
            with torch.no_grad():
                module.weight.copy_(torch.from_numpy(weight))
                if getattr(module, "bias", None) is not None:
                    module.bias.copy_(torch.from_numpy(bias))
    return model


def solve(model, base, name, tasks, options):
    """The new parameters of one module."""
    module, rho = model.get_submodule(name), options["rho"]
    anchor = tuple(
        rho * m + (1 - rho) * b
        for m, b in zip(affine(module), affine(base.get_submodule(name)), strict=True)
    )
    if isinstance(module, nn.Linear):
        return solve_linear(tasks, anchor, ridge=options["ridge"], epsilon=options["epsilon"])
    rows = [(normal_part(module, x), p, w, b) for x, _, p, w, b in tasks]
    shift = getattr(module, "bias", None) is not None
    return solve_norm(rows, anchor, ridge=options["ridge"], shift=shift)
