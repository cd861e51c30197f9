"""Merged: one set of weights, per task a correction of the feature."""

from __future__ import annotations

import pytest
import torch
from reference import forward
from tiny import FEATURE, WIDTH, hooks_on
from torch import nn

from merging import Merged


class Half(nn.Module):
    """f ↦ f/2 + 1, so that the corrected feature is f/2 - 1."""

    def forward(self, feature):
        return feature / 2 + 1


def feature_of(family, model, batch):
    """The feature, read off the model's outputs and not off a hook."""
    out = forward(model, batch)
    if family == "clip":
        return out.image_embeds
    if family == "open_clip":
        return out
    return out.logits  # a linear map of the feature


def expected(family, model, batch, plain):
    """What the outputs must be with the correction."""
    if family != "t5":
        return plain / 2 - 1
    ones = torch.ones(*plain.shape[:-1], WIDTH)
    scale = WIDTH**-0.5  # T5 scales the feature in front of a tied head
    return plain / 2 - model.lm_head(ones * scale)


def test_a_correction_is_subtracted_from_the_feature(family, pool, merged):
    corrected = Merged(merged.model, {"ants": Half()})
    batch = pool.calibration["ants"][0]
    plain = feature_of(family, merged.model, batch)
    with corrected.for_task("ants") as model, torch.no_grad():
        got = feature_of(family, model, batch)
    with torch.no_grad():
        wanted = expected(family, merged.model, batch, plain)
    assert not torch.allclose(got, plain, atol=0.1)
    assert torch.allclose(got, wanted, atol=1e-4)


def test_a_task_without_correction_sees_the_shared_model(family, pool, merged):
    corrected = Merged(merged.model, {"ants": Half()})
    batch = pool.calibration["bees"][0]
    plain = feature_of(family, merged.model, batch)
    with corrected.for_task("bees") as model:
        assert model is merged.model
        assert torch.equal(feature_of(family, model, batch), plain)


def test_the_correction_is_gone_afterwards_even_after_an_exception(family, pool, merged):
    corrected = Merged(merged.model, {"ants": Half()})
    batch = pool.calibration["ants"][0]
    plain = feature_of(family, merged.model, batch)
    with pytest.raises(ArithmeticError), corrected.for_task("ants"):
        assert len(hooks_on(merged.model)) == 1
        raise ArithmeticError
    assert hooks_on(merged.model) == []
    assert torch.equal(feature_of(family, merged.model, batch), plain)


def test_corrections_of_tasks_do_not_mix(family, pool, merged):
    corrected = Merged(merged.model, {"ants": Half(), "bees": nn.Identity()})
    batch = pool.calibration["ants"][0]
    with corrected.for_task("bees") as model:
        assert torch.count_nonzero(feature_of(family, model, batch)) == 0
    with corrected.for_task("ants") as model:
        assert torch.count_nonzero(feature_of(family, model, batch)) > 0


def test_a_copy_shares_no_tensor(pool, merged):
    first = Merged(merged.model, {"ants": nn.Linear(FEATURE, FEATURE)})
    second = first.copy()
    mine, theirs = (
        {p.data_ptr() for m in (x.model, *x.corrections.values()) for p in m.parameters()}
        for x in (first, second)
    )
    assert len(mine) == len(theirs)
    assert not mine & theirs
    assert second.corrections.keys() == first.corrections.keys()


def test_the_correction_reaches_generation():
    from tiny import pool_of

    pool = pool_of("t5")
    corrected = Merged(pool.base, {"ants": nn.Identity()})
    ids = pool.calibration["ants"][0]["input_ids"]
    with corrected.for_task("ants") as model, torch.no_grad():
        tokens = model.generate(input_ids=ids, max_new_tokens=4, do_sample=False)
    # a feature of zero has equal logits everywhere, and the first token wins
    assert torch.count_nonzero(tokens) == 0
