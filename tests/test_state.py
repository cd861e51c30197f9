"""State-dict algebra: what counts as a weight, task vectors and sums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import pool_of
from torch import nn

from merging import state
from merging.seeds import generator_for, seed_for

integers = st.lists(st.integers(-1000, 1000), min_size=3, max_size=3)
states = st.fixed_dictionaries({"a": integers, "b": integers}).map(
    lambda d: {k: torch.tensor(v, dtype=torch.float32) for k, v in d.items()}
)


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@given(states, states)
def test_base_plus_task_vector_is_the_expert(expert, base):
    vector = state.task_vector(expert, base)
    assert equal(state.add(base, vector, scale=1.0), expert)


@given(states, states, st.sampled_from([-2.0, 0.5, 3.0]))
def test_the_scale_of_add_multiplies_the_task_vector(base, vector, scale):
    back = state.task_vector(state.add(base, vector, scale=scale), base)
    assert equal(back, {name: scale * tensor for name, tensor in vector.items()})


@given(st.lists(states, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_total_is_the_sum_in_any_order(vectors, random):
    expected = {name: sum(vector[name] for vector in vectors) for name in ("a", "b")}
    shuffled = random.sample(vectors, len(vectors))
    assert equal(state.total(iter(shuffled)), expected)


@given(st.lists(states, min_size=2, max_size=4))
def test_total_changes_none_of_its_terms(vectors):
    copies = [{name: tensor.clone() for name, tensor in vector.items()} for vector in vectors]
    state.total(vectors)
    assert all(equal(vector, before) for vector, before in zip(vectors, copies, strict=True))


@given(states, states)
def test_add_and_task_vector_change_neither_argument(base, other):
    before = [{name: tensor.clone() for name, tensor in d.items()} for d in (base, other)]
    state.add(base, state.task_vector(other, base), scale=0.5)
    assert equal(base, before[0])
    assert equal(other, before[1])


def test_total_of_nothing_is_empty():
    assert state.total(iter(())) == {}


@pytest.mark.parametrize(
    ("stored", "computed"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_precision_is_computed_in_float32_and_float64_in_float64(stored, computed):
    base = {"w": torch.ones(2, dtype=stored)}
    expert = {"w": torch.full((2,), 1.5, dtype=stored)}
    vector = state.task_vector(expert, base)
    assert vector["w"].dtype == computed
    assert state.add(base, vector, scale=0.1)["w"].dtype == computed


def test_task_vectors_of_half_precision_are_not_rounded_to_it():
    base = {"w": torch.tensor([256.0], dtype=torch.bfloat16)}
    expert = {"w": torch.tensor([1.0078125], dtype=torch.bfloat16)}
    assert float(state.task_vector(expert, base)["w"]) == 1.0078125 - 256


def test_tied_weights_are_listed_once():
    model = pool_of("t5").base
    names = state.weights(model)
    assert "shared.weight" in names
    assert not {"lm_head.weight", "encoder.embed_tokens.weight"} & names.keys()
    assert sum(t.numel() for t in names.values()) == sum(p.numel() for p in model.parameters())


def test_integer_and_boolean_buffers_are_no_weights():
    names = state.weights(pool_of("mlp").base)
    assert "1.running_mean" in names
    assert not {"1.num_batches_tracked", "3.seen", "3.mask"} & names.keys()


def test_buffers_outside_the_state_dict_are_no_weights():
    model = nn.Linear(2, 2)
    model.register_buffer("scratch", torch.zeros(2), persistent=False)
    assert set(state.weights(model)) == {"weight", "bias"}


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (("1.*",), {"0.weight", "0.bias", "4.weight"}),
        (("*.bias", "1.running_*"), {"0.weight", "1.weight", "4.weight"}),
        (
            ("0.weight",),
            {"0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"} | {"4.weight"},
        ),
    ],
)
def test_shell_patterns_exclude_weights(patterns, left):
    assert set(state.weights(pool_of("mlp").base, patterns)) == left


def test_weights_are_the_models_own_tensors():
    model = pool_of("mlp").base
    assert state.weights(model)["0.weight"].data_ptr() == model[0].weight.data_ptr()


def test_loading_copies_values_and_keeps_the_models_types():
    model = nn.Linear(2, 2).to(torch.bfloat16)
    new = {"bias": torch.tensor([0.1, 2.0])}
    weight = model.weight.clone()
    state.load_weights(model, new, "a test")
    new["bias"].zero_()
    assert torch.equal(model.bias, torch.tensor([0.1, 2.0]).to(torch.bfloat16))
    assert torch.equal(model.weight, weight)


def test_seeds_depend_on_every_word_of_the_purpose_and_on_word_boundaries():
    seeds = [
        seed_for(0, "dare", "a", "b"),
        seed_for(1, "dare", "a", "b"),
        seed_for(0, "dare", "a"),
        seed_for(0, "dare", "ab"),
        seed_for(0, "dare", "b", "a"),
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_generators_of_one_purpose_draw_the_same():
    first, second = (torch.rand(4, generator=generator_for(3, "x")) for _ in range(2))
    assert torch.equal(first, second)
