"""Progress bars on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def progress(items: Iterable[T], title: str) -> Iterable[T]:
    """The items, behind a bar on standard error if that is a terminal."""
    return tqdm(items, desc=title, leave=False, disable=not sys.stderr.isatty())


def quiet_libraries() -> None:
    """Turn off the bars that transformers and datasets draw for their own small steps."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
