"""Averaging, Task Arithmetic and TIES against their formulas written out densely."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tiny import pool_of
from vectors import bag_pool, dense_ties, keep_largest, merged_row

from merging import merge


def random_rows(tasks=4, width=40, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(tasks, width, generator=draw, dtype=torch.float64)


# small integers: many equal magnitudes and zero sums, and sums are exact in any order
rows_of_integers = st.integers(1, 4).flatmap(
    lambda tasks: st.integers(4, 9).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(-3, 3), min_size=width, max_size=width),
            min_size=tasks,
            max_size=tasks,
        ).map(lambda rows: torch.tensor(rows, dtype=torch.float64))
    )
)
densities = st.sampled_from([0.05, 0.2, 0.25, 0.5, 0.75, 0.9, 1.0])
combines = st.sampled_from(["sum", "mean"])


def test_average_is_the_mean_of_the_experts():
    pool = pool_of("clip", dtype=torch.float64)
    got = merge("average", pool).model.state_dict()
    for name, parameter in pool.base.named_parameters():
        stacked = torch.stack([dict(e.named_parameters())[name] for e in pool.experts.values()])
        assert torch.allclose(got[name], stacked.mean(0), atol=1e-14), parameter.shape


@pytest.mark.parametrize("scale", [-0.5, 0.0, 0.3, 1.0])
def test_task_arithmetic_is_base_plus_scaled_sum_of_task_vectors(scale):
    pool = pool_of("t5", dtype=torch.float64)
    got = merge(f"task_arithmetic:scale={scale}", pool).model.state_dict()
    for name, base in pool.base.named_parameters():
        stacked = torch.stack([dict(e.named_parameters())[name] for e in pool.experts.values()])
        assert torch.allclose(got[name], base + scale * (stacked - base).sum(0), atol=1e-14)


def test_task_arithmetic_defaults_to_a_scale_of_three_tenths():
    rows = torch.tensor([[1.0, 2.0, 3.0], [1.0, -2.0, 5.0]], dtype=torch.float64)
    base = torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64)
    expected = torch.tensor([10.6, 20.0, 32.4], dtype=torch.float64)
    assert torch.allclose(merged_row("task_arithmetic", bag_pool(rows, base)), expected)


def test_float_buffers_are_merged_like_parameters():
    pool = pool_of("mlp")
    got = merge("average", pool).model.state_dict()["1.running_mean"]
    expected = torch.stack([e.state_dict()["1.running_mean"] for e in pool.experts.values()])
    assert torch.allclose(got, expected.mean(0), atol=1e-6)


@pytest.mark.parametrize("trim", ["global", "tensor"])
@pytest.mark.parametrize("combine", ["sum", "mean"])
@pytest.mark.parametrize("density", [0.01, 0.2, 0.5, 0.99, 1.0])
def test_ties_equals_the_dense_formula(density, combine, trim):
    rows, base = random_rows(), random_rows(1)[0]
    pool = bag_pool(rows, base, split=13)
    got = merged_row(f"ties:density={density},combine={combine},trim={trim},scale=0.7", pool)
    cuts = (13, 27) if trim == "tensor" else None
    # the pool's task vectors carry the rounding of (base + row) - base
    rounded = (base + rows) - base
    assert torch.allclose(got, base + 0.7 * dense_ties(rounded, density, combine, cuts), atol=1e-12)


@given(rows_of_integers, densities, combines)
@example(torch.tensor([[1.0, -1, 2, 0], [-1.0, 1, 2, 0]], dtype=torch.float64), 1.0, "sum")
def test_ties_equals_the_dense_formula_on_equal_magnitudes_and_zero_sums(rows, density, combine):
    got = merged_row(f"ties:density={density},combine={combine},scale=1", bag_pool(rows))
    assert torch.equal(got, dense_ties(rows, density, combine))


@given(rows_of_integers, densities, combines)
def test_ties_trimmed_per_tensor_equals_the_dense_formula(rows, density, combine):
    got = merged_row(
        f"ties:density={density},combine={combine},scale=1,trim=tensor", bag_pool(rows)
    )
    assert torch.equal(got, dense_ties(rows, density, combine, (2, rows.shape[1] - 2)))


@given(rows_of_integers, densities, combines, st.sampled_from([0.25, 2.0, 8.0]))
def test_ties_scales_with_the_task_vectors(rows, density, combine, factor):
    method = f"ties:density={density},combine={combine},scale=1"
    got = merged_row(method, bag_pool(factor * rows))
    assert torch.equal(got, factor * merged_row(method, bag_pool(rows)))


@given(rows_of_integers, densities, combines)
def test_ties_flips_sign_with_the_task_vectors_if_no_sum_is_zero(rows, density, combine):
    kept = torch.stack([keep_largest(row, density) for row in rows])
    assume(not ((kept.sum(0) == 0) & (kept != 0).any(0)).any())
    method = f"ties:density={density},combine={combine},scale=1"
    assert torch.equal(merged_row(method, bag_pool(-rows)), -merged_row(method, bag_pool(rows)))


@given(rows_of_integers, densities, combines, st.randoms(use_true_random=False))
def test_ties_does_not_depend_on_which_task_has_which_vector(rows, density, combine, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    method = f"ties:density={density},combine={combine},scale=1"
    assert torch.equal(
        merged_row(method, bag_pool(rows[order])), merged_row(method, bag_pool(rows))
    )


def test_ties_keeps_one_entry_more_than_the_share_of_density():
    row = torch.tensor([[1.0, -2, 3, -4, 5, -6, 7, -8, 9, -10]], dtype=torch.float64)
    got = merged_row("ties:density=0.2,scale=1", bag_pool(row))
    assert got.tolist() == [0, 0, 0, 0, 0, 0, 0, -8, 9, -10]


def test_ties_keeps_all_entries_equal_to_the_threshold():
    row = torch.tensor([[1.0, 2, -2, 2, 3]], dtype=torch.float64)
    assert merged_row("ties:density=0.1,scale=1", bag_pool(row)).tolist() == [0, 0, 0, 0, 3]
    assert merged_row("ties:density=0.2,scale=1", bag_pool(row)).tolist() == [0, 2, -2, 2, 3]


def test_ties_at_density_one_keeps_everything():
    row = random_rows(1)
    assert torch.equal(merged_row("ties:density=1,scale=1", bag_pool(row)), row[0])


def test_ties_gives_zero_sums_the_sign_of_the_majority():
    # columns 0 and 1 sum to zero; the others elect two times plus, once minus
    rows = torch.tensor([[1.0, -2, 3, 4, -5], [-1.0, 2, 3, 4, -5]], dtype=torch.float64)
    got = merged_row("ties:density=1,scale=1", bag_pool(rows))
    assert got.tolist() == [1, 2, 6, 8, -10]
    flipped = merged_row("ties:density=1,scale=1", bag_pool(-rows))
    assert flipped.tolist() == [-1, -2, -6, -8, 10]


def test_ties_mean_divides_by_the_entries_that_agree():
    rows = torch.tensor([[1.0, 6, 1], [3.0, -2, 1], [-1.0, 2, 1]], dtype=torch.float64)
    got = merged_row("ties:density=1,scale=1,combine=mean", bag_pool(rows))
    assert got.tolist() == [2, 4, 1]
    got = merged_row("ties:density=1,scale=1,combine=sum", bag_pool(rows))
    assert got.tolist() == [4, 8, 3]


def test_ties_of_one_expert_at_full_density_and_scale_is_the_expert():
    pool = pool_of("clip", tasks=("ants",))
    got = merge("ties:density=1,scale=1", pool).model.state_dict()
    expert = pool.experts["ants"].state_dict()
    assert all(torch.allclose(got[n], t, atol=1e-6) for n, t in expert.items())
