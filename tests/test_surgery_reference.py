"""Surgery and ProbSurgery, trained for all tasks at once, against a plain loop per task."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny import FAMILIES, pool_of
from torch import nn

from merging import Merged, Pool, calibrate, merge
from merging.calibrators.probsurgery import ProbSurgery, probsurgery_loss
from merging.calibrators.surgery import Surgery
from merging.corrections import NOISE_STEPS, Training, kaiming
from merging.features import Rows, features
from merging.seeds import generator_for

FEW = {"steps": 20, "batch": 4}


def start(name, task, shape, seed=0):
    """The first matrix as the project draws it."""
    return kaiming({task: 0}, shape, seed, name)[0]


def batches_of(name, task, rows, method, seed=0):
    draws = generator_for(seed, name, "batches", task)
    return Training(method.steps, method.batch, method.rate).indices(
        rows, min(method.batch, rows), draws
    )


class PlainSurgery(nn.Module):
    """The authors' module, as the specification describes it."""

    def __init__(self, width, rank, down):
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        with torch.no_grad():
            self.down.weight.copy_(down)
            self.up.weight.zero_()

    def forward(self, feature):
        return feature - self.up(torch.relu(self.down(feature)))


def plain_surgery(pool, merged, task, method, normalise=lambda f: f):
    """One task on its own: a module, an Adam, a loop; returns the trained module."""
    mine = normalise(features(merged.model, pool.calibration[task], ""))
    theirs = normalise(features(pool.experts[task], pool.calibration[task], ""))
    width = mine.shape[1]
    module = PlainSurgery(width, method.rank, start("surgery", task, (method.rank, width)))
    adam = torch.optim.Adam(module.parameters(), lr=method.rate)
    for rows in batches_of("surgery", task, len(mine), method):
        loss = nn.L1Loss()(module(mine[rows]), theirs[rows])
        adam.zero_grad()
        loss.backward()
        adam.step()
    return module


@pytest.mark.parametrize("steps", [1, 20])
def test_surgery_equals_one_loop_per_task(steps, pool, merged):
    method = Surgery(rank=8, steps=steps, batch=4)
    result = calibrate(method, merged, pool)
    for task in pool.experts:
        plain = plain_surgery(pool, merged, task, method)
        got = result.corrections[task]
        torch.testing.assert_close(got.down, plain.down.weight, atol=1e-6, rtol=0)
        torch.testing.assert_close(got.up, plain.up.weight, atol=1e-6, rtol=0)
        feature = features(merged.model, pool.calibration[task], "")
        torch.testing.assert_close(feature - got(feature), plain(feature), atol=1e-5, rtol=1e-5)


def test_surgery_on_the_unit_sphere_equals_its_loop(pool, merged):
    method = Surgery(rank=8, **FEW, normalise=True)
    result = calibrate(method, merged, pool)

    def unit(feature):
        return feature / feature.norm(dim=-1, keepdim=True)

    plain = plain_surgery(pool, merged, "ants", method, unit)
    feature = features(merged.model, pool.calibration["ants"], "")
    corrected = feature - result.corrections["ants"](feature)
    torch.testing.assert_close(corrected, plain(unit(feature)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 20])
def test_probsurgery_equals_one_loop_per_task(steps, pool, merged):
    method = ProbSurgery(hidden=8, steps=steps, batch=4)
    result = calibrate(method, merged, pool)
    for task in pool.experts:
        mine = features(merged.model, pool.calibration[task], "")
        theirs = features(pool.experts[task], pool.calibration[task], "")
        width = mine.shape[1]
        encoder, mean, log_variance = (
            nn.Linear(a, b, bias=False) for a, b in ((width, 8), (8, width), (8, width))
        )
        with torch.no_grad():
            encoder.weight.copy_(start("probsurgery", task, (8, width)))
            mean.weight.zero_()
            log_variance.weight.zero_()
        weights = [encoder.weight, mean.weight, log_variance.weight]
        adam = torch.optim.Adam(weights, lr=1e-3)
        draws = generator_for(0, "probsurgery", "noise", task)
        noise = torch.randn((NOISE_STEPS, 4, width), generator=draws)
        for step, rows in enumerate(batches_of("probsurgery", task, len(mine), method)):
            hidden = torch.relu(encoder(mine[rows]))
            normal = torch.distributions.Normal(mean(hidden), (log_variance(hidden) / 2).exp())
            z = normal.loc + normal.scale * noise[step]
            prior = torch.distributions.Normal(0.0, 1.0)
            divergence = torch.distributions.kl_divergence(normal, prior).sum(-1).mean()
            loss = nn.L1Loss()(mine[rows] - z, theirs[rows]) + 1e-4 * divergence
            adam.zero_grad()
            loss.backward()
            adam.step()
        got = result.corrections[task]
        torch.testing.assert_close(got.down, encoder.weight, atol=2e-6, rtol=0)
        torch.testing.assert_close(got.up, mean.weight, atol=2e-6, rtol=0)


def test_the_inference_of_probsurgery_is_its_mean(pool, merged):
    result = calibrate(ProbSurgery(hidden=8, **FEW), merged, pool)
    correction = result.corrections["bees"]
    feature = features(merged.model, pool.calibration["bees"], "")
    mean = torch.relu(feature @ correction.down.T) @ correction.up.T
    assert torch.equal(correction(feature), mean)
    assert torch.equal(correction(feature), correction(feature))
    assert sum(p.numel() for p in correction.parameters()) == 2 * 8 * feature.shape[1]


