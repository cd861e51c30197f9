"""The base's loss and optimizer."""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import CLIPModel

MAX_LOG_SCALE = 4.2


def contrastive_loss(images: Tensor, texts: Tensor, scale: Tensor, positive: Tensor) -> Tensor:
    """Return the symmetric CLIP loss with several positives per row and column."""
    logits = scale.clamp(max=MAX_LOG_SCALE).exp() * images @ texts.T
    rows = positive / positive.sum(1, keepdim=True)
    cols = (positive / positive.sum(0, keepdim=True)).T
    row_loss = -(rows * F.log_softmax(logits, 1)).sum(1).mean()
    col_loss = -(cols * F.log_softmax(logits.T, 1)).sum(1).mean()
    return (row_loss + col_loss) / 2


def make_optimizer(model: CLIPModel, rate: float) -> torch.optim.AdamW:
    """Return AdamW; no decay on norms, biases and embeddings; the logit scale learns 8x faster."""
    groups: dict[str, list[Tensor]] = {"decayed": [], "plain": [], "scale": []}
    for name, parameter in model.named_parameters():
        if name == "logit_scale":
            groups["scale"].append(parameter)
        elif parameter.dim() <= 1 or re.search("position_emb|class_emb|token_emb", name):
            groups["plain"].append(parameter)
        else:
            groups["decayed"].append(parameter)
    settings: list[dict[str, Any]] = [
        {"params": groups["decayed"], "weight_decay": 0.05, "factor": 1.0},
        {"params": groups["plain"], "weight_decay": 0.0, "factor": 1.0},
        {"params": groups["scale"], "weight_decay": 0.0, "factor": 8.0},
    ]
    return torch.optim.AdamW(settings, lr=rate, betas=(0.9, 0.98))
