"""Named sections inside a method, so that a caller can time encoding apart from fitting.

A method marks what it does with ``section``; that costs nothing unless somebody listens.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Sections:
    """Seconds per section of what runs inside ``listening``."""

    synchronise: Callable[[], None]
    seconds: dict[str, float] = field(default_factory=dict)


_listener: ContextVar[Sections | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listening(synchronise: Callable[[], None] = lambda: None) -> Iterator[Sections]:
    """Collect the sections that are passed through; ``synchronise`` waits for the device."""
    sections = Sections(synchronise)
    token = _listener.set(sections)
    try:
        yield sections
    finally:
        _listener.reset(token)


@contextlib.contextmanager
def section(name: str) -> Iterator[None]:
    """Add the time of the block to the section ``name``, if anybody listens."""
    listener = _listener.get()
    if listener is None:
        yield
        return
    listener.synchronise()
    start = time.perf_counter()
    try:
        yield
    finally:
        listener.synchronise()
        spent = time.perf_counter() - start
        listener.seconds[name] = listener.seconds.get(name, 0.0) + spent
