"""The walk over residual blocks: replay equals the forward pass, and nothing is left behind."""

from __future__ import annotations

import copy

import pytest
import torch
from reference import forward, inputs_of
from tiny import assert_equal_states, hooks_on, pool_of, state_of
from torch import nn

from merging import Merged
from merging.layouts import layout_of
from merging.replay import record
from merging.walk import calibratable, walk

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def steps_of(pool, merged):
    return walk(merged.model, pool.base, pool.experts, pool.calibration)


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def expected_inputs(model, step, names, batch):
    kept = inputs_of(model, [f"{step.path}.{name}" for name in names], batch)
    return {name: kept[f"{step.path}.{name}"] for name in names}


def everything_seen(pool, merged, edit=lambda step: None):
    """All inputs by (path, task, batch number); ``edit`` is applied after looking."""
    seen = {}
    for step in steps_of(pool, merged):
        names = calibratable(step.merged)
        for number, (task, _, mine, theirs) in enumerate(step.inputs(names)):
            seen[step.path, task, number] = mine, theirs
        edit(step)
    return seen


def test_every_input_is_that_of_the_forward_pass_bit_for_bit(pool, merged):
    for step in steps_of(pool, merged):
        names = calibratable(step.merged)
        place = dict.fromkeys(pool.experts, 0)
        for task, _, mine, theirs in step.inputs(names):
            batch = pool.calibration[task][place[task]]
            place[task] += 1
            assert same(mine, expected_inputs(merged.model, step, names, batch)), step.path
            assert same(theirs, expected_inputs(pool.experts[task], step, names, batch))
        assert set(place.values()) == {2}


def test_replaying_all_blocks_gives_the_output_of_the_last_one_bit_for_bit(family, pool):
    model = pool.base
    for stack in layout_of(model).stacks:
        blocks = list(model.get_submodule(stack))
        for batch in pool.calibration["ants"]:
            kept = []
            handle = blocks[-1].register_forward_hook(
                lambda _m, _i, out, kept=kept: kept.append(out)
            )
            forward(model, batch)
            handle.remove()
            stream = record(model, blocks, batch, first_only=False)
            for index, block in enumerate(blocks):
                stream.hidden = stream.replay(block, index)
            output = kept[0][0] if isinstance(kept[0], tuple) else kept[0]
            assert torch.equal(stream.hidden, output)


@pytest.mark.parametrize("family", ["clip", "open_clip"])
def test_one_recorded_call_serves_all_blocks_that_are_called_alike(family):
    pool = pool_of(family)
    (stack,) = layout_of(pool.base).stacks
    blocks = list(pool.base.get_submodule(stack))
    batch = pool.calibration["ants"][0]
    short, full = (record(pool.base, blocks, batch, first_only=f) for f in (True, False))
    assert len(full.calls) == len(short.calls) == 1
    for index, block in enumerate(blocks):
        assert torch.equal(short.hidden, full.hidden)
        for stream in (short, full):
            stream.hidden = stream.replay(block, index)
    assert torch.equal(short.hidden, full.hidden)


def test_t5_blocks_are_called_with_position_biases_of_their_own():
    pool = pool_of("t5")
    for stack in layout_of(pool.base).stacks:
        blocks = list(pool.base.get_submodule(stack))
        stream = record(pool.base, blocks, pool.calibration["ants"][0], first_only=False)
        assert len(stream.calls) == len(blocks)


def test_every_linear_layer_of_every_block_is_reached(family, pool, merged):
    reached = {
        f"{step.path}.{name}"
        for step in steps_of(pool, merged)
        for name in calibratable(step.merged)
    }
    linears = {
        name
        for name, module in pool.base.named_modules()
        if isinstance(module, nn.Linear) and name.startswith(layout_of(pool.base).stacks)
    }
    assert len(linears) == {"clip": 2 * 6, "open_clip": 2 * 6, "t5": 2 * 7 + 2 * 11}[family]
    assert linears <= reached


def test_steps_come_in_forward_order_and_name_their_place(family, pool, merged):
    steps = list(steps_of(pool, merged))
    stacks = layout_of(pool.base).stacks
    assert [(s.stack, s.index, s.last) for s in steps] == [
        (stack, index, index == 1) for stack in stacks for index in range(2)
    ]
    for step in steps:
        assert step.merged is merged.model.get_submodule(step.path)
        assert step.base is pool.base.get_submodule(step.path)
        assert step.expert("bees") is pool.experts["bees"].get_submodule(step.path)
        assert step.tasks == ("ants", "bees", "moths")


