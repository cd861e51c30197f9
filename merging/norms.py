"""Normalisation layers by class name: the part of their map that has no parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layouts import by_class


def _layer_norm(module: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.layer_norm(x, module.normalized_shape, eps=module.eps)


def _t5_norm(module: nn.Module, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)


# By name, because T5LayerNorm is neither an nn.LayerNorm nor an nn.RMSNorm, and this package
# does not import transformers.
NORMS = {"LayerNorm": _layer_norm, "T5LayerNorm": _t5_norm}


def is_norm(module: nn.Module) -> bool:
    """Whether the module is a normalisation layer whose scale can be calibrated."""
    return by_class(NORMS, module) is not None and module.weight is not None


def normalised(module: nn.Module, x: Tensor) -> Tensor:
    """The layer's output before its scale and shift: shape of ``x``, (..., d)."""
    return by_class(NORMS, module)(module, x.to(torch.promote_types(x.dtype, torch.float32)))
