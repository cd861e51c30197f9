"""DARE: what is dropped, what it depends on, and its limits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import assert_close_states, assert_equal_states, pool_of
from vectors import bag_pool, dense_ties, merged_row

from merging import Pool, merge


def ones(tasks=1, width=20_000):
    return torch.ones(tasks, width, dtype=torch.float64)


def dropped(pool, drop=0.5):
    """Which entries of an all-ones task vector are dropped."""
    return merged_row(f"dare:drop={drop},scale=1", pool) == 0


@given(st.floats(0, 0.95), st.integers(0, 2**31))
def test_every_entry_is_dropped_or_rescaled(drop, seed):
    row = torch.linspace(-2, 2, 50, dtype=torch.float64)
    got = merged_row(f"dare:drop={drop},scale=1", bag_pool(row[None], seed=seed))
    kept = got != 0
    assert torch.allclose(got[kept], row[kept] / (1 - drop), rtol=1e-12)


@pytest.mark.parametrize("drop", [0.1, 0.5, 0.9])
def test_the_share_of_dropped_entries_is_drop(drop):
    # five standard deviations of a share of 20 000 entries
    margin = 5 * (drop * (1 - drop) / 20_000) ** 0.5
    assert abs(float(dropped(bag_pool(ones()), drop).double().mean()) - drop) < margin


@pytest.mark.parametrize("drop", [0.1, 0.5, 0.9])
def test_the_mean_of_the_task_vector_is_preserved(drop):
    got = merged_row(f"dare:drop={drop},scale=1", bag_pool(ones()))
    margin = 5 * (drop / (1 - drop) / 20_000) ** 0.5
    assert abs(float(got.mean()) - 1) < margin


def test_nothing_dropped_is_task_arithmetic():
    pool = pool_of("clip")
    got = merge("dare:drop=0,scale=0.3", pool).model.state_dict()
    assert_equal_states(got, merge("task_arithmetic:scale=0.3", pool).model.state_dict())


@pytest.mark.parametrize("combine", ["sum", "mean"])
@pytest.mark.parametrize("density", [0.2, 1.0])
def test_nothing_dropped_then_ties_is_ties(density, combine):
    pool = pool_of("clip")
    fields = f"density={density},combine={combine},scale=0.3"
    got = merge(f"dare:drop=0,then=ties,{fields}", pool).model.state_dict()
    assert_equal_states(got, merge(f"ties:{fields}", pool).model.state_dict())


def test_ties_after_dropping_sees_the_thinned_vectors():
    rows = torch.randn(3, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alone = [bag_pool(rows, seed=5).experts._experts]
    thinned = torch.stack(
        [
            merged_row("dare:drop=0.5,scale=1", Pool(bag_pool(rows).base, {t: alone[0][t]}, seed=5))
            for t in sorted(alone[0])
        ]
    )
    got = merged_row("dare:drop=0.5,then=ties,density=0.4,scale=1", bag_pool(rows, seed=5))
    assert torch.allclose(got, dense_ties(thinned, 0.4, "sum"), atol=1e-12)


def test_a_draw_does_not_depend_on_the_other_experts():
    rows = 10.0 ** torch.arange(3, dtype=torch.float64)[:, None] * ones(3, 200)
    pool = bag_pool(rows, seed=3)
    together = merged_row("dare:drop=0.5,scale=0.5", pool)
    alone = sum(
        merged_row("dare:drop=0.5,scale=0.5", Pool(pool.base, {task: expert}, seed=3))
        for task, expert in pool.experts.items()
    )
    assert torch.equal(together, alone)


def test_a_draw_does_not_depend_on_the_other_tensors():
    whole = bag_pool(ones(1, 200), seed=3)
    part = Pool(whole.base, whole.experts, seed=3, exclude=("left",))
    state, alone = (merge("dare", p).model.state_dict()["right"] for p in (whole, part))
    assert torch.equal(state, alone)


def test_a_draw_does_not_depend_on_the_number_of_threads():
    first = dropped(bag_pool(ones(1, 100_000)))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(dropped(bag_pool(ones(1, 100_000))), first)
    finally:
        torch.set_num_threads(threads)


def test_tasks_and_tensors_have_independent_draws():
    pool = bag_pool(ones(2, 4000), split=2000, seed=1)
    one, two = (dropped(Pool(pool.base, {t: pool.experts[t]}, seed=1)) for t in pool.experts)
    for first, second in ((one, two), (one[:2000], one[2000:])):
        together = float((first & second).double().mean())
        assert abs(together - 0.25) < 5 * (0.25 * 0.75 / len(first)) ** 0.5


def test_seeds_have_independent_draws():
    first, second = (dropped(bag_pool(ones(), seed=seed)) for seed in (0, 1))
    assert abs(float((first & second).double().mean()) - 0.25) < 0.02


def test_thinned_vectors_average_to_task_arithmetic_over_seeds():
    expected = merge("task_arithmetic:scale=1", pool_of("mlp")).model.state_dict()
    draws = [merge("dare:drop=0.5,scale=1", pool_of("mlp", seed=s)).model for s in range(60)]
    mean = {
        name: torch.stack([d.state_dict()[name].double() for d in draws]).mean(0)
        for name in expected
    }
    assert_close_states(mean, expected, 0.15)
