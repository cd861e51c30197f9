"""Names for methods: ``"featcal:ridge=0.1"`` is turned into ``FeatCal(ridge=0.1)``."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, TypeVar

T = TypeVar("T", bound=type)


def unknown(kind: str, name: str, known: typing.Iterable[str]) -> str:
    """The text of an error about a name that is not known: what, nearest names, all names."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    return f"unknown {kind} {name!r}{hint} (known: {', '.join(known)})"


class Registry(dict[str, type]):
    """Method name → frozen dataclass. The dataclass's fields are the method's hyperparameters.

    ``title``, ``paper`` and ``reconstructed`` (how far the paper was readable, empty if fully)
    are kept on the class; tables, figures and the README take their names from there.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def register(
        self, name: str, *, title: str, paper: str = "", reconstructed: str = ""
    ) -> Callable[[T], T]:
        """A class decorator that files the class under ``name``."""

        def add(cls: T) -> T:
            if name in self:
                raise ValueError(f"{self.kind} {name!r} is registered twice ({self[name]}, {cls})")
            if not dataclasses.is_dataclass(cls):
                raise TypeError(f"{self.kind} {name!r} must be a dataclass; its fields are options")
            cls.name, cls.title, cls.paper, cls.reconstructed = name, title, paper, reconstructed
            self[name] = cls
            return cls

        return add

    def build(self, spec: str) -> Any:
        """The method that ``"name"`` or ``"name:field=value,field=value"`` describes.

        Raises KeyError for an unknown name, ValueError for an unknown field or a bad value; both
        say what is known.
        """
        name, _, arguments = spec.partition(":")
        name = name.strip()
        if name not in self:
            raise KeyError(unknown(self.kind, name, self))
        cls = self[name]
        hints = typing.get_type_hints(cls)
        fields = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}
        values: dict[str, Any] = {}
        for item in filter(None, (part.strip() for part in arguments.split(","))):
            key, equals, text = (part.strip() for part in item.partition("="))
            if not equals:
                raise ValueError(f"{self.kind} {spec!r}: {item!r} is not of the form field=value")
            if key not in fields:
                known = ", ".join(fields) or "none"
                raise ValueError(
                    f"{self.kind} {name!r} has no hyperparameter {key!r}; it has: {known}"
                )
            if key in values:
                raise ValueError(f"{self.kind} {spec!r} sets {key!r} twice")
            values[key] = _parse(text, fields[key], f"{self.kind} {name!r}, {key!r}")
        return cls(**values)

    def made(self, method: Any) -> Any:
        """A method given by its spec or as an object, whose choices are compared with the known."""
        if isinstance(method, str):
            return self.build(method)
        hints = typing.get_type_hints(type(method)) if dataclasses.is_dataclass(method) else {}
        for name, hint in hints.items():
            value, choices = getattr(method, name, None), typing.get_args(hint)
            if typing.get_origin(hint) is Literal and value not in choices:
                raise ValueError(
                    f"{type(method).__name__}, {name!r}: got {value!r}, known: {', '.join(choices)}"
                )
        return method

    def canonical(self, spec: str) -> str:
        """The shortest spelling of a spec: only fields that differ from their defaults, sorted."""
        return self.spell(self.build(spec))

    @staticmethod
    def spell(method: Any) -> str:
        """The shortest spec that builds this method."""
        arguments = arguments_of(method)
        return method.name + (f":{arguments}" if arguments else "")


def arguments_of(method: object) -> str:
    """``"field=value,..."`` of the fields that differ from their defaults, sorted by name."""
    changed = (
        (f.name, getattr(method, f.name))
        for f in dataclasses.fields(method)
        if f.init and getattr(method, f.name) != f.default
    )
    return ",".join(f"{key}={_text(value)}" for key, value in sorted(changed))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse(text: str, hint: Any, where: str) -> Any:
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if text not in choices:
            raise ValueError(f"{where}: got {text!r}, known: {', '.join(choices)}")
        return text
    if isinstance(hint, types.UnionType):
        if text.lower() == "none":
            return None
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{where}: got {text!r}, expected true or false")
        return text.lower() == "true"
    try:
        value = hint(text)
    except ValueError:
        raise ValueError(f"{where}: got {text!r}, expected {hint.__name__}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: got {text!r}, expected a finite number")
    return value
