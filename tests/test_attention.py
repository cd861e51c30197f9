"""Splitting fused attention: the same function, or a refusal."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import open_clip_fused
from torch import nn

from merging.attention import SplitAttention, split_attention


def fused(**options):
    torch.manual_seed(3)
    module = nn.MultiheadAttention(32, 4, **{"batch_first": True, **options}).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module


def tokens(dtype=torch.float32):
    return torch.randn(5, 7, 32, generator=torch.Generator().manual_seed(1)).to(dtype)


def both(module, **options):
    x = tokens(module.in_proj_weight.dtype)
    with torch.no_grad():
        expected = module(x, x, x, need_weights=False, **options)[0]
        return SplitAttention(module)(x, x, x, need_weights=False, **options)[0], expected


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-14)])
def test_split_attention_equals_fused_attention(bias, dtype, tolerance):
    got, expected = both(fused(bias=bias).to(dtype))
    assert torch.allclose(got, expected, rtol=0, atol=tolerance)


def test_a_split_open_clip_tower_equals_the_fused_one():
    torch.manual_seed(0)
    model = open_clip_fused().eval()
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(images)
        got = split_attention(copy.deepcopy(model))(images)
    assert expected.std() > 0.01
    assert torch.allclose(got, expected, rtol=0, atol=1e-6)


def test_splitting_replaces_every_fused_attention_in_place():
    model = open_clip_fused()
    assert split_attention(model) is model
    assert not any(isinstance(module, nn.MultiheadAttention) for module in model.modules())
    assert sum(isinstance(module, SplitAttention) for module in model.modules()) == 2


def test_splitting_twice_changes_nothing():
    model = split_attention(open_clip_fused())
    before = list(model.modules())
    assert list(split_attention(model).modules()) == before


def test_the_parts_are_the_rows_of_the_fused_weight():
    module = fused()
    split = SplitAttention(module)
    parts = [split.q_proj, split.k_proj, split.v_proj]
    assert torch.equal(torch.cat([p.weight for p in parts]), module.in_proj_weight)
    assert torch.equal(torch.cat([p.bias for p in parts]), module.in_proj_bias)
    assert torch.equal(split.out_proj.weight, module.out_proj.weight)
    assert type(split.out_proj) is nn.Linear


def test_the_split_form_shares_no_memory_and_has_as_many_parameters():
    module = fused()
    split = SplitAttention(module)
    theirs = {p.data_ptr() for p in module.parameters()}
    assert not theirs & {p.data_ptr() for p in split.parameters()}
    assert sum(p.numel() for p in split.parameters()) == sum(p.numel() for p in module.parameters())
    assert all(p.requires_grad for p in split.parameters())


def test_type_and_mode_are_kept():
    split = SplitAttention(fused().double())
    assert {p.dtype for p in split.parameters()} == {torch.float64}
    assert not split.training
    assert SplitAttention(fused().train()).training


def test_an_additive_mask_has_the_same_effect():
    mask = torch.full((7, 7), float("-inf")).triu(1)
    got, expected = both(fused(), attn_mask=mask)
    assert torch.allclose(got, expected, rtol=0, atol=1e-5)


def test_a_boolean_mask_has_the_same_effect_or_is_refused():
    mask = torch.ones(7, 7, dtype=torch.bool).triu(1)  # True: not attended, in nn's convention
    try:
        got, expected = both(fused(), attn_mask=mask)
    except (TypeError, ValueError):
        return
    assert torch.allclose(got, expected, rtol=0, atol=1e-5)


def test_a_padding_mask_has_the_same_effect_or_is_refused():
    mask = torch.zeros(5, 7, dtype=torch.bool)
    mask[:, 5:] = True
    try:
        got, expected = both(fused(), key_padding_mask=mask)
    except (TypeError, ValueError):
        return
    assert torch.allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kdim": 16}, "separate key or value widths"),
        ({"vdim": 16}, "separate key or value widths"),
        ({"add_bias_kv": True}, "bias_k and bias_v"),
        ({"add_zero_attn": True}, "add_zero_attn"),
        ({"dropout": 0.1}, "attention dropout"),
        ({"batch_first": False}, "batch_first=False"),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_reason(options, reason):
    with pytest.raises(ValueError, match=f"cannot split .*{reason}"):
        SplitAttention(fused(**options))


@pytest.mark.parametrize("other", ["key", "value"])
def test_cross_attention_is_refused(other):
    x = tokens()
    arguments = {"key": x, "value": x, other: x.clone()}
    with pytest.raises(ValueError, match="query, key and value must be one"):
        SplitAttention(fused())(x, **arguments)
