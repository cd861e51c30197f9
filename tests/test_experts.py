"""Experts as a mapping: sorted, lazy, and readable block by block."""

from __future__ import annotations

import pytest
from tiny import LazyExperts, assert_equal_states, pool_of
from torch import nn

from merging import Pool, calibrate, merge
from merging.experts import Experts
from merging.layouts import layout_of


class BlockwiseExperts(Experts):
    """Counts whole experts and single blocks that are asked for."""

    def __init__(self, experts):
        super().__init__(experts)
        self.whole, self.blocks = [], []

    def __getitem__(self, task):
        self.whole.append(task)
        return super().__getitem__(task)

    def submodule(self, task, path):
        self.blocks.append((task, path))
        return self._experts[task].get_submodule(path)


def test_experts_iterate_in_sorted_order_whatever_the_mapping():
    experts = Experts({"c": nn.Linear(1, 1), "a": nn.Linear(1, 1), "b": nn.Linear(1, 1)})
    assert list(experts) == ["a", "b", "c"]
    assert len(experts) == 3
    assert "b" in experts
    assert "d" not in experts


def test_a_pool_wraps_its_experts_once_and_keeps_a_subclass():
    pool = pool_of("mlp")
    assert isinstance(pool.experts, Experts)
    own = BlockwiseExperts(dict(pool.experts))
    assert Pool(pool.base, own).experts is own


def test_an_expert_gives_a_block_by_its_path():
    pool = pool_of("mlp")
    assert pool.experts.submodule("ants", "0") is pool.experts["ants"][0]
    with pytest.raises(KeyError):
        pool.experts.submodule("wasps", "0")


def test_making_a_pool_loads_no_expert():
    pool = pool_of("mlp")
    lazy = LazyExperts(pool.experts)
    Pool(pool.base, lazy)
    assert lazy.loads == 0


def test_checking_a_pool_loads_each_expert_once_and_holds_one():
    pool = pool_of("clip")
    lazy = LazyExperts(pool.experts)
    other = Pool(pool.base, lazy)
    other.check()
    other.check()
    assert lazy.loads == len(lazy)
    assert lazy.peak == 1


def test_task_vectors_hold_one_expert_at_a_time():
    pool = pool_of("clip")
    lazy = LazyExperts(pool.experts)
    assert [task for task, _ in Pool(pool.base, lazy).task_vectors()] == ["ants", "bees", "moths"]
    assert lazy.peak == 1


def test_featcal_reads_whole_experts_once_per_stack_and_then_single_blocks(family):
    pool = pool_of(family)
    merged = merge("average", pool)
    own = BlockwiseExperts(dict(pool.experts))
    other = Pool(pool.base, own, pool.calibration)
    other.check()
    own.whole.clear()
    result = calibrate("featcal", merged, other)
    stacks = layout_of(pool.base).stacks
    assert own.whole == ["ants", "bees", "moths"] * len(stacks)
    assert set(own.blocks) == {
        (task, f"{stack}.{index}") for task in own for stack in stacks for index in range(2)
    }
    expected = calibrate("featcal", merged, pool)
    assert_equal_states(result.model.state_dict(), expected.model.state_dict())
