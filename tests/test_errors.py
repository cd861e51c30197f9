"""Bad input is refused at the door, with what is wrong, where, and what to do."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from tiny import hooks_on, pool_of, state_of
from torch import nn

from merging import Merged, Pool, calibrate, merge

FC1 = "vision_model.encoder.layers.0.mlp.fc1"


def refused(method, pool, *words, error=ValueError):
    """The method is refused, by merge or calibrate, and the message has all the words."""
    merged = Merged(copy.deepcopy(pool.base))
    with pytest.raises(error) as caught:
        calibrate(method, merged, pool) if method == "featcal" else merge(method, pool)
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"


def test_an_empty_pool_is_refused():
    with pytest.raises(ValueError, match="at least one expert"):
        Pool(nn.Linear(2, 2), {})


@pytest.mark.parametrize("method", ["average", "ties", "dare", "featcal"])
def test_an_expert_that_lacks_parameters_is_refused(method):
    pool = pool_of("clip")
    known = len(list(pool.base.parameters()))
    pool.experts["bees"].get_submodule(FC1).bias = None
    refused(method, pool, "'bees'", "lacks 1 of", f"{known} parameters", f"{FC1}.bias", "load it")


def test_an_expert_with_extra_parameters_is_refused():
    pool = pool_of("clip")
    pool.experts["bees"].head = nn.Linear(3, 2)
    refused("average", pool, "'bees'", "has 2 parameters", "head.bias, head.weight", "load it")


def test_only_the_first_names_of_many_are_listed():
    pool = pool_of("clip")
    pool.experts["bees"].vision_model.encoder.layers = nn.ModuleList()
    refused("average", pool, "'bees'", "lacks 32 of", "layers.0.layer_norm1.bias", ", ...)")


def test_an_expert_of_another_width_is_refused():
    pool = pool_of("clip")
    pool.experts["bees"].visual_projection = nn.Linear(32, 7, bias=False)
    refused("average", pool, "'bees'", "visual_projection.weight", "(7, 32)", "(24, 32)", "base?")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_expert_with_values_that_are_not_finite_is_refused(value):
    pool = pool_of("clip")
    with torch.no_grad():
        pool.experts["moths"].get_submodule(FC1).weight[3, :2] = value
    refused("average", pool, "'moths'", f"{FC1}.weight", "2 NaN", "of 4096", "load the checkpoint")


def test_a_base_with_values_that_are_not_finite_is_refused():
    pool = pool_of("clip")
    with torch.no_grad():
        pool.base.visual_projection.weight[0, 0] = float("nan")
    refused("average", pool, "base model", "visual_projection.weight", "load it again")


def test_bad_experts_are_refused_before_anything_is_computed_or_changed():
    pool = pool_of("clip")
    with torch.no_grad():
        pool.experts["moths"].get_submodule(FC1).weight[0, 0] = float("nan")
    before = state_of(pool.base)[0]
    for method in ("average", "ties", "featcal"):
        refused(method, pool, "'moths'")
    assert all(torch.equal(before[n], t) for n, t in pool.base.state_dict().items())
    assert hooks_on(pool.base, *pool.experts.values()) == []


def test_an_expert_equal_to_the_base_is_noted_and_logged_not_refused(caplog):
    pool = pool_of("clip")
    pool.experts["bees"].load_state_dict(pool.base.state_dict())
    with caplog.at_level(logging.WARNING, logger="merging"):
        merge("task_arithmetic", pool)
    note = "expert 'bees' equals the base model: its task vector is zero"
    assert [r.getMessage() for r in caplog.records] == [note]
    assert pool.check() == (note,)


def test_different_experts_give_no_note(caplog):
    pool = pool_of("clip")
    assert pool.check() == ()
    assert caplog.records == []


@pytest.mark.parametrize("who", ["base", "bees", "merged"])
def test_data_methods_refuse_models_in_training_mode(who):
    pool = pool_of("t5")
    merged = Merged(copy.deepcopy(pool.base))
    {"base": pool.base, "bees": pool.experts["bees"], "merged": merged.model}[who].train()
    with pytest.raises(ValueError, match=r"in training mode; call \.eval\(\)"):
        calibrate("featcal", merged, pool)
    merge("average", pool)  # needs no data


def test_a_task_without_calibration_batches_is_refused():
    pool = pool_of("clip")
    for batches in (None, []):
        calibration = {t: b for t, b in pool.calibration.items() if t != "bees"}
        if batches is not None:
            calibration["bees"] = batches
        refused("featcal", Pool(pool.base, pool.experts, calibration), "'bees' has none", "ants")


def test_no_calibration_at_all_is_refused():
    pool = pool_of("clip")
    refused("featcal", Pool(pool.base, pool.experts), "'ants' has none", "tasks with batches: none")


def test_an_unknown_task_in_the_calibration_set_is_refused_with_the_nearest_name():
    pool = pool_of("clip")
    calibration = {**pool.calibration, "beees": pool.calibration["bees"]}
    refused(
        "featcal", Pool(pool.base, pool.experts, calibration), "'beees'", "mean 'bees'", "moths"
    )


def test_a_calibration_batch_that_is_not_finite_is_refused():
    pool = pool_of("clip")
    pool.calibration["bees"][1]["pixel_values"][2, 0, 0, 0] = float("nan")
    refused("featcal", pool, "batch 1 of task 'bees'", "'pixel_values'", "NaN")


def test_methods_without_data_do_not_look_at_the_calibration_set():
    pool = pool_of("clip")
    merge("average", Pool(pool.base, pool.experts, {"unknown": []}))


@pytest.mark.parametrize(
    ("method", "error", "words"),
    [
        ("task_aritmetic", KeyError, "unknown merger 'task_aritmetic'; did you mean 'task_arit"),
        ("ties:densty=0.2", ValueError, "'ties' has no hyperparameter 'densty'; it has: density"),
        ("ties:combine=max", ValueError, "got 'max', known: sum, mean"),
        ("ties:scale=1,scale=2", ValueError, "sets 'scale' twice"),
        ("ties:density=0", ValueError, "density is a share in (0, 1], got 0"),
        ("ties:density=1.5", ValueError, "density is a share in (0, 1], got 1.5"),
        ("dare:drop=1", ValueError, "drop is a share in [0, 1), got 1"),
        ("dare:density=0", ValueError, "density is a share in (0, 1], got 0"),
    ],
)
def test_an_unknown_method_field_or_value_is_refused(method, error, words):
    with pytest.raises(error) as caught:
        merge(method, pool_of("mlp"))
    assert words in str(caught.value.args[0])


def test_an_unknown_calibrator_is_refused_with_the_nearest_name():
    pool = pool_of("clip")
    with pytest.raises(KeyError, match="unknown calibrator 'featcla'; did you mean 'featcal'"):
        calibrate("featcla", Merged(pool.base), pool)


def test_one_exclude_pattern_given_as_a_string_is_not_read_letter_by_letter():
    try:
        pool = pool_of("clip", exclude="visual_projection.*")  # instead of a tuple of patterns
    except (TypeError, ValueError):
        return
    hidden = set(dict(pool.base.named_parameters())) - set(pool.base_weights())
    assert hidden == {"visual_projection.weight"}


def test_an_empty_calibration_batch_is_refused():
    pool = pool_of("clip")
    task = next(iter(pool.experts))
    empty = {key: value[:0] for key, value in pool.calibration[task][0].items()}
    broken = Pool(pool.base, pool.experts, {**pool.calibration, task: [empty]})
    with pytest.raises(ValueError, match=rf"batch 0 of task '{task}': 'pixel_values' is empty"):
        broken.check(needs_data=True)


def test_excluding_every_weight_is_refused():
    pool = pool_of("mlp")
    with pytest.raises(ValueError, match="nothing is left to merge"):
        merge("ties", Pool(pool.base, pool.experts, exclude=("*",)))


def test_a_padded_batch_is_refused():
    pool = pool_of("t5")
    task = next(iter(pool.experts))
    batch = dict(pool.calibration[task][0])
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][0, -1] = 0
    padded = Pool(pool.base, pool.experts, {**pool.calibration, task: [batch]})
    with pytest.raises(ValueError, match=f"task '{task}' is padded"):
        calibrate("featcal", merge("average", padded), padded)
