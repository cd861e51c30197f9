"""FeatCal's closed forms for one layer: known answers, and no nearby point is better."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, sin

import pytest
import torch

from merging.gram import DiagonalMoments, Moments
from merging.norms import normalised
from merging.systems import Affine, LinearSystem, NormSystem

RIDGE, RHO, ALPHA, EPSILON = 0.05, 2.2, 0.25, 1e-8
# specs/featcal.md, section 4.8: float64, from an independent NumPy implementation
KNOWN_OMEGAS = (0.6219972227, 0.6308910459)
KNOWN_WEIGHT = (
    (0.8768226874, -0.0122710448, -1.0441364392),
    (0.8289975563, -0.7861653045, -0.2213877703),
)
KNOWN_BIAS = (1.1125746579, 0.6136030230)
KNOWN_SCALE = (1.0037478550, 1.0488254672, 1.0485526730, 0.9993785268)
KNOWN_SHIFT = (0.1265449508, 0.0395913361, -0.0833539680, -0.1317209261)


def table(function, *sizes):
    """A float64 tensor of ``function`` of its zero-based indices."""
    if len(sizes) == 1:
        return torch.tensor([function(i) for i in range(sizes[0])], dtype=torch.float64)
    return torch.stack(
        [table(lambda *r, i=i: function(i, *r), *sizes[1:]) for i in range(sizes[0])]
    )


def task_arithmetic(base, experts):
    return Affine(
        base.weight + 0.3 * sum(e.weight - base.weight for e in experts),
        base.bias + 0.3 * sum(e.bias - base.bias for e in experts),
    )


@dataclass
class Case:
    """One layer with two tasks; ``x`` and ``t`` are the inputs of model and target."""

    experts: list[Affine]
    anchor: Affine
    x: list[torch.Tensor]
    t: list[torch.Tensor]
    weight: torch.Tensor

    def solve(self, images=False, ridge=RIDGE):
        system = LinearSystem(epsilon=EPSILON)
        for x, t, expert in zip(self.x, self.t, self.experts, strict=True):
            moments = Moments()
            moments.add(x, t, weight=self.weight, maps=expert.weight if images else None)
            system.fold(moments, expert, images=images)
        return system.solve(self.anchor, ridge=ridge, where="a test")

    def omegas(self):
        p = self.weight / self.weight.sum()
        return [1 / float(((x * p[:, None]).T @ x).norm()) for x in self.x]


def linear_case():
    base = Affine(table(lambda o, c: sin(1 + o + 2 * c), 2, 3), table(cos, 2))
    experts = [
        Affine(
            base.weight + 0.1 * table(lambda o, c, i=i: cos(1 + i + 2 * o + c), 2, 3),
            base.bias + 0.1 * table(lambda o, i=i: sin(1 + i + o), 2),
        )
        for i in range(2)
    ]
    x = [table(lambda n, j, i=i: sin(1 + n + 2 * j + 3 * i), 6, 3) for i in range(2)]
    own = [x[i] + 0.1 * table(lambda n, j, i=i: cos(1 + 2 * n + j + i), 6, 3) for i in range(2)]
    t = [ALPHA * e + (1 - ALPHA) * s for s, e in zip(x, own, strict=True)]
    rows = torch.tensor([1, 0.01, 0.01, 1, 0.01, 0.01], dtype=torch.float64)
    anchor = task_arithmetic(base, experts).blend(base, RHO)
    return Case(experts, anchor, x, t, rows)


def norm_case():
    base = Affine(table(lambda j: 1 + 0.1 * sin(j), 4), table(lambda j: 0.1 * cos(j), 4))
    experts = [
        Affine(
            base.weight + 0.05 * table(lambda j, i=i: cos(1 + i + j), 4),
            base.bias + 0.05 * table(lambda j, i=i: sin(2 + i + j), 4),
        )
        for i in range(2)
    ]
    layer = torch.nn.LayerNorm(4, eps=1e-5)
    x = [table(lambda n, j, i=i: sin(1 + 1.7 * n + 2.3 * j + i), 5, 4) for i in range(2)]
    z = [normalised(layer, value) for value in x]
    return experts, task_arithmetic(base, experts).blend(base, RHO), z


def solve_norm(experts, anchor, z, *, shift):
    system = NormSystem(epsilon=EPSILON)
    for values, expert in zip(z, experts, strict=True):
        moments = DiagonalMoments()
        moments.add(values)
        system.fold(moments, expert)
    return system.solve(anchor, ridge=RIDGE, shift=shift)


def near(got, expected):
    return torch.allclose(got, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-8)


@pytest.mark.parametrize("images", [False, True])
def test_a_linear_layer_gives_the_known_answer(images):
    case = linear_case()
    solution = case.solve(images=images)
    assert near(torch.tensor(case.omegas(), dtype=torch.float64), KNOWN_OMEGAS)
    assert near(solution.weight, KNOWN_WEIGHT)
    assert near(solution.bias, KNOWN_BIAS)


def test_tasks_are_weighted_by_the_known_omegas():
    system, case = LinearSystem(epsilon=EPSILON), linear_case()
    for n in range(2):
        moments, before = Moments(), system.weight
        moments.add(case.x[n], case.t[n], weight=case.weight)
        system.fold(moments, case.experts[n], images=False)
        assert abs(system.weight - before - KNOWN_OMEGAS[n]) < 1e-8


def test_images_give_the_same_solution_as_targets():
    plain, images = linear_case().solve(images=False), linear_case().solve(images=True)
    assert torch.allclose(plain.weight, images.weight, rtol=0, atol=1e-13)
    assert torch.allclose(plain.bias, images.bias, rtol=0, atol=1e-13)


def test_a_layer_norm_gives_the_known_answer():
    solution = solve_norm(*norm_case(), shift=True)
    assert near(solution.weight, KNOWN_SCALE)
    assert near(solution.bias, KNOWN_SHIFT)


def test_an_rms_norm_has_the_closed_form_of_its_scale():
    experts, anchor, z = norm_case()
    experts = [Affine(e.weight, torch.zeros(4, dtype=torch.float64)) for e in experts]
    squares = [(values**2).mean(0) for values in z]
    upper = sum(s * e.weight for s, e in zip(squares, experts, strict=True))
    expected = (upper + RIDGE * anchor.weight) / (sum(squares) + RIDGE)
    solution = solve_norm(experts, anchor, z, shift=False)
    assert torch.allclose(solution.weight, expected, rtol=0, atol=1e-14)
    assert torch.equal(solution.bias, torch.zeros(4, dtype=torch.float64))


def assert_minimum(objective, point):
    """No small step, along a coordinate or at random, lowers the objective."""
    best = objective(point)
    draw = torch.Generator().manual_seed(0)
    steps = [*torch.eye(point.numel(), dtype=torch.float64).reshape(-1, *point.shape)]
    steps += [torch.randn(point.shape, generator=draw, dtype=torch.float64) for _ in range(50)]
    for step in steps:
        for size in (1e-1, -1e-1, 1e-3, -1e-3):
            assert objective(point + size * step) > best


def weighted_mean(case, squares):
    return (squares.sum(-1) * case.weight).sum() / case.weight.sum()


def test_no_nearby_weight_has_a_lower_objective():
    case = linear_case()

    def objective(weight):
        fits = [
            omega * weighted_mean(case, (x @ weight.T - t @ expert.weight.T) ** 2)
            for omega, x, t, expert in zip(case.omegas(), case.x, case.t, case.experts, strict=True)
        ]
        pull = RIDGE * ((weight - case.anchor.weight) ** 2).sum()
        return sum(fits) + pull + EPSILON * (weight**2).sum()

    assert_minimum(objective, case.solve().weight)


def test_no_nearby_bias_has_a_lower_objective_given_the_weight():
    case = linear_case()
    solution = case.solve()

    def objective(bias):
        fits = []
        for omega, x, t, expert in zip(case.omegas(), case.x, case.t, case.experts, strict=True):
            gap = x @ solution.weight.T + bias - t @ expert.weight.T - expert.bias
            fits.append(omega * weighted_mean(case, gap**2))
        return sum(fits) + RIDGE * ((bias - case.anchor.bias) ** 2).sum()

    assert_minimum(objective, solution.bias)


@pytest.mark.parametrize("shift", [True, False])
def test_no_nearby_scale_and_shift_have_a_lower_objective(shift):
    experts, anchor, z = norm_case()
    if not shift:
        experts = [Affine(e.weight, torch.zeros(4, dtype=torch.float64)) for e in experts]
        anchor = Affine(anchor.weight, torch.zeros(4, dtype=torch.float64))

    def objective(point):
        scale, offset = point[0], point[1] if shift else 0.0
        fits = [
            ((values * scale + offset - values * e.weight - e.bias) ** 2).sum(-1).mean()
            for values, e in zip(z, experts, strict=True)
        ]
        pull = ((scale - anchor.weight) ** 2).sum() + ((offset - anchor.bias) ** 2).sum()
        return sum(fits) + RIDGE * pull

    solution = solve_norm(experts, anchor, z, shift=shift)
    point = torch.stack([solution.weight, solution.bias] if shift else [solution.weight])
    assert_minimum(objective, point)


@pytest.mark.parametrize("name", ["LayerNorm", "T5LayerNorm"])
def test_the_normalised_input_uses_the_layers_own_epsilon(name):
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    layer = {"LayerNorm": torch.nn.LayerNorm, "T5LayerNorm": T5LayerNorm}[name](4, eps=0.3)
    x = table(lambda n, j: sin(1 + n + 2 * j), 5, 4).float()
    with torch.no_grad():  # scale 1 and shift 0, so the output is the normalised input
        assert torch.allclose(normalised(layer, x), layer(x), rtol=0, atol=1e-6)
