"""One canonical form of attention: query, key and value maps are three ``nn.Linear`` modules.

open_clip keeps them as one fused parameter of ``nn.MultiheadAttention``, whose ``out_proj`` is an
``nn.Linear`` that is never called; a method that works on linear maps would skip four of six.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SplitAttention(nn.Module):
    """The same function as a batch-first self-attention ``nn.MultiheadAttention``."""

    def __init__(self, fused: nn.MultiheadAttention) -> None:
        super().__init__()
        unsupported = {
            "separate key or value widths": not fused._qkv_same_embed_dim,
            "bias_k and bias_v": fused.bias_k is not None,
            "add_zero_attn": fused.add_zero_attn,
            "attention dropout": fused.dropout != 0.0,
            "batch_first=False": not fused.batch_first,
        }
        if any(unsupported.values()):
            found = ", ".join(name for name, present in unsupported.items() if present)
            raise ValueError(f"cannot split this nn.MultiheadAttention: it has {found}")
        self.heads = fused.num_heads
        width = fused.embed_dim
        like = {"device": fused.in_proj_weight.device, "dtype": fused.in_proj_weight.dtype}
        bias = fused.in_proj_bias is not None
        for position, name in enumerate(("q_proj", "k_proj", "v_proj")):
            linear = nn.Linear(width, width, bias=bias, **like)
            rows = slice(position * width, (position + 1) * width)
            with torch.no_grad():
                linear.weight.copy_(fused.in_proj_weight[rows])
                if bias:
                    linear.bias.copy_(fused.in_proj_bias[rows])
            self.add_module(name, linear)
        self.out_proj = nn.Linear(width, width, bias=fused.out_proj.bias is not None, **like)
        self.out_proj.load_state_dict(fused.out_proj.state_dict())
        self.train(fused.training)

    def forward(  # noqa: PLR0917 - the order of nn.MultiheadAttention
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor, None]:
        """Self-attention of ``query`` (batch, tokens, width); key and value must be the same.

        A boolean ``attn_mask`` is True where attention is barred, as in ``nn.MultiheadAttention``.
        """
        if key_padding_mask is not None:
            raise ValueError("SplitAttention takes no key_padding_mask: batches are not padded")
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = ~attn_mask  # the function below means the opposite
        if (key is not None and key is not query) or (value is not None and value is not query):
            raise ValueError("SplitAttention is self-attention: query, key and value must be one")
        parts = [
            proj(query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*parts, attn_mask=attn_mask)
        return self.out_proj(mixed.transpose(1, 2).flatten(-2)), None


def split_attention(model: nn.Module) -> nn.Module:
    """Replace every fused attention of the model by its split form, in place; returns the model."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.MultiheadAttention):
                setattr(module, name, SplitAttention(child))
    return model
