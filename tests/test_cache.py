"""Features kept by content, and the measures of a run on the toy suite that are made from them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from harness import NAMES, fresh, toy
from torch import nn

from benchmarks import measures
from benchmarks.cache import FeatureCache
from benchmarks.measures import MEASURES, Trial
from benchmarks.references import EachExpert
from merging import Merged, calibrate, merge
from merging.layouts import run


def linear(seed=0):
    model = nn.Linear(3, 2)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return model


class Counted:
    """A cache whose makers count how often they were called."""

    def __init__(self, **limits):
        self.cache, self.made = FeatureCache(**limits), []

    def get(self, model, *names):
        def make():
            self.made.append(names)
            return torch.full((5, 5), float(len(self.made)))  # 100 bytes

        return self.cache.get(model, names, make)


def test_features_are_made_once_and_then_kept():
    counted, model = Counted(), linear()
    first = counted.get(model, "a", "test")
    assert counted.get(model, "a", "test") is first
    assert len(counted.made) == 1


def test_another_model_with_the_same_weights_finds_them():
    counted = Counted()
    counted.get(linear(), "a", "test")
    counted.get(copy.deepcopy(linear()), "a", "test")
    assert len(counted.made) == 1


def test_another_model_with_other_weights_does_not():
    counted = Counted()
    counted.get(linear(0), "a", "test")
    assert counted.get(linear(1), "a", "test")[0, 0] == 2.0


def test_another_kind_of_model_with_the_same_weights_does_not():
    class Squared(nn.Linear):
        def forward(self, x):
            return super().forward(x) ** 2

    counted, other = Counted(), Squared(3, 2)
    other.load_state_dict(linear().state_dict())
    counted.get(linear(), "a", "test")
    assert counted.get(other, "a", "test")[0, 0] == 2.0


@pytest.mark.parametrize("names", [("b", "test"), ("a", "validation"), ("test", "a")])
def test_another_task_or_split_is_made_anew(names):
    counted, model = Counted(), linear()
    counted.get(model, "a", "test")
    counted.get(model, *names)
    assert counted.made == [("a", "test"), names]


def written(model):
    with torch.no_grad():
        model.weight[0, 0] += 1e-3


def replaced(model):
    model.weight = nn.Parameter(model.weight.detach() + 1e-3)


def loaded(model):
    model.load_state_dict(linear(1).state_dict())


def stepped(model):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()


@pytest.mark.parametrize("change", [written, replaced, loaded, stepped])
def test_a_model_whose_weights_changed_is_encoded_anew(change):
    counted, model = Counted(), linear()
    counted.get(model, "a", "test")
    change(model)
    assert counted.get(model, "a", "test")[0, 0] == 2.0


def test_weights_that_were_changed_back_are_found_again():
    counted, model = Counted(), linear()
    counted.get(model, "a", "test")
    loaded(model)
    counted.get(model, "a", "test")
    model.load_state_dict(linear().state_dict())
    assert counted.get(model, "a", "test")[0, 0] == 1.0


def test_weights_made_in_inference_mode_are_read_each_time():
    counted = Counted()
    with torch.inference_mode():
        model = linear()
        counted.get(model, "a", "test")
        model.weight += 1  # not counted by torch
        assert counted.get(model, "a", "test")[0, 0] == 2.0


def test_above_the_limit_what_was_used_longest_ago_goes():
    counted, model = Counted(limit_bytes=200), linear()
    for name in ("a", "b", "a", "c"):  # two fit; a was used after b
        counted.get(model, name)
    assert [n for (n,) in counted.made] == ["a", "b", "c"]
    counted.get(model, "a")
    assert len(counted.made) == 3
    counted.get(model, "b")
    assert len(counted.made) == 4


def test_features_above_the_limit_are_kept_until_the_next_ones():
    counted, model = Counted(limit_bytes=10), linear()
    counted.get(model, "a")
    counted.get(model, "a")
    assert len(counted.made) == 1
    counted.get(model, "b")
    counted.get(model, "a")
    assert len(counted.made) == 3


# ---- measures on the toy suite


@pytest.fixture(scope="module")
def plain():
    return merge("task_arithmetic", toy().pool(0, "", 0))


@pytest.fixture(scope="module")
def corrected(plain):
    return calibrate("surgery:rank=4,steps=20,rate=0.01", plain, toy().pool(8, "train", 0))


def measured(name, model, *, evaluate="test", before=None):
    trial = Trial(toy(), model, evaluate, {}, before)
    return {(task, metric, block): value for task, metric, block, value in MEASURES[name](trial)}


def through_hooks(door, task):
    """Logits on the test split by a forward pass of ``for_task``."""
    suite = toy()
    with torch.no_grad(), door.for_task(task.name) as model:
        embedded = run(model, suite._inputs(suite.pixels(task, "test"))).image_embeds
        return nn.functional.normalize(embedded, dim=-1) @ suite.head(task).T


def test_predictions_with_a_correction_are_those_of_a_corrected_forward_pass(plain, corrected):
    suite = fresh()
    for task in suite.tasks:
        uncorrected = suite.predict(plain.model, task, "test").scores
        got = suite.predict(*(corrected.model, task, "test"), corrected.corrections[task.name])
        size = suite.head(task).norm(dim=-1).max()  # the scale of logits
        assert (got.scores - through_hooks(corrected, task)).abs().max() <= 1e-6 * size
        assert (got.scores - uncorrected).abs().max() > 1e-3 * size


def test_the_drift_of_logits_is_the_mean_length_of_their_difference(corrected):
    found = measured("feature_drift", corrected)
    experts = EachExpert(toy().pool(0, "", 0))
    for task in toy().tasks:
        gap = through_hooks(corrected, task) - through_hooks(experts, task)
        expected = (gap**2).sum(-1).sqrt().mean().item()
        assert found[task.name, "output_drift_l2", ""] == pytest.approx(expected, rel=1e-4)


def test_the_experts_have_no_feature_drift():
    experts = EachExpert(toy().pool(0, "", 0))
    found = measured("feature_drift", experts)
    for task in NAMES:
        for metric in ("feature_drift_l2", "feature_drift_l1", "output_drift_l2"):
            assert found[task, metric, ""] == 0.0
    assert measured("drift", experts) == {}  # several models have no one stack of blocks


class Halve(nn.Module):
    def forward(self, feature):
        return feature / 2


def test_feature_drift_is_of_the_corrected_feature_and_block_drift_of_the_shared_model():
    model = copy.deepcopy(toy().experts()["east"])
    with torch.no_grad():
        model.visual_projection.weight.mul_(2)
    bare, mapped = (measured("feature_drift", Merged(model, c)) for c in ({}, {"east": Halve()}))
    assert bare["east", "feature_drift_relative", ""] == pytest.approx(1.0, abs=1e-5)
    assert mapped["east", "feature_drift_l2", ""] == pytest.approx(0.0, abs=1e-6)
    assert mapped["west", "feature_drift_l2", ""] == bare["west", "feature_drift_l2", ""] > 0.1
    blocks = measured("drift", Merged(model, {"east": Halve()}))
    assert blocks == measured("drift", Merged(model))
    assert blocks["east", "drift_l2", "1"] == 0.0 < blocks["west", "drift_l2", "1"]


@pytest.mark.parametrize("evaluate", ["test", "validation"])
def test_held_out_examples_are_of_the_split_that_is_scored_and_the_same_for_every_run(
    evaluate, plain, monkeypatch
):
    monkeypatch.setattr(measures, "HELD_OUT", 8)
    suite = toy()
    torch.manual_seed(1)
    (one,) = Trial(suite, plain, evaluate, {}).held_out(suite.tasks[0])
    torch.manual_seed(2)
    (two,) = Trial(fresh(), Merged(suite.base_model()), evaluate, {}).held_out(suite.tasks[0])
    assert torch.equal(one["pixel_values"], two["pixel_values"])
    whole = suite._inputs(suite.pixels(suite.tasks[0], evaluate))["pixel_values"]
    places = {p for p, image in enumerate(whole) for x in one["pixel_values"] if image.equal(x)}
    assert len(places) == len(one["pixel_values"]) == 8


def test_tsne_places_every_held_out_example_three_times_and_the_same_again(
    plain, corrected, monkeypatch
):
    monkeypatch.setattr(measures, "HELD_OUT", 12)
    found = measured("tsne", corrected, before=plain)
    assert set(found) == {
        ("north", f"tsne_{axis}", f"{who}/{number}")
        for axis in "xy" for who in ("merged", "calibrated", "expert") for number in range(12)
    }  # fmt: skip
    assert np.isfinite(list(found.values())).all()
    assert len(set(found.values())) == len(found)
    assert measured("tsne", corrected, before=plain) == found