def test_the_loss_of_probsurgery_without_noise_is_error_plus_divergence():
    p = {
        "encoder": torch.tensor([[[1.0, 0.0]]]),
        "mean": torch.tensor([[[0.5], [0.0]]]),
        "log_variance": torch.tensor([[[0.0], [2.0]]]),
    }
    mine, theirs = torch.tensor([[[1.0, 3.0]]]), torch.tensor([[[0.0, 3.0]]])
    value = probsurgery_loss(p, mine, theirs, torch.zeros(1, 1, 2), kl=0.1)
    # mean (0.5, 0), log variance (0, 2): error (0.5 + 0)/2, divergence (0.25 + e² - 3)/2
    expected = 0.25 + 0.1 * 0.5 * (0.25 + torch.e**2 - 3)
    assert value.item() == pytest.approx(expected, abs=1e-6)


def test_before_any_step_the_correction_of_surgery_is_zero(pool, merged):
    down = start("surgery", "ants", (8, 24))
    assert down.abs().max() <= 24**-0.5
    assert down.std().item() == pytest.approx(24**-0.5 / 3**0.5, rel=0.15)
    still = calibrate(Surgery(rank=8, steps=1, rate=1e-30), merged, pool).corrections["ants"]
    assert still.up.abs().max() < 1e-20


@pytest.mark.parametrize("spec", ["surgery:rank=8", "probsurgery:hidden=8"])
def test_encoding_every_batch_anew_changes_nothing(spec, pool, merged):
    plain = calibrate(f"{spec},steps=12,batch=4", merged, pool)
    anew = calibrate(f"{spec},steps=12,batch=4,recompute=true", merged, pool)
    for task, correction in plain.corrections.items():
        feature = features(merged.model, pool.calibration[task], "")
        other = anew.corrections[task](feature)
        torch.testing.assert_close(other, correction(feature), atol=1e-5, rtol=1e-5)
    assert any(c.up.abs().max() > 1e-3 for c in plain.corrections.values())


def test_a_task_is_fitted_alike_whatever_other_tasks_there_are(pool, merged):
    whole = calibrate("surgery:steps=10", merged, pool)
    alone = Pool(pool.base, {"bees": pool.experts["bees"]}, {"bees": pool.calibration["bees"]})
    single = calibrate("surgery:steps=10", merged, alone)
    torch.testing.assert_close(
        single.corrections["bees"].up, whole.corrections["bees"].up, atol=1e-6, rtol=0
    )


def test_fewer_examples_than_a_batch_are_all_used_and_no_others():
    pool = pool_of("clip", sizes=(3,))
    merged = merge("task_arithmetic", pool)
    result = calibrate("surgery:steps=5", merged, pool)  # a batch of 16 is asked for
    exact = calibrate("surgery:steps=5,batch=3", merged, pool)
    assert torch.equal(result.corrections["ants"].up, exact.corrections["ants"].up)
    drawn = Training(5, 16, 1e-3).indices(3, 3, generator_for(0))
    assert [sorted(step) for step in drawn.tolist()] == [[0, 1, 2]] * 5


def test_epochs_take_every_row_once_and_follow_each_other():
    drawn = Training(7, 4, 1e-3).indices(10, 4, generator_for(1)).flatten().tolist()
    assert len(drawn) == 28
    assert sorted(drawn[:10]) == sorted(drawn[10:20]) == list(range(10))
    assert len(set(drawn[20:])) == 8


def test_the_native_stream_takes_two_batches_of_every_shuffle():
    drawn = Training(6, 4, 1e-3, fresh=2).indices(20, 4, generator_for(2))
    pairs = [set(drawn[i].tolist()) | set(drawn[i + 1].tolist()) for i in (0, 2, 4)]
    assert [len(pair) for pair in pairs] == [8, 8, 8]
    short = Training(4, 4, 1e-3, fresh=100).indices(9, 4, generator_for(3))
    assert [len(set(short[i : i + 2].flatten().tolist())) for i in (0, 2)] == [8, 8]
    protocols = [calibrate(dataclasses.replace(Surgery(**FEW), protocol=p), *tiny()).corrections
                 for p in ("matched", "native")]  # fmt: skip
    assert not torch.equal(protocols[0]["ants"].up, protocols[1]["ants"].up)


def tiny():
    pool = pool_of("clip", sizes=(5, 6))
    return merge("average", pool), pool


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_encoded_by_number_are_the_rows_of_all_features(family):
    pool = pool_of(family)
    batches = pool.calibration["ants"]
    whole = features(pool.base, batches, "")
    rows = Rows(pool.base, batches)
    assert len(rows) == len(whole)
    chosen = torch.tensor([len(whole) - 1, 0, 2, 2, len(whole) // 2, 1])
    torch.testing.assert_close(rows.encode(pool.base, chosen, ""), whole[chosen])


def test_a_correction_is_taken_off_the_feature(pool, merged):
    result = calibrate("surgery:steps=10", merged, pool)
    model, correction = result.parts("moths")
    assert model is merged.model
    plain = features(model, pool.calibration["moths"], "")
    with result.for_task("moths") as seen:
        corrected = features(seen, pool.calibration["moths"], "")
    torch.testing.assert_close(corrected, plain - correction(plain))
    assert Merged(merged.model).parts("moths") == (merged.model, None)
