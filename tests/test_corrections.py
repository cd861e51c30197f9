"""Ridge surgery against brute force, what corrections refuse, and the sections a method marks."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tiny import FAMILIES, pool_of

from merging import CALIBRATORS, Merged, Pool, calibrate, merge
from merging.calibrators.surgery import Surgery
from merging.features import features
from merging.layouts import layout_of
from merging.timing import listening, section

CORRECTIONS = ("surgery:steps=5", "probsurgery:steps=5", "ridge_surgery")


def pairs(pool, merged, task):
    """Merged and expert features in float64."""
    batches = pool.calibration[task]
    mine, theirs = features(merged.model, batches, ""), features(pool.experts[task], batches, "")
    return mine.double(), theirs.double()


def objective(weight, bias, x, y, ridge):
    penalty = ridge * (x - x.mean(0)).square().mean(0).mean()
    error = (x @ weight.T + bias - y).square().sum(1).mean()
    return error + penalty * (weight - torch.eye(len(weight), dtype=weight.dtype)).square().sum()


def test_ridge_surgery_is_the_least_squares_solution_of_the_augmented_system(pool, merged):
    result = calibrate("ridge_surgery:ridge=0.3", merged, pool)
    for task in pool.experts:
        x, y = pairs(pool, merged, task)
        n, d = x.shape
        penalty = 0.3 * (x - x.mean(0)).square().mean(0).mean()
        rows = torch.cat([x / n**0.5, penalty.sqrt() * torch.eye(d, dtype=x.dtype)])
        ones = torch.cat([torch.full((n, 1), n**-0.5), torch.zeros(d, 1)]).double()
        right = torch.cat([y / n**0.5, penalty.sqrt() * torch.eye(d, dtype=x.dtype)])
        solved = np.linalg.lstsq(torch.cat([rows, ones], 1).numpy(), right.numpy(), rcond=None)[0]
        got = result.corrections[task]
        np.testing.assert_allclose(got.weight.numpy(), solved[:d].T, atol=1e-5)
        np.testing.assert_allclose(got.bias.numpy(), solved[d], atol=1e-4)


def test_no_map_near_that_of_ridge_surgery_is_better(pool, merged):
    result = calibrate("ridge_surgery:ridge=0.3", merged, pool)
    x, y = pairs(pool, merged, "bees")
    weight, bias = result.corrections["bees"].weight.double(), result.corrections["bees"].bias
    best = objective(weight, bias.double(), x, y, 0.3)
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        near = weight + 1e-2 * torch.randn(weight.shape, generator=draw).double()
        shifted = bias.double() + 1e-2 * torch.randn(bias.shape, generator=draw).double()
        assert objective(near, bias.double(), x, y, 0.3) > best
        assert objective(weight, shifted, x, y, 0.3) > best


def test_one_example_is_mapped_to_the_experts_feature_by_a_shift():
    pool = pool_of("clip", sizes=(1,))
    merged = merge("task_arithmetic", pool)
    correction = calibrate("ridge_surgery", merged, pool).corrections["ants"]
    x, y = pairs(pool, merged, "ants")
    assert torch.equal(correction.weight, torch.eye(len(correction.weight)))
    torch.testing.assert_close(x.float() - correction(x.float()), y.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("calibrator", CORRECTIONS)
def test_a_nan_is_named_with_its_task_and_block(calibrator, pool, merged):
    stack = layout_of(merged.model).stacks[-1]
    broken = copy.deepcopy(pool.experts["bees"])
    norm = next(m for n, m in broken.get_submodule(f"{stack}.1").named_modules() if "norm" in n
                or "ln" in n)  # fmt: skip
    experts = dict(pool.experts) | {"bees": broken}
    late = Pool(pool.base, experts, pool.calibration)
    late.check(needs_data=True)
    with torch.no_grad():
        next(norm.parameters()).fill_(float("nan"))  # after the pool was looked at
    with pytest.raises(FloatingPointError, match=rf"expert, task 'bees'.*block {stack}\.1"):
        calibrate(calibrator, merged, late)


def test_a_nan_of_the_merged_model_is_named_too(pool, merged):
    broken = copy.deepcopy(merged.model)
    stack = layout_of(broken).stacks[0]
    with torch.no_grad():
        for parameter in broken.get_submodule(f"{stack}.0").parameters():
            parameter.fill_(float("inf"))
    with pytest.raises(FloatingPointError, match=rf"merged model, task 'ants'.*block {stack}\.0"):
        calibrate("surgery", Merged(broken), pool)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("surgery:rank=0", "rank is at least 1, got 0"),
        ("surgery:steps=0", "steps is at least 1, got 0"),
        ("surgery:rate=0", "rate is above 0"),
        ("probsurgery:hidden=0", "hidden is at least 1, got 0"),
        ("probsurgery:kl=-1", "kl at least 0, got 0.001 and -1.0"),
        ("ridge_surgery:ridge=0", "ridge is above 0, got 0.0"),
        ("surgery:protocol=mine", "got 'mine', known: matched, native"),
    ],
)
def test_bad_fields_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        CALIBRATORS.build(spec)


def test_a_rate_that_makes_the_loss_overflow_is_named(merged, pool):
    with pytest.raises(FloatingPointError, match=r"probsurgery: the loss is not finite.*'rate'"):
        calibrate("probsurgery:rate=1e20,steps=20", merged, pool)


def test_a_last_step_that_overflows_is_an_error(merged, pool):
    with pytest.raises(FloatingPointError, match=r"surgery: the last step overflows.*'rate'"):
        calibrate(Surgery(rate=1e38, steps=1), merged, pool)


@pytest.mark.parametrize("calibrator", CORRECTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_correction_keeps_the_type_of_the_feature(calibrator, family):
    pool = pool_of(family, dtype=torch.bfloat16)
    merged = merge("task_arithmetic", pool)
    correction = calibrate(calibrator, merged, pool).corrections["ants"]
    feature = features(merged.model, pool.calibration["ants"], "")
    assert correction(feature).dtype == feature.dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for p in correction.parameters())


@pytest.mark.parametrize("calibrator", ["featcal", *CORRECTIONS])
def test_encoding_and_fitting_are_parts_of_the_whole(calibrator, pool, merged):
    with listening() as sections, section("whole"):
        calibrate(calibrator, merged, pool)
    parts = sections.seconds
    assert set(parts) == {"encode", "fit", "whole"}
    assert 0 < parts["encode"] + parts["fit"] <= parts["whole"]


def test_sections_add_up_and_count_also_when_they_fail():
    waited = []
    with listening(lambda: waited.append(1)) as sections:
        with section("a"):
            pass
        first = sections.seconds["a"]
        with pytest.raises(ArithmeticError), section("a"):
            raise ArithmeticError
        with listening() as inner, section("b"):
            pass
    assert sections.seconds["a"] > first > 0
    assert set(inner.seconds) == {"b"}
    assert set(sections.seconds) == {"a"}
    assert len(waited) == 4
    with section("nobody listens"):
        pass
