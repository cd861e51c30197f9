"""What every registered calibrator keeps to, on every family of models."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from tiny import (
    FAMILIES,
    LazyExperts,
    assert_close_states,
    assert_equal_states,
    hooks_on,
    pool_of,
    state_of,
)

from merging import CALIBRATORS, MERGERS, Merged, Pool, calibrate, merge
from merging.layouts import layout_of, run


def quick(name, steps=60):
    """The calibrator with its defaults, but with few steps if it takes steps."""
    fields = {f.name for f in dataclasses.fields(CALIBRATORS[name])}
    return f"{name}:steps={steps}" if "steps" in fields else name


READERS = [quick(name, 300) for name, cls in sorted(CALIBRATORS.items()) if cls.needs_data]
every_calibrator = pytest.mark.parametrize("calibrator", [quick(n) for n in sorted(CALIBRATORS)])


def features(model, batches):
    """The outputs of the feature module over all batches, flattened to rows."""
    kept = []
    module = model.get_submodule(layout_of(model).feature)
    handle = module.register_forward_hook(lambda _m, _i, out: kept.append(out.flatten(0, -2)))
    with torch.no_grad():
        for batch in batches:
            run(model, batch)
    handle.remove()
    return torch.cat(kept)


def drift(merged, pool, task):
    """Mean distance of the merged model's feature from the expert's, on the calibration set."""
    batches = pool.calibration[task]
    with merged.for_task(task) as model:
        mine = features(model, batches)
    return float((mine - features(pool.experts[task], batches)).norm(dim=-1).mean())


def whole(merged):
    """The shared weights and, by task, those of the corrections, under one set of names."""
    state = dict(merged.model.state_dict())
    for task in sorted(merged.corrections):
        for name, tensor in merged.corrections[task].state_dict().items():
            state[f"correction of {task}: {name}"] = tensor
    return state


@every_calibrator
def test_neither_the_merged_model_nor_the_pool_is_touched(calibrator, pool, merged):
    models = [merged.model, pool.base, *pool.experts.values()]
    before, calibration = state_of(*models), copy.deepcopy(pool.calibration)
    calibrate(calibrator, merged, pool)
    for state, expected in zip(state_of(*models), before, strict=True):
        assert_equal_states(state, expected)
    assert merged.corrections == {}
    for task, batches in calibration.items():
        for batch, expected in zip(pool.calibration[task], batches, strict=True):
            assert batch.keys() == expected.keys()
            assert all(torch.equal(batch[k], v) for k, v in expected.items() if torch.is_tensor(v))


@every_calibrator
def test_no_hook_is_left(calibrator, pool, merged):
    result = calibrate(calibrator, merged, pool)
    assert hooks_on(result.model, merged.model, pool.base, *pool.experts.values()) == []


@every_calibrator
def test_the_result_is_deterministic(calibrator, pool, merged):
    before = torch.get_rng_state()
    first = calibrate(calibrator, merged, pool)
    second = calibrate(calibrator, merged, pool)
    assert_equal_states(whole(second), whole(first))
    assert torch.equal(torch.get_rng_state(), before)


@every_calibrator
def test_the_order_of_tasks_does_not_matter(calibrator, pool, merged):
    other = Pool(
        pool.base,
        dict(reversed(list(pool.experts._experts.items()))),
        dict(reversed(list(pool.calibration.items()))),
    )
    first, second = (calibrate(calibrator, merged, p) for p in (pool, other))
    assert_equal_states(whole(second), whole(first))


@pytest.mark.parametrize("calibrator", [quick(name, 300) for name in sorted(CALIBRATORS)])
def test_merged_base_and_experts_alike_is_a_fixed_point(calibrator, family):
    pool = pool_of(family, size=0.0)
    result = calibrate(calibrator, Merged(copy.deepcopy(pool.base)), pool)
    assert_close_states(result.model.state_dict(), pool.base.state_dict(), 2e-5)
    noise = 0.15 if calibrator.startswith("prob") else 1e-4  # the one that is trained with noise
    for task, batches in pool.calibration.items():
        size = features(pool.base, batches).norm(dim=-1).mean()
        assert drift(result, pool, task) <= noise * size


@every_calibrator
def test_a_seed_matters_exactly_if_the_calibrator_says_so(calibrator, family):
    first, second = (
        calibrate(calibrator, merge("task_arithmetic", pool), pool)
        for pool in (pool_of(family, seed=0), pool_of(family, seed=1))
    )
    alike = all(torch.equal(a, b) for a, b in zip(whole(first).values(), whole(second).values(),
                                                  strict=True))  # fmt: skip
    assert alike != CALIBRATORS.build(calibrator).draws


@every_calibrator
def test_names_types_and_ties_are_kept(calibrator, pool, merged):
    result = calibrate(calibrator, merged, pool).model
    got, expected = result.state_dict(), merged.model.state_dict()
    assert list(got) == list(expected)
    assert {n: (t.shape, t.dtype) for n, t in got.items()} == {
        n: (t.shape, t.dtype) for n, t in expected.items()
    }
    assert [n for n, _ in result.named_parameters()] == [
        n for n, _ in merged.model.named_parameters()
    ]


@every_calibrator
def test_the_result_shares_no_changed_tensor_with_anything_else(calibrator, pool, merged):
    result = calibrate(calibrator, merged, pool)
    old = whole(merged)
    theirs = {
        tensor.data_ptr()
        for model in (merged.model, pool.base, *pool.experts.values())
        for tensor in model.state_dict().values()
    }
    changed = [t for n, t in whole(result).items() if n not in old or not torch.equal(t, old[n])]
    assert not theirs & {tensor.data_ptr() for tensor in changed}
    again = {name: tensor.clone() for name, tensor in whole(result).items()}
    if result.corrections:
        with pytest.raises(ValueError, match="already has per-task corrections"):
            calibrate(calibrator, result, pool)
    else:
        calibrate(calibrator, result, pool)
    assert_equal_states(whole(result), again)


@every_calibrator
def test_lazy_experts_are_never_all_held_at_once(calibrator, pool, merged):
    lazy = LazyExperts(pool.experts)
    result = calibrate(calibrator, merged, Pool(pool.base, lazy, pool.calibration))
    assert lazy.peak <= 2 < len(lazy)
    expected = calibrate(calibrator, merged, pool)
    assert_equal_states(whole(result), whole(expected))


@every_calibrator
def test_half_precision_is_kept(calibrator, family):
    pool = pool_of(family, dtype=torch.bfloat16)
    result = calibrate(calibrator, merge("task_arithmetic", pool), pool)
    for name, tensor in pool.base.state_dict().items():
        assert result.model.state_dict()[name].dtype == tensor.dtype
        assert torch.isfinite(result.model.state_dict()[name]).all()


@pytest.mark.parametrize("calibrator", READERS)
def test_feature_drift_on_the_calibration_set_does_not_rise(calibrator, pool, merged):
    assert_less_drift(calibrator, merged, pool)


@pytest.mark.parametrize("calibrator", READERS)
@pytest.mark.parametrize("merger", sorted(MERGERS))
def test_feature_drift_does_not_rise_whatever_the_merger(calibrator, merger):
    pool = pool_of("clip")
    assert_less_drift(calibrator, merge(merger, pool), pool)


def assert_less_drift(calibrator, merged, pool):
    """Summed over tasks."""
    result = calibrate(calibrator, merged, pool)
    before = sum(drift(merged, pool, task) for task in pool.experts)
    after = sum(drift(result, pool, task) for task in pool.experts)
    assert after < before


def test_none_gives_a_copy_that_can_be_edited(pool, merged):
    before = state_of(merged.model)[0]
    result = calibrate("none", merged, pool)
    assert_equal_states(result.model.state_dict(), before)
    with torch.no_grad():
        for parameter in result.model.parameters():
            parameter.zero_()
    assert_equal_states(merged.model.state_dict(), before)


def test_none_needs_no_calibration_batches(pool, merged):
    calibrate("none", merged, Pool(pool.base, pool.experts))


def test_every_family_has_a_pool_with_batches():
    assert all(len(pool_of(name).calibration["ants"]) == 2 for name in FAMILIES)
