"""Specs such as ``"featcal:ridge=0.1"``: parsing, canonical spelling, errors."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merging import CALIBRATORS, MERGERS
from merging.registry import Registry, arguments_of, unknown

TOYS = Registry("toy")


@TOYS.register("spinning_top", title="Spinning Top", paper="arXiv:0000.00000", reconstructed="all")
@dataclasses.dataclass(frozen=True)
class SpinningTop:
    """A method with a field of every type."""

    needs_data: ClassVar[bool] = False
    speed: float = 0.3
    turns: int = 4
    wooden: bool = True
    colour: Literal["red", "blue"] = "red"
    limit: float | None = None


values = st.fixed_dictionaries(
    {},
    optional={
        "speed": st.floats(allow_nan=False, allow_infinity=False),
        "turns": st.integers(-(10**6), 10**6),
        "wooden": st.booleans(),
        "colour": st.sampled_from(["red", "blue"]),
        "limit": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    },
)
every_method = pytest.mark.parametrize(
    ("registry", "name"),
    [(registry, name) for registry in (MERGERS, CALIBRATORS) for name in sorted(registry)],
)


def spell(fields):
    return "spinning_top:" + ",".join(f"{k}={v}" for k, v in fields.items())


@given(values)
def test_a_spec_builds_the_method_it_spells(fields):
    assert TOYS.build(spell(fields)) == SpinningTop(**fields)


@given(values)
def test_the_canonical_spelling_builds_the_same_method(fields):
    canonical = TOYS.canonical(spell(fields))
    assert TOYS.build(canonical) == SpinningTop(**fields)
    assert TOYS.canonical(canonical) == canonical


@given(values, st.randoms(use_true_random=False))
def test_equal_methods_have_one_canonical_spelling(fields, random):
    shuffled = dict(random.sample(list(fields.items()), len(fields)))
    assert TOYS.canonical(spell(shuffled)) == TOYS.canonical(spell(fields))


@given(values)
def test_the_canonical_spelling_names_only_fields_that_differ_from_their_defaults(fields):
    default = dataclasses.asdict(SpinningTop())
    changed = sorted(name for name, value in fields.items() if value != default[name])
    arguments = arguments_of(SpinningTop(**fields))
    assert [a.partition("=")[0] for a in arguments.split(",") if a] == changed


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("spinning_top", "spinning_top"),
        ("spinning_top:", "spinning_top"),
        ("spinning_top:speed=0.30", "spinning_top"),
        (" spinning_top : turns = 2 , colour = blue ", "spinning_top:colour=blue,turns=2"),
        ("spinning_top:wooden=FALSE", "spinning_top:wooden=false"),
        ("spinning_top:limit=none", "spinning_top"),
        ("spinning_top:limit=1e-3", "spinning_top:limit=0.001"),
    ],
)
def test_spellings_have_a_known_canonical_form(spec, canonical):
    assert TOYS.canonical(spec) == canonical


@every_method
def test_every_registered_method_has_defaults_and_is_named_by_them(registry, name):
    method = registry.build(name)
    assert registry.canonical(name) == name
    assert arguments_of(method) == ""
    assert method.name == name


@every_method
def test_every_registered_method_is_a_frozen_dataclass_with_its_declarations(registry, name):
    cls = registry[name]
    assert cls.__dataclass_params__.frozen
    assert isinstance(cls.needs_data, bool)
    assert isinstance(cls.draws, bool)
    assert cls.title
    assert cls.__doc__


@every_method
def test_every_field_can_be_set_from_a_spec(registry, name):
    for field in dataclasses.fields(registry[name]):
        spec = f"{name}:{field.name}={field.default}"
        assert registry.build(spec) == registry.build(name)


def test_the_issues_methods_are_registered():
    assert {"average", "task_arithmetic", "ties", "dare"} <= set(MERGERS)
    assert {"none", "featcal"} <= set(CALIBRATORS)


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ("spining_top", KeyError, ["unknown toy 'spining_top'", "did you mean 'spinning_top'"]),
        ("zzz", KeyError, ["unknown toy 'zzz'", "known: spinning_top"]),
        ("", KeyError, ["unknown toy ''"]),
        ("spinning_top:sped=1", ValueError, ["'spinning_top'", "'sped'", "speed, turns, wooden"]),
        ("spinning_top:speed", ValueError, ["'speed'", "field=value"]),
        ("spinning_top:speed=1,speed=2", ValueError, ["'speed' twice"]),
        ("spinning_top:speed=1,turns=1,speed=1", ValueError, ["'speed' twice"]),
        ("spinning_top:speed=fast", ValueError, ["'speed'", "'fast'", "float"]),
        ("spinning_top:speed=", ValueError, ["'speed'", "''", "float"]),
        ("spinning_top:speed=nan", ValueError, ["'speed'", "'nan'", "finite"]),
        ("spinning_top:limit=inf", ValueError, ["'limit'", "'inf'", "finite"]),
        ("spinning_top:turns=1.5", ValueError, ["'turns'", "'1.5'", "int"]),
        ("spinning_top:wooden=1", ValueError, ["'wooden'", "'1'", "true or false"]),
        ("spinning_top:colour=bleu", ValueError, ["'colour'", "'bleu'", "red, blue"]),
        ("spinning_top:needs_data=true", ValueError, ["'needs_data'", "it has: speed"]),
    ],
)
def test_a_wrong_spec_is_refused_with_what_is_known(spec, error, words):
    with pytest.raises(error) as caught:
        TOYS.build(spec)
    assert all(word in str(caught.value.args[0]) for word in words), str(caught.value)


def test_a_name_cannot_be_registered_twice():
    with pytest.raises(ValueError, match="'spinning_top' is registered twice"):
        TOYS.register("spinning_top", title="Another")(SpinningTop)
    assert TOYS["spinning_top"] is SpinningTop


def test_only_dataclasses_can_be_registered():
    with pytest.raises(TypeError, match="must be a dataclass"):
        TOYS.register("ball", title="Ball")(type("Ball", (), {}))
    assert "ball" not in TOYS


def test_unknown_names_are_answered_with_the_nearest_and_all_known():
    text = unknown("fruit", "aple", ["melon", "apple"])
    assert text == "unknown fruit 'aple'; did you mean 'apple'? (known: apple, melon)"
