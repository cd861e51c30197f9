"""All that is known about architectures: three paths per model class, and how a batch is passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .registry import unknown

V = TypeVar("V")


@dataclass(frozen=True)
class Layout:
    """Where the residual blocks and the feature of a model class are.

    ``pooled_token`` is the one token that the head reads, if it reads only one; in the last block
    the modules whose names end in one of ``all_token_modules`` still matter at every token. The
    row holds for models whose attributes have the values in ``requires``.
    """

    stacks: tuple[str, ...]
    feature: str  # path of the module whose output is the feature; "" is the model itself
    pooled_token: int | None = None
    all_token_modules: tuple[str, ...] = ("k_proj", "v_proj")
    inputs: Mapping[str, str] = field(default_factory=dict)  # batch key → forward's own name
    requires: Mapping[str, object] = field(default_factory=dict)


LAYOUTS = {
    "CLIPVisionModelWithProjection": Layout(
        ("vision_model.encoder.layers",), "visual_projection", pooled_token=0
    ),
    "VisionTransformer": Layout(  # open_clip, after attention.split_attention
        ("transformer.resblocks",),
        "",
        pooled_token=0,
        inputs={"pixel_values": "x"},
        requires={"pool_type": "tok", "attn_pool": None},
    ),
    "T5ForConditionalGeneration": Layout(
        ("encoder.block", "decoder.block"), "decoder.final_layer_norm"
    ),
}


def by_class(table: Mapping[str, V], instance: object) -> V | None:
    """The entry of ``table`` for the instance's class or its nearest named ancestor."""
    names = (cls.__name__ for cls in type(instance).__mro__)
    return next((table[name] for name in names if name in table), None)


def layout_of(model: nn.Module) -> Layout:
    """The model's layout.

    Raises KeyError that names the known model classes, ValueError for a variant of a known class
    that computes something else.
    """
    layout = by_class(LAYOUTS, model)
    if layout is None:
        raise KeyError(
            unknown("model layout", type(model).__name__, LAYOUTS)
            + "; add one row to merging.layouts.LAYOUTS"
        )
    for name, value in layout.requires.items():
        got = getattr(model, name, value)
        if got is not value and got != value:
            raise ValueError(
                f"this {type(model).__name__} has {name}={got!r}; its layout is known for "
                f"{name}={value!r} only; add a class of its own to merging.layouts.LAYOUTS"
            )
    return layout


def run(model: nn.Module, batch: Mapping[str, Any]) -> Any:
    """The model's forward pass on a batch, tensors moved to the model's device."""
    layout = by_class(LAYOUTS, model)
    names = layout.inputs if layout else {}
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return model(
        **{
            names.get(key, key): value.to(device) if isinstance(value, Tensor) else value
            for key, value in batch.items()
        }
    )
