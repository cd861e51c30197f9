"""Streamed moments and the ridge solve."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from merging.gram import DiagonalMoments, Moments, ridge_solve


def rows(count=60, width=7, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=draw, dtype=torch.float64).to(dtype)


def streamed(x, t, sizes, weight=None, maps=None):
    moments, start = Moments(), 0
    for size in sizes:
        part = slice(start, start + size)
        w = None if weight is None else weight[part]
        moments.add(x[part], t[part], weight=w, maps=maps)
        start += size
    return moments


@pytest.mark.parametrize("sizes", [(60,), (20, 20, 20), (1, 58, 1), (1,) * 60])
@pytest.mark.parametrize("weighted", [False, True])
def test_streamed_moments_are_those_of_all_rows_at_once(sizes, weighted):
    x, t = rows(), rows(seed=1)
    weight = rows(60, 1, seed=2)[:, 0].abs() if weighted else None
    p = torch.ones(60, dtype=torch.float64) if weight is None else weight
    p = p / p.sum()
    moments = streamed(x, t, sizes, weight)
    expected = {
        "mean_x": p @ x,
        "mean_t": p @ t,
        "gram": (x * p[:, None]).T @ x,
        "cross": (x * p[:, None]).T @ t,
    }
    for name, value in expected.items():
        assert torch.allclose(getattr(moments, name), value, rtol=0, atol=1e-13), name


@pytest.mark.parametrize("width", [1, 3, 255, 256, 257, 301])
@pytest.mark.parametrize("weighted", [False, True])
def test_gram_matrices_of_any_width_are_exact_and_symmetric(width, weighted):
    x = rows(40, width)
    weight = rows(40, 1, seed=2)[:, 0].abs() if weighted else torch.ones(40, dtype=torch.float64)
    p = weight / weight.sum()
    gram = streamed(x, x, (25, 15), weight if weighted else None).gram
    assert torch.allclose(gram, (x * p[:, None]).T @ x, rtol=0, atol=1e-13)
    assert torch.allclose(gram, gram.T, rtol=0, atol=1e-15)


@pytest.mark.parametrize("weighted", [False, True])
def test_maps_accumulate_images_of_the_target(weighted):
    x, t, maps = rows(), rows(seed=1), rows(3, 7, seed=3)
    weight = rows(60, 1, seed=2)[:, 0].abs() if weighted else None
    plain, images = (streamed(x, t, (30, 30), weight, m) for m in (None, maps))
    assert images.cross.shape == (7, 3)
    assert torch.allclose(images.cross, plain.cross @ maps.T, rtol=0, atol=1e-13)
    assert torch.equal(images.mean_t, plain.mean_t)
    assert torch.equal(images.gram, plain.gram)


def test_leading_dimensions_are_flattened():
    x, t = rows(), rows(seed=1)
    weight = rows(60, 1, seed=2)[:, 0].abs()
    flat, deep = Moments(), Moments()
    flat.add(x, t, weight=weight)
    deep.add(x.reshape(3, 20, 7), t.reshape(3, 20, 7), weight=weight.reshape(3, 20))
    assert torch.equal(flat.gram, deep.gram)
    assert torch.equal(flat.cross, deep.cross)


def test_a_scale_of_all_weights_does_not_matter():
    x, t = rows(), rows(seed=1)
    weight = rows(60, 1, seed=2)[:, 0].abs()
    one, two = (streamed(x, t, (60,), factor * weight) for factor in (1, 8))
    assert torch.allclose(one.gram, two.gram, rtol=1e-14)


def test_rows_of_weight_zero_are_not_seen():
    x, t = rows(), rows(seed=1)
    weight = torch.ones(60, dtype=torch.float64)
    weight[40:] = 0
    assert torch.allclose(
        streamed(x, t, (60,), weight).gram, streamed(x[:40], t[:40], (40,)).gram, atol=1e-14
    )


def test_adding_rows_changes_neither_them_nor_the_weights():
    x, t, weight = rows(), rows(seed=1), rows(60, 1, seed=2)[:, 0].abs()
    before = [value.clone() for value in (x, t, weight)]
    streamed(x, t, (1,) * 60, weight)
    assert all(torch.equal(*pair) for pair in zip((x, t, weight), before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_are_kept_in_float32_and_means_given_in_float64(dtype):
    moments = streamed(rows(dtype=dtype), rows(seed=1, dtype=dtype), (30, 30))
    assert {value.dtype for value in moments._sums.values()} == {torch.float32}
    x = rows(dtype=dtype).double()
    assert moments.gram.dtype == torch.float64
    assert torch.allclose(moments.gram, x.T @ x / 60, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_diagonal_moments_are_those_of_all_rows_at_once(weighted):
    z = rows()
    weight = rows(60, 1, seed=2)[:, 0].abs() if weighted else None
    p = torch.ones(60, dtype=torch.float64) if weight is None else weight
    p = p / p.sum()
    moments = DiagonalMoments()
    for part in (slice(0, 1), slice(1, 30), slice(30, 60)):
        moments.add(z[part], weight=None if weight is None else weight[part])
    assert torch.allclose(moments.mean, p @ z, rtol=0, atol=1e-14)
    assert torch.allclose(moments.square, p @ z**2, rtol=0, atol=1e-14)


def system_of(condition, width=30, seed=0):
    """A symmetric positive definite matrix with eigenvalues from 1 down to 1/condition."""
    random = np.random.default_rng(seed)
    basis = np.linalg.qr(random.standard_normal((width, width)))[0]
    return (basis * np.geomspace(1, 1 / condition, width)) @ basis.T, random.standard_normal(
        (width, 4)
    )


@pytest.mark.parametrize("condition", [1, 1e3, 1e6, 1e10])
def test_the_ridge_solve_equals_numpys_for_any_condition_number(condition):
    system, right = system_of(condition)
    got = ridge_solve(torch.from_numpy(system), torch.from_numpy(right), "a test").numpy()
    expected = np.linalg.solve(system, right)
    assert np.abs(got - expected).max() <= 1e-14 * condition * np.abs(expected).max()
    assert np.abs(system @ got - right).max() <= 1e-13 * np.abs(got).max()


def test_float32_systems_are_solved_in_float64():
    system, right = (torch.from_numpy(part).float() for part in system_of(1e5))
    got = ridge_solve(system, right, "a test")
    assert got.dtype == torch.float64
    assert np.allclose(got, np.linalg.solve(system.double(), right.double()), rtol=1e-9)


@pytest.mark.parametrize(
    "system",
    [-np.eye(3), np.diag([1.0, 1.0, -1e-6]), np.zeros((3, 3)), np.full((3, 3), np.nan)],
    ids=["negative", "indefinite", "zero", "nan"],
)
def test_a_system_that_is_not_positive_definite_is_refused(system):
    with pytest.raises(torch.linalg.LinAlgError, match=r"block 3, fc1: the 3-dim.* 'ridge'"):
        ridge_solve(torch.from_numpy(system), torch.ones(3, 1), "block 3, fc1")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_moments_that_are_not_finite_are_refused_with_their_place(value):
    linear, diagonal = Moments(), DiagonalMoments()
    bad = rows()
    bad[3, 2] = value
    linear.add(bad, rows())
    diagonal.add(bad)
    for moments in (linear, diagonal):
        with pytest.raises(FloatingPointError, match=r"block 3, fc1, task 'ants'.*not finite"):
            moments.check_finite("block 3, fc1, task 'ants'")


def test_finite_moments_pass():
    moments = Moments()
    moments.add(rows(), rows())
    moments.check_finite("a test")