def halve(step):
    """Halves every weight of the merged block."""
    for parameter in step.merged.parameters():
        parameter.mul_(0.5)


def test_later_blocks_see_the_edited_ones_and_experts_do_not(pool, merged):
    untouched = everything_seen(pool, Merged(copy.deepcopy(merged.model)))
    for step in steps_of(pool, merged):
        names = calibratable(step.merged)
        for number, (task, _, mine, theirs) in enumerate(step.inputs(names)):
            batch = pool.calibration[task][number % 2]
            assert same(mine, expected_inputs(merged.model, step, names, batch)), step.path
            before, experts = untouched[step.path, task, number]
            assert same(theirs, experts)
            assert same(mine, before) == (step.index == 0 and not step.stack.startswith("decoder"))
        # a position bias that is edited would have to be recorded again; linear maps suffice
        for name in names:
            for parameter in step.merged.get_submodule(name).parameters():
                parameter.mul_(0.5)


def test_inputs_may_be_asked_for_again_after_an_edit(pool, merged):
    step = next(steps_of(pool, merged))
    names = calibratable(step.merged)
    untouched = {f"{step.path}.{name}" for name in names}
    _, _, before, theirs = next(step.inputs(names))
    halve(step)
    _, _, after, again = next(step.inputs(names))
    assert same(theirs, again)
    batch = pool.calibration["ants"][0]
    assert same(after, expected_inputs(merged.model, step, names, batch))
    changed = {f"{step.path}.{n}" for n in names if not torch.equal(before[n], after[n])}
    assert changed
    assert len(untouched - changed) == 1  # the first norm layer, whose input enters the block


def test_advancing_without_looking_equals_advancing_after_looking(pool, merged):
    looked = everything_seen(pool, merged)
    stacks = layout_of(pool.base).stacks
    for step in steps_of(pool, merged):
        if not step.last:
            continue
        for number, (task, _, mine, theirs) in enumerate(step.inputs(calibratable(step.merged))):
            assert same(mine, looked[step.path, task, number][0])
            assert same(theirs, looked[step.path, task, number][1])
    assert len({path.rpartition(".")[0] for path, _, _ in looked}) == len(stacks)


def test_looking_only_in_part_does_not_disturb_the_walk(pool, merged):
    looked = everything_seen(pool, merged)
    for step in steps_of(pool, merged):
        names = calibratable(step.merged)
        next(step.inputs(names))  # abandoned
        if step.last:
            for number, (task, _, mine, theirs) in enumerate(step.inputs(names)):
                assert same(mine, looked[step.path, task, number][0])
                assert same(theirs, looked[step.path, task, number][1])


def test_walking_without_edits_changes_no_model(pool, merged):
    models = [merged.model, pool.base, *pool.experts.values()]
    before = state_of(*models)
    everything_seen(pool, merged)
    for state, expected in zip(state_of(*models), before, strict=True):
        assert_equal_states(state, expected)


def test_no_hook_is_left_by_an_abandoned_walk(pool, merged):
    steps = steps_of(pool, merged)
    step = next(steps)
    looking = step.inputs(calibratable(step.merged))
    next(looking)
    assert hooks_on(merged.model, pool.base, *pool.experts.values()) == []
    looking.close()
    steps.close()
    assert hooks_on(merged.model, pool.base, *pool.experts.values()) == []


def test_no_hook_is_left_after_a_failure_in_the_forward_pass(pool, merged):
    def fail(_module, _inputs):
        raise ArithmeticError("inside the block")

    stacks = layout_of(pool.base).stacks
    for stack in stacks:
        block = merged.model.get_submodule(f"{stack}.1")
        linear = next(m for m in block.modules() if isinstance(m, nn.Linear))
        handle = linear.register_forward_pre_hook(fail)
        with pytest.raises(ArithmeticError, match="inside the block"):
            everything_seen(pool, merged)
        handle.remove()
        assert hooks_on(merged.model, pool.base, *pool.experts.values()) == []
