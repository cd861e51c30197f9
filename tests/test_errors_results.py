"""Results and intermediate values that are unfit are refused, never written into a model."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tiny import hooks_on, pool_of

from merging import Pool, calibrate, merge


@dataclass(frozen=True)
class Returns:
    """A merger whose result has one bad entry."""

    changes: dict[str, torch.Tensor]
    needs_data: ClassVar[bool] = False
    draws: ClassVar[bool] = False

    def __call__(self, pool):
        return {**pool.base_weights(), **self.changes}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("0.weight", torch.full((8, 6), float("nan")), "NaN or infinite values in 0.weight"),
        ("0.weight", torch.zeros(6, 8), "0.weight with shape (6, 8), expected (8, 6)"),
        ("0.wieght", torch.zeros(8, 6), "1 unknown weights (0.wieght)"),
        ("3.seen", torch.zeros(3), "1 unknown weights (3.seen)"),
    ],
)
def test_a_merger_that_returns_something_unfit_is_refused(name, value, words):
    pool = pool_of("mlp")
    with pytest.raises(ValueError, match="merger Returns") as caught:
        merge(Returns({name: value}), pool)
    assert words in str(caught.value)


def test_a_result_that_overflows_the_models_own_type_is_refused():
    pool = pool_of("mlp", dtype=torch.float16)
    with torch.no_grad():
        for expert in pool.experts.values():
            expert[0].weight[0, 0] = 60_000  # the largest float16 is 65 504
    with pytest.raises(ValueError, match=r"infinite values in 0\.weight"):
        merge("task_arithmetic:scale=1", pool)


def test_experts_of_another_float_type_are_calibrated_or_refused_by_name():
    half = pool_of("clip", dtype=torch.bfloat16)
    experts = {task: copy.deepcopy(expert).float() for task, expert in half.experts.items()}
    pool = Pool(half.base, experts, half.calibration)
    try:
        result = calibrate("featcal", merge("average", pool), pool)
    except ValueError as error:
        assert "'ants'" in str(error)
        return
    assert {p.dtype for p in result.model.parameters()} == {torch.bfloat16}


def test_a_t5_batch_that_leaves_the_cache_on_is_refused():
    """With the cache, replayed cross-attention would reuse old keys and values."""
    pool = pool_of("t5")
    for batches in pool.calibration.values():
        for batch in batches:
            del batch["use_cache"]
    merged = merge("average", pool)
    with pytest.raises(RuntimeError, match=r"EncDecAttention\.k.* of block 0 were not run"):
        calibrate("featcal", merged, pool)
    assert hooks_on(merged.model, pool.base, *pool.experts.values()) == []


def test_weights_that_a_merger_leaves_out_keep_the_bases_values():
    pool = pool_of("mlp")
    got = merge(Returns({"0.weight": torch.ones(8, 6)}), pool).model.state_dict()
    base = pool.base.state_dict()
    assert torch.equal(got["0.weight"], torch.ones(8, 6))
    assert all(torch.equal(got[n], t) for n, t in base.items() if n != "0.weight")


def test_inputs_that_overflow_are_refused_with_block_module_and_task():
    pool = pool_of("clip")
    merged = merge("task_arithmetic", pool)
    with torch.no_grad():
        merged.model.vision_model.encoder.layers[0].layer_norm1.weight[0] = 3e38
    with pytest.raises(FloatingPointError) as caught:
        calibrate("featcal", merged, pool)
    words = ("vision_model.encoder.layers.0", "q_proj", "task 'ants'", "not finite")
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert hooks_on(merged.model, pool.base, *pool.experts.values()) == []


def test_a_singular_system_without_ridge_is_refused_with_block_and_module():
    pool = pool_of("clip", sizes=(1, 1))
    with pytest.raises(torch.linalg.LinAlgError) as caught:
        calibrate("featcal:ridge=0,epsilon=0", merge("average", pool), pool)
    words = ("block vision_model.encoder.layers.0", "not positive definite", "'ridge'")
    assert all(word in str(caught.value) for word in words), str(caught.value)
