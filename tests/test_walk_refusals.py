"""Models that the walk cannot see through are refused, with the way out."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import hooks_on, open_clip_fused, pool_of
from torch import nn

from merging import Pool, calibrate, merge
from merging.attention import split_attention
from merging.calibrators.surgery import Surgery
from merging.layouts import layout_of
from merging.mergers.ties import Ties
from merging.replay import record


def test_fused_attention_is_refused_with_the_way_out():
    torch.manual_seed(0)
    base = open_clip_fused().eval()
    calibration = {"ants": [{"pixel_values": torch.zeros(2, 3, 16, 16)}]}
    pool = Pool(base, {"ants": copy.deepcopy(base)}, calibration)
    with pytest.raises(ValueError, match=r"'attn' is a fused .*split_attention on the base model"):
        calibrate("featcal", merge("average", pool), pool)


def test_a_module_that_is_not_run_is_named():
    pool = pool_of("clip")
    for model in (pool.base, *pool.experts.values()):
        for block in model.get_submodule(layout_of(model).stacks[0]):
            block.add_module("spare", nn.Linear(2, 2))
    merged = merge("average", pool)
    with pytest.raises(RuntimeError, match=r"\['spare'\] of block 0 were not run"):
        calibrate("featcal", merged, pool)
    assert hooks_on(merged.model, pool.base, *pool.experts.values()) == []


def test_a_block_that_is_not_run_is_an_error():
    pool = pool_of("clip")
    blocks = [*pool.base.get_submodule(layout_of(pool.base).stacks[0]), nn.Linear(2, 2)]
    with pytest.raises(RuntimeError, match="a block was skipped"):
        record(pool.base, blocks, pool.calibration["ants"][0], first_only=False)
    assert hooks_on(pool.base) == []


def test_a_model_without_a_layout_is_refused_with_the_known_ones():
    pool = pool_of("mlp")
    calibration = {task: [{"input": torch.zeros(2, 6)}] for task in pool.experts}
    with pytest.raises(KeyError, match=r"'Sequential'.*CLIPVisionModel.*merging.layouts.LAYOUTS"):
        calibrate("featcal", merge("average", pool), Pool(pool.base, pool.experts, calibration))


def test_a_subclass_of_a_known_model_has_its_layout():
    base = pool_of("clip").base
    base.__class__ = type("Mine", (type(base),), {})
    assert layout_of(base).pooled_token == 0


def test_a_tower_that_pools_otherwise_is_refused():
    base = split_attention(open_clip_fused()).eval()
    base.pool_type = "avg"
    with pytest.raises(ValueError, match=r"has pool_type='avg'; its layout is known for .*'tok'"):
        layout_of(base)


def test_a_matrix_outside_linear_layers_is_refused():
    pool = pool_of("clip")
    for model in (pool.base, *pool.experts.values()):
        for block in model.get_submodule(layout_of(model).stacks[0]):
            block.mlp.in_proj = nn.Parameter(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"'mlp' \(CLIPMLP\) has matrices of its own \(in_proj\)"):
        calibrate("featcal", merge("average", pool), pool)


def test_a_choice_of_a_method_built_as_an_object_is_checked():
    with pytest.raises(ValueError, match=r"Ties, 'combine': got 'maximum', known: sum"):
        merge(Ties(combine="maximum"), pool_of("clip"))
    with pytest.raises(ValueError, match=r"Surgery, 'protocol': got 'mine', known: matched, nat"):
        calibrate(Surgery(protocol="mine"), merge("average", pool_of("clip")), pool_of("clip"))
