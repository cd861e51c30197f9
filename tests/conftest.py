"""Fixtures: one thread, tiny real models, pools of a base and three experts."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from tiny import FAMILIES, MODELS, pool_of

from merging import Merged, Pool, merge

hypothesis.settings.register_profile(
    "quiet", deadline=None, max_examples=60, derandomize=True, database=None
)
hypothesis.settings.load_profile("quiet")
torch.set_num_threads(1)


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    """Name of a model family that has a layout."""
    return request.param


@pytest.fixture
def pool(family) -> Pool:
    """Base, three experts and calibration batches of one family; fresh for every test."""
    return pool_of(family)


@pytest.fixture
def merged(pool) -> Merged:
    """The pool's experts merged by Task Arithmetic."""
    return merge("task_arithmetic", pool)


@pytest.fixture(params=MODELS)
def any_pool(request) -> Pool:
    """A pool of any model, also of one without a layout (and without calibration batches)."""
    return pool_of(request.param)
