"""Feature drift: how far a merged model's hidden states are from each expert's, block by block.

For block l and one example, with the merged block B, the expert's block B_t and their inputs x and
x_t, the drift B(x) - B_t(x_t) is the sum of what comes from upstream, B(x) - B(x_t), and of what
the block itself adds, B(x_t) - B_t(x_t). Our reading of FeatCal's figure (its text was not
readable to us): lengths at the token that the head reads, means over examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from merging.experts import Experts
from merging.features import Batch
from merging.layouts import layout_of
from merging.walk import walk


def terms(merged: Tensor, crossed: Tensor, expert: Tensor) -> dict[str, Tensor]:
    """Per row of (..., d): lengths of the drift and of its two parts, and the parts along it.

    ``crossed`` is the merged block's output on the expert's input. The parts along the drift's own
    direction, ``drift_upstream`` and ``drift_local``, add up to its length; lengths need not.
    """
    drift, upstream, local = merged - expert, merged - crossed, crossed - expert
    length = drift.norm(dim=-1)
    direction = drift / length.clamp(min=torch.finfo(length.dtype).tiny).unsqueeze(-1)
    return {
        "drift_l2": length,
        "drift_relative": length / expert.norm(dim=-1).clamp(min=1e-12),
        "drift_cosine": nn.functional.cosine_similarity(merged, expert, dim=-1),
        "drift_upstream": (upstream * direction).sum(-1),
        "drift_local": (local * direction).sum(-1),
        "drift_upstream_l2": upstream.norm(dim=-1),
        "drift_local_l2": local.norm(dim=-1),
    }


@torch.no_grad()
def drift_by_block(
    model: nn.Module, base: nn.Module, experts: Experts, inputs: Mapping[str, Sequence[Batch]]
) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Task, block (numbered through all stacks), and the mean over examples of every term.

    Where the head reads one token, terms are of that token, else means over tokens;
    ``drift_tokens_l2`` is always the mean over tokens. FloatingPointError names task and block.
    """
    pooled = layout_of(model).pooled_token
    for number, step in enumerate(walk(model, base, experts, inputs)):
        parts: dict[str, dict[str, list[Tensor]]] = {}
        for task, *given in step.outputs():
            outputs = [hidden.float() for hidden in given]
            if not all(torch.isfinite(hidden).all() for hidden in outputs):
                raise FloatingPointError(
                    f"drift, task {task!r}, block {step.path}: hidden states are NaN or infinite"
                )
            into = parts.setdefault(task, {})
            rows = [o[:, pooled] if pooled is not None else o.flatten(0, -2) for o in outputs]
            tokens = (outputs[0] - outputs[2]).norm(dim=-1).flatten()
            for metric, value in {**terms(*rows), "drift_tokens_l2": tokens}.items():
                into.setdefault(metric, []).append(value)
        for task, metrics in parts.items():
            means = {name: float(torch.cat(values).mean()) for name, values in metrics.items()}
            yield task, str(number), means


def feature_terms(mine: Tensor, theirs: Tensor) -> dict[str, float]:
    """Means over rows (n, d) of the distances of final features; ``l1`` is Surgery's loss."""
    gap = (mine - theirs).norm(dim=-1)
    return {
        "feature_drift_l2": float(gap.mean()),
        "feature_drift_l1": float((mine - theirs).abs().mean()),
        "feature_drift_relative": float((gap / theirs.norm(dim=-1).clamp(min=1e-12)).mean()),
        "feature_cosine": float(nn.functional.cosine_similarity(mine, theirs, dim=-1).mean()),
    }
