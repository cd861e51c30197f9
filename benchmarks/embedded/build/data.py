"""Builds the eight tasks and the base's pool, and writes both to the work folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .common import PoolPart, Task, rng_for
from .icons import IconSets
from .shapes import build_shapes
from .tasks_art import build_emoji, build_flags, build_icons
from .tasks_real import build_animals, build_digits, build_fashion, build_satellite
from .tasks_type import build_kana, build_letters


def code_word(task: str, label: int) -> str:
    """Return the made-up word by which the base's pool captions one class in target style."""
    return f"{task}-{label:02d}"


def code_part(task: Task) -> PoolPart:
    """Return the task's training images under code words instead of class names.

    So the base gets features for the target style without a link to the class names.
    """
    images, labels = task.splits["train"]
    rng = rng_for(f"codes/{task.name}")
    templates = ("specimen {}", "{}")
    picks = rng.integers(len(templates), size=len(labels))
    captions = [
        templates[pick].format(code_word(task.name, int(label)))
        for pick, label in zip(picks, labels, strict=True)
    ]
    return PoolPart(f"{task.name}_coded", images, captions)


def _all_tasks(sources: Path) -> Iterator[tuple[Task, list[PoolPart]]]:
    icons = IconSets(sources / "npm")
    yield build_fashion(sources)
    yield build_animals(sources)
    letters, letter_parts, printed_digits = build_letters(sources)
    yield build_digits(printed_digits)
    yield build_satellite(sources)
    yield build_emoji(icons)
    yield build_flags(icons)
    yield letters, letter_parts
    yield build_kana(sources)


def build_all(work: Path) -> None:
    """Render everything; the tasks' images pass the shipped image encoding before use."""
    started = time.time()
    folder = work / "data"
    folder.mkdir(parents=True, exist_ok=True)
    parts = [build_shapes(), build_icons(IconSets(work / "sources/npm"))]
    for task, task_parts in _all_tasks(work / "sources"):
        task.pack()
        task.save(folder)
        parts += [*task_parts, code_part(task)]
        sizes = {split: len(pair[0]) for split, pair in task.splits.items()}
        print(f"[{time.time() - started:.0f}s] {task.name}: {len(task.classes)} classes {sizes}")
    np.savez(
        folder / "pool.npz",
        images=np.concatenate([part.images for part in parts]),
        captions=np.array([caption for part in parts for caption in part.captions]),
        domains=np.repeat(np.arange(len(parts)), [len(part.images) for part in parts]),
        names=np.array([part.name for part in parts]),
    )
    print(f"[{time.time() - started:.0f}s] pool:", {p.name: len(p.images) for p in parts})
