"""Algebra on state dicts: what counts as a weight, task vectors, sums, and the checks at the door.

Arithmetic is done in float32 (float64 for float64 weights) whatever the weights' own type; the
result goes back to the base model's type when it is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

StateDict = dict[str, Tensor]
log = logging.getLogger(__name__)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which a weight of this type is computed with."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def weights(model: nn.Module, exclude: Iterable[str] = ()) -> StateDict:
    """The model's floating-point state by name, tied weights once, without excluded patterns.

    The tensors are the model's own (no copy). Integer and boolean buffers are left out: they are
    never merged. ``exclude`` holds shell patterns such as ``"visual_projection.*"``.
    """
    # named_parameters and named_buffers list a shared tensor under its first name only
    own = {name for name, _ in model.named_parameters()} | {n for n, _ in model.named_buffers()}
    return {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name in own
        and tensor.is_floating_point()
        and not any(fnmatchcase(name, pattern) for pattern in exclude)
    }


def task_vector(expert: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> StateDict:
    """Expert minus base, tensor by tensor, for the base's names."""
    return {
        name: expert[name].detach().to(tensor.device, dtype := compute_dtype(tensor.dtype))
        - tensor.detach().to(dtype)
        for name, tensor in base.items()
    }


def total(vectors: Iterable[Mapping[str, Tensor]]) -> StateDict:
    """The sum of an iterable of state dicts, holding one of them at a time."""
    result: StateDict = {}
    for vector in vectors:
        for name, tensor in vector.items():
            result[name] = result[name].add_(tensor) if name in result else tensor.clone()
    return result


def add(base: Mapping[str, Tensor], vector: Mapping[str, Tensor], *, scale: float) -> StateDict:
    """``base + scale * vector`` in the computing type."""
    return {
        name: tensor.detach().to(compute_dtype(tensor.dtype)) + scale * vector[name]
        for name, tensor in base.items()
    }


def check_expert(task: str, expert: nn.Module, base: nn.Module, exclude: Iterable[str]) -> bool:
    """Raise ValueError unless the expert has the base's weights, shapes and finite values.

    Returns whether any weight differs from the base (an expert equal to it is legal but odd).
    """
    ours, theirs = weights(base, exclude), weights(expert, exclude)
    check_keys(f"expert {task!r}", theirs, ours, "load it with the base model's loader")
    differs = False
    for name, tensor in theirs.items():
        if tensor.shape != ours[name].shape:
            raise ValueError(
                f"expert {task!r}: {name} has shape {tuple(tensor.shape)}, the base model's is "
                f"{tuple(ours[name].shape)}; was it fine-tuned from another base?"
            )
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise ValueError(
                f"expert {task!r}: {name} holds {bad} NaN or infinite values of {tensor.numel()}; "
                "load the checkpoint again or leave this expert out"
            )
        differs |= not torch.equal(tensor.to(ours[name]), ours[name])
    return differs


def check_keys(what: str, got: Iterable[str], known: Iterable[str], do: str) -> None:
    """Raise ValueError if two sets of parameter names differ, naming counts and first names."""
    got, known = set(got), set(known)
    missing, extra = sorted(known - got), sorted(got - known)
    if not missing and not extra:
        return
    parts = []
    if missing:
        parts.append(
            f"lacks {len(missing)} of the base model's {len(known)} parameters ({_some(missing)})"
        )
    if extra:
        parts.append(f"has {len(extra)} parameters that the base model lacks ({_some(extra)})")
    raise ValueError(f"{what} {' and '.join(parts)}; {do}")


def _some(names: list[str], shown: int = 3) -> str:
    return ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")


@torch.no_grad()
def load_weights(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Copy ``state`` into the model, in the model's types; names it lacks keep their values.

    Raises ValueError for names that the model does not have, wrong shapes and non-finite values.
    """
    targets = weights(model)
    unknown = sorted(set(state) - set(targets))
    if unknown:
        raise ValueError(f"{source} returned {len(unknown)} unknown weights ({_some(unknown)})")
    for name, tensor in state.items():
        if tensor.shape != targets[name].shape:
            raise ValueError(
                f"{source} returned {name} with shape {tuple(tensor.shape)}, "
                f"expected {tuple(targets[name].shape)}"
            )
        stored = tensor.to(targets[name])
        if not torch.isfinite(stored).all():
            raise ValueError(
                f"{source} returned NaN or infinite values in {name} (or values beyond the range "
                f"of {stored.dtype})"
            )
        targets[name].copy_(stored)
