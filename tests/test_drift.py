"""Feature drift: its terms on vectors, and block by block on tiny models."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from reference import forward
from tiny import batches, pool_of

from benchmarks.drift import drift_by_block, feature_terms, terms
from merging import Pool
from merging.layouts import layout_of

LENGTHS = ("drift_l2", "drift_relative", "drift_upstream_l2", "drift_local_l2")


# ---- terms


def vectors(rows=50, width=16):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(rows, width, generator=draw) for _ in range(3)]


def test_terms_of_hand_made_vectors():
    merged, crossed, expert = torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 0.0]]), torch.zeros(2)
    got = {name: value.item() for name, value in terms(merged, crossed, expert[None]).items()}
    assert got["drift_l2"] == 5.0
    assert got["drift_upstream_l2"] == 4.0  # (0, 4)
    assert got["drift_local_l2"] == 3.0  # (3, 0)
    assert got["drift_upstream"] == pytest.approx(16 / 5)  # (0, 4) along (3, 4) / 5
    assert got["drift_local"] == pytest.approx(9 / 5)


def test_relative_drift_and_cosine_compare_with_the_expert():
    merged, expert = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])
    got = terms(merged, expert, expert)
    assert got["drift_relative"].item() == pytest.approx(math.sqrt(13) / 2)
    assert got["drift_cosine"].item() == pytest.approx(4 / 5)


def test_a_part_against_the_drift_is_negative():
    got = terms(torch.tensor([[1.0, 0.0]]), torch.tensor([[-2.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
    assert (got["drift_upstream"].item(), got["drift_local"].item()) == (3.0, -2.0)
    assert got["drift_local_l2"].item() == 2.0


def test_the_parts_along_the_drift_add_up_to_its_length():
    got = terms(*vectors())
    assert torch.allclose(got["drift_upstream"] + got["drift_local"], got["drift_l2"], atol=1e-5)


def test_the_lengths_are_those_of_two_vectors_that_add_up_to_the_drift():
    merged, crossed, expert = vectors()
    got = terms(merged, crossed, expert)
    upstream, local = merged - crossed, crossed - expert
    assert torch.allclose(upstream + local, merged - expert, atol=1e-5)
    assert torch.allclose(got["drift_upstream_l2"], (upstream**2).sum(-1).sqrt(), atol=1e-5)
    assert torch.allclose(got["drift_local_l2"], (local**2).sum(-1).sqrt(), atol=1e-5)


@pytest.mark.parametrize("expert", [torch.ones(2, 4), torch.zeros(2, 4)])
def test_no_drift_gives_zeros_and_nothing_that_is_not_a_number(expert):
    got = terms(expert, expert, expert)
    for name in (*LENGTHS, "drift_upstream", "drift_local"):
        assert torch.equal(got[name], torch.zeros(2)), name
    assert torch.isfinite(got["drift_cosine"]).all()


def test_parts_that_cancel_leave_lengths_and_no_drift():
    here, there = torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 6.0]])
    got = {name: value.item() for name, value in terms(here, there, here).items()}
    assert (got["drift_l2"], got["drift_upstream"], got["drift_local"]) == (0.0, 0.0, 0.0)
    assert (got["drift_upstream_l2"], got["drift_local_l2"]) == (5.0, 5.0)


def test_feature_terms_are_means_over_rows():
    mine, theirs = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    assert feature_terms(mine, theirs) == pytest.approx(
        {
            "feature_drift_l2": math.sqrt(13) / 2,
            "feature_drift_l1": 5 / 4,
            "feature_drift_relative": math.sqrt(13) / 4,
            "feature_cosine": 0.9,
        }
    )


# ---- block by block


def drift_of(model, experts, inputs):
    """(task, block) → means."""
    base = next(iter(experts.values()))
    found = drift_by_block(model, base, Pool(base, experts).experts, inputs)
    return {(task, block): means for task, block, means in found}


def outputs_of(model, batch):
    """Output of every block, (batch, tokens, d), from one full forward pass with hooks."""
    kept, handles = [], []
    for stack in layout_of(model).stacks:
        for block in model.get_submodule(stack):
            handles.append(block.register_forward_hook(lambda _m, _i, out: kept.append(out)))
    with torch.no_grad():
        forward(model, batch)
    for handle in handles:
        handle.remove()
    return [out[0] if isinstance(out, tuple) else out for out in kept]


def brute_force(model, expert, inputs, token):
    """Mean distance after every block; of one token, or of all if ``token`` is None."""
    gaps = []
    for batch in inputs:
        mine, theirs = outputs_of(model, batch), outputs_of(expert, batch)
        gaps.append([(a - b).norm(dim=-1) for a, b in zip(mine, theirs, strict=True)])
    picked = [[g if token is None else g[:, token] for g in gap] for gap in gaps]
    blocks = zip(*picked, strict=True)
    return [torch.cat([g.flatten() for g in block]).mean().item() for block in blocks]


def test_a_model_has_no_drift_from_itself(family, pool, merged):
    found = drift_of(merged.model, dict.fromkeys(pool.experts, merged.model), pool.calibration)
    assert len(found) == 3 * (4 if family == "t5" else 2)
    for means in found.values():
        assert [means[name] for name in (*LENGTHS, "drift_tokens_l2")] == [0.0] * 5
        assert means["drift_cosine"] == pytest.approx(1.0, abs=1e-5)


def test_the_drift_after_every_block_is_that_of_full_forward_passes(family, pool, merged):
    token = None if family == "t5" else 0
    found = drift_of(merged.model, dict(pool.experts), pool.calibration)
    for task, expert in pool.experts.items():
        for metric, which in (("drift_l2", token), ("drift_tokens_l2", None)):
            expected = brute_force(merged.model, expert, pool.calibration[task], which)
            got = [found[task, str(block)][metric] for block in range(len(expected))]
            assert got == pytest.approx(expected, rel=1e-5), (task, metric)
            assert min(got) > 0.1


def test_the_parts_of_every_block_add_up_to_its_drift(pool, merged):
    for place, means in drift_of(merged.model, dict(pool.experts), pool.calibration).items():
        total = means["drift_upstream"] + means["drift_local"]
        assert total == pytest.approx(means["drift_l2"], abs=1e-5), place


def one_edited_block(family, stack, index):
    """A model, and an expert that differs from it in one block alone."""
    model = pool_of(family).base
    expert = copy.deepcopy(model)
    other = pool_of(family).experts["ants"].get_submodule(f"{stack}.{index}")
    expert.get_submodule(f"{stack}.{index}").load_state_dict(other.state_dict())
    return drift_of(model, {"ants": expert}, {"ants": batches(family, 7)})


def test_what_enters_the_first_block_alike_is_no_drift_from_upstream(family):
    stack = layout_of(pool_of(family).base).stacks[0]
    first = one_edited_block(family, stack, 0)["ants", "0"]
    assert first["drift_upstream_l2"] == 0.0
    assert first["drift_local"] == pytest.approx(first["drift_l2"], abs=1e-5)
    assert first["drift_l2"] > 0.1


def test_a_block_with_the_experts_weights_adds_nothing_of_its_own(family):
    stack = layout_of(pool_of(family).base).stacks[0]
    second = one_edited_block(family, stack, 0)["ants", "1"]
    assert second["drift_local_l2"] == 0.0
    assert second["drift_upstream"] == pytest.approx(second["drift_l2"], abs=1e-5)
    assert second["drift_l2"] > 0.1


def test_a_decoder_drifts_by_what_comes_from_its_encoder():
    found = one_edited_block("t5", "encoder.block", 1)
    assert found["ants", "0"]["drift_l2"] == 0.0
    # the cross-attention reads another encoder, with the same weights
    assert found["ants", "2"]["drift_local_l2"] == 0.0
    assert found["ants", "2"]["drift_l2"] > 0.01


def test_a_value_that_is_not_a_number_names_the_expert_and_the_block(pool, merged):
    path = f"{layout_of(pool.base).stacks[-1]}.1"
    block = pool.experts["bees"].get_submodule(path)
    weight = [p for p in block.parameters() if p.dim() > 1][-1]  # not a key: attention hides those
    with torch.no_grad():
        weight[0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match=rf"task 'bees', block {path}: .* NaN or infinite"):
        drift_of(merged.model, dict(pool.experts), pool.calibration)
