"""What every registered merger keeps to, on every family of models."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import (
    MODELS,
    LazyExperts,
    assert_close_states,
    assert_equal_states,
    noisy,
    pool_of,
    state_of,
)

from merging import MERGERS, Pool, merge

CASES = [
    (name, model)
    for name in sorted(MERGERS)
    for model in MODELS
    if model != "mlp" or not MERGERS[name].needs_data  # the mlp has no layout to replay
]
every_merger = pytest.mark.parametrize("merger", sorted(MERGERS))
every_case = pytest.mark.parametrize(("merger", "model"), CASES)


@every_case
def test_names_shapes_and_types_are_the_base_models(merger, model):
    pool = pool_of(model)
    got = merge(merger, pool).model.state_dict()
    expected = pool.base.state_dict()
    assert list(got) == list(expected)
    assert {n: (t.shape, t.dtype) for n, t in got.items()} == {
        n: (t.shape, t.dtype) for n, t in expected.items()
    }


@every_case
def test_weights_move_away_from_the_base(merger, model):
    pool = pool_of(model)
    got = merge(merger, pool).model.state_dict()
    floats = {n: t for n, t in pool.base.state_dict().items() if t.is_floating_point()}
    assert all(not torch.equal(got[n], t) for n, t in floats.items() if t.numel() > 8)


@every_case
def test_the_pool_is_not_touched(merger, model):
    pool = pool_of(model)
    models = [pool.base, *pool.experts.values()]
    before, calibration = state_of(*models), copy.deepcopy(pool.calibration)
    merge(merger, pool)
    for state, expected in zip(state_of(*models), before, strict=True):
        assert_equal_states(state, expected)
    for task, batches in calibration.items():
        for batch, expected in zip(pool.calibration[task], batches, strict=True):
            assert batch.keys() == expected.keys()
            assert all(torch.equal(batch[k], v) for k, v in expected.items() if torch.is_tensor(v))


@every_case
def test_the_merged_model_shares_no_tensor_with_the_pool(merger, model):
    pool = pool_of(model)
    got = merge(merger, pool).model
    theirs = {t.data_ptr() for m in (pool.base, *pool.experts.values()) for t in m.parameters()}
    assert not theirs & {t.data_ptr() for t in got.parameters()}


@every_case
def test_the_order_of_experts_does_not_matter(merger, model):
    pool = pool_of(model)
    backwards = dict(reversed(list(pool.experts._experts.items())))
    other = Pool(pool.base, backwards, dict(reversed(list(pool.calibration.items()))))
    assert_equal_states(
        merge(merger, other).model.state_dict(), merge(merger, pool).model.state_dict()
    )


@every_case
def test_experts_equal_to_base_give_base(merger, model):
    pool = pool_of(model, size=0.0)
    for expert in pool.experts.values():
        expert.load_state_dict(pool.base.state_dict())
    got = merge(merger, pool).model.state_dict()
    if MERGERS[merger].needs_data:  # least squares: the base is the optimum up to rounding
        assert_close_states(got, pool.base.state_dict(), 1e-4)
    else:
        assert_equal_states(got, pool.base.state_dict())


@every_case
def test_the_same_seed_gives_the_same_result(merger, model):
    first = merge(merger, pool_of(model, seed=7)).model.state_dict()
    assert_equal_states(merge(merger, pool_of(model, seed=7)).model.state_dict(), first)


@every_merger
def test_the_seed_matters_exactly_for_mergers_that_draw(merger):
    first, second = (merge(merger, pool_of("clip", seed=s)).model.state_dict() for s in (1, 2))
    same = all(torch.equal(second[name], tensor) for name, tensor in first.items())
    assert same is not MERGERS[merger].draws


@every_merger
def test_nothing_is_drawn_from_the_global_generator(merger):
    pool = pool_of("clip")
    before = torch.get_rng_state()
    merge(merger, pool)
    assert torch.equal(torch.get_rng_state(), before)


@every_case
def test_lazy_experts_are_held_one_at_a_time(merger, model):
    pool = pool_of(model)
    lazy = LazyExperts(pool.experts)
    got = merge(merger, Pool(pool.base, lazy, pool.calibration)).model
    assert lazy.loads >= len(lazy)
    assert lazy.peak == 1
    assert_equal_states(got.state_dict(), merge(merger, pool).model.state_dict())


@every_case
def test_half_precision_is_kept_and_computed_in_float32(merger, model):
    half = pool_of(model, dtype=torch.bfloat16)
    full = Pool(
        copy.deepcopy(half.base).float(),
        {task: copy.deepcopy(expert).float() for task, expert in half.experts.items()},
        pool_of(model).calibration,
    )
    got = merge(merger, half).model.state_dict()
    expected = merge(merger, full).model.state_dict()
    for name, tensor in half.base.state_dict().items():
        assert got[name].dtype == tensor.dtype
        if MERGERS[merger].needs_data:  # inputs differ between the types
            assert torch.allclose(got[name].double(), expected[name].double(), atol=0.1)
        else:
            assert torch.equal(got[name], expected[name].to(tensor.dtype)), name


@every_case
def test_integer_and_boolean_buffers_come_from_the_base(merger, model):
    pool = pool_of(model)
    expected = {n: t for n, t in pool.base.state_dict().items() if not t.is_floating_point()}
    assert (len(expected) > 0) == (model == "mlp")
    got = merge(merger, pool).model.state_dict()
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())


@every_case
def test_excluded_parameters_keep_the_bases_value(merger, model):
    patterns = {
        "clip": ("visual_projection.*", "*.layer_norm1.*"),
        "open_clip": ("proj", "*.attn.?_proj.bias"),
        "t5": ("shared.*", "decoder.*"),
        "mlp": ("1.*",),
    }[model]
    pool = pool_of(model, exclude=patterns)
    hidden = set(dict(pool.base.named_parameters())) - set(pool.base_weights())
    got = merge(merger, pool).model.state_dict()
    base = pool.base.state_dict()
    assert hidden
    assert all(torch.equal(got[name], base[name]) for name in hidden)
    assert any(not torch.equal(got[name], base[name]) for name in pool.base_weights())


@every_merger
def test_tied_weights_stay_tied(merger):
    pool = pool_of("t5")
    got = merge(merger, pool).model
    assert got.lm_head.weight is got.shared.weight
    assert got.decoder.embed_tokens.weight is got.encoder.embed_tokens.weight is got.shared.weight
    assert sum(p.numel() for p in got.parameters()) == sum(
        p.numel() for p in pool.base.parameters()
    )


@every_merger
def test_a_single_expert_is_enough(merger):
    pool = pool_of("clip", tasks=("ants",))
    got = merge(merger, pool).model.state_dict()
    assert all(torch.isfinite(tensor).all() for tensor in got.values())


@every_merger
def test_the_merged_model_keeps_the_bases_mode_and_gradients(merger):
    pool = pool_of("clip")
    got = merge(merger, pool).model
    assert not got.training
    assert all(p.requires_grad and p.grad is None for p in got.parameters())


def test_excluded_patterns_may_differ_between_experts_and_base():
    pool = pool_of("clip")
    pool.experts["ants"].visual_projection = torch.nn.Linear(32, 7, bias=False)
    with pytest.raises(ValueError, match="visual_projection"):
        merge("average", pool)
    got = merge("average", Pool(pool.base, pool.experts, exclude=("visual_projection.*",))).model
    assert torch.equal(got.visual_projection.weight, pool.base.visual_projection.weight)


def test_noise_of_the_fixtures_reaches_every_float():
    base = pool_of("mlp").base
    changed = noisy(base, 3, 0.1).state_dict()
    floats = {n: t for n, t in base.state_dict().items() if t.is_floating_point()}
    assert all(not torch.equal(changed[n], t) for n, t in floats.items())
