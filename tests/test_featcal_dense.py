"""FeatCal on whole models against the formulas of its specification, evaluated densely."""

from __future__ import annotations

import pytest
import torch
from reference import dense_featcal
from tiny import assert_close_states, assert_equal_states, pool_of
from torch import nn

from merging import Merged, Pool, calibrate, merge


def double(family, **fields):
    pool = pool_of(family, dtype=torch.float64, **fields)
    return pool, merge("task_arithmetic", pool)


def assert_matches(family, method, pool, merged, tolerance=1e-8, **options):
    got = calibrate(method, merged, pool).model
    expected = dense_featcal(family, merged.model, pool, **options)
    assert_close_states(got.state_dict(), expected.state_dict(), tolerance)


@pytest.mark.parametrize("order", ["block", "module"])
def test_featcal_equals_the_dense_formulas(family, order):
    pool, merged = double(family)
    assert_matches(family, f"featcal:order={order}", pool, merged, order=order)


@pytest.mark.parametrize(
    "options",
    [
        {"ridge": 0.5, "rho": 1.0, "alpha": 0.0},
        {"ridge": 0.005, "rho": 2.0, "alpha": 0.3},
        {"alpha": 1.0, "token_weight": 0.5},
        {"epsilon": 0.01},
    ],
)
def test_featcal_equals_the_dense_formulas_for_other_hyperparameters(options):
    pool, merged = double("clip")
    spelled = ",".join(f"{key}={value}" for key, value in options.items())
    assert_matches("clip", f"featcal:{spelled}", pool, merged, **options)


def test_featcal_equals_the_dense_formulas_in_float32():
    pool = pool_of("clip")
    assert_matches("clip", "featcal", pool, merge("task_arithmetic", pool), tolerance=2e-5)


def test_featcal_equals_the_dense_formulas_after_another_merger():
    pool = pool_of("open_clip", dtype=torch.float64)
    assert_matches("open_clip", "featcal", pool, merge("ties", pool))


def test_block_and_module_order_differ(family):
    pool, merged = double(family)
    by_block, by_module = (
        calibrate(f"featcal:order={order}", merged, pool).model.state_dict()
        for order in ("block", "module")
    )
    gaps = [float((by_module[n] - t).abs().max()) for n, t in by_block.items()]
    assert max(gaps) > 1e-4


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-10)])
def test_batching_does_not_matter(dtype, tolerance):
    pool = pool_of("clip", dtype=dtype, sizes=(8,))
    merged = merge("task_arithmetic", pool)
    pieces = {
        task: [{"pixel_values": part} for part in batches[0]["pixel_values"].split([1, 4, 3])]
        for task, batches in pool.calibration.items()
    }
    one = calibrate("featcal", merged, pool).model.state_dict()
    several = calibrate("featcal", merged, Pool(pool.base, pool.experts, pieces)).model.state_dict()
    assert_close_states(several, one, tolerance)


def test_uniform_token_weights_equal_the_dense_formulas_without_weights():
    pool, merged = double("clip")
    assert_matches("clip", "featcal:token_weight=1", pool, merged, token_weight=1.0)


def test_token_weights_of_float64_models_are_not_rounded_to_float32():
    pool, merged = double("clip")
    assert_matches("clip", "featcal:token_weight=0.01", pool, merged, tolerance=1e-12)


def test_token_weights_change_only_the_last_block_apart_from_keys_and_values():
    pool, merged = double("clip")
    weighted, uniform = (
        calibrate(method, merged, pool).model.state_dict()
        for method in ("featcal", "featcal:token_weight=1")
    )
    changed = {n.rpartition(".")[0] for n, t in uniform.items() if not torch.equal(t, weighted[n])}
    parts = ("layer_norm1", "layer_norm2", "self_attn.q_proj", "self_attn.out_proj")
    assert changed == {
        f"vision_model.encoder.layers.1.{part}" for part in (*parts, "mlp.fc1", "mlp.fc2")
    }


def test_only_linear_and_norm_layers_of_the_blocks_change(family):
    pool, merged = double(family)
    got, old = calibrate("featcal", merged, pool).model, merged.model.state_dict()
    changed = {n for n, t in got.state_dict().items() if not torch.equal(t, old[n])}
    expected = {
        name
        for name, _ in got.named_parameters()
        if ("layers." in name or "block." in name or "resblocks." in name)
        and "relative_attention_bias" not in name
    }
    assert changed == expected


def test_without_bias_the_biases_of_linear_layers_keep_their_merged_values():
    pool, merged = double("clip")
    got, full = (calibrate(m, merged, pool).model for m in ("featcal:bias=false", "featcal"))
    first = "vision_model.encoder.layers.0"
    for name, module in merged.model.named_modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            assert torch.equal(got.get_submodule(name).bias, module.bias), name
            assert not torch.equal(full.get_submodule(name).bias, module.bias), name
            if name.startswith(first):
                assert torch.equal(got.get_submodule(name).weight, full.get_submodule(name).weight)


def test_without_norm_the_norm_layers_keep_their_merged_values(family):
    pool, merged = double(family)
    got = calibrate("featcal:norm=false", merged, pool).model
    for name, module in merged.model.named_modules():
        if "Norm" in type(module).__name__:
            assert_equal_states(got.get_submodule(name).state_dict(), module.state_dict())
        elif isinstance(module, nn.Linear) and ("layers." in name or "block" in name):
            assert not torch.equal(got.get_submodule(name).weight, module.weight), name


def test_without_bias_a_norm_layer_is_still_a_minimiser():
    """Scale and shift are solved together, so they are written together or not at all."""
    pool, merged = double("clip")
    got, full = (calibrate(m, merged, pool).model for m in ("featcal:bias=false", "featcal"))
    name = "vision_model.encoder.layers.0.layer_norm1"
    assert_equal_states(got.get_submodule(name).state_dict(), full.get_submodule(name).state_dict())


@pytest.mark.parametrize("rho", [0.0, 1.0, 2.2])
def test_a_huge_ridge_gives_the_anchor(family, rho):
    pool, merged = double(family)
    got = calibrate(f"featcal:ridge=1e12,rho={rho}", merged, pool).model
    base = pool.base
    for name, module in merged.model.named_modules():
        if isinstance(module, nn.Linear) and ("layers." in name or "block" in name):
            anchor = rho * module.weight + (1 - rho) * base.get_submodule(name).weight
            assert torch.allclose(got.get_submodule(name).weight, anchor, atol=1e-8), name


@pytest.mark.parametrize("order", ["block", "module"])
def test_without_ridge_and_expert_inputs_equal_experts_are_recovered(order):
    pool, merged, expert = equal_experts("clip")
    method = f"featcal:ridge=1e-10,epsilon=1e-14,alpha=0,order={order}"
    got = calibrate(method, merged, pool).model
    blocks = "vision_model.encoder"
    assert_close_states(
        got.get_submodule(blocks).state_dict(), expert.get_submodule(blocks).state_dict(), 1e-4
    )


def test_without_ridge_module_order_recovers_equal_experts_also_from_their_own_inputs():
    pool, merged, expert = equal_experts("clip", exclude=("*embed*", "*pre_layrnorm*"))
    method = "featcal:ridge=1e-10,epsilon=1e-14,alpha=1,token_weight=1,order=module"
    got = calibrate(method, merged, pool).model
    blocks = "vision_model.encoder"
    assert_close_states(
        got.get_submodule(blocks).state_dict(), expert.get_submodule(blocks).state_dict(), 1e-4
    )


def equal_experts(family, exclude=()):
    """A pool of three identical experts with enough images for regular Gram matrices."""
    pool = pool_of(family, dtype=torch.float64, sizes=(40, 30), exclude=exclude)
    expert = pool.experts["ants"]
    if exclude:  # what is not merged is the base's in the experts too
        hidden = set(pool.base.state_dict()) - set(pool.base_weights())
        own = expert.state_dict()
        expert.load_state_dict({**own, **{n: pool.base.state_dict()[n] for n in hidden}})
    same = dict.fromkeys(pool.experts, expert)
    pool = Pool(pool.base, same, pool.calibration)
    merged = merge("task_arithmetic:scale=0.1", pool)
    return pool, merged, expert


def test_corrections_are_refused_with_the_way_out():
    pool, merged = double("clip")
    with pytest.raises(ValueError, match="calibrate with featcal first"):
        calibrate("featcal", Merged(merged.model, {"ants": nn.Identity()}), pool)


@pytest.mark.parametrize("field", ["ridge", "token_weight", "epsilon"])
def test_negative_hyperparameters_are_refused(field):
    pool, merged = double("clip")
    with pytest.raises(ValueError, match=f"{field} is at least 0, got -1"):
        calibrate(f"featcal:{field}=-1", merged, pool)
