"""Class names and prompt templates of a task: one JSON file, checked when read."""

from __future__ import annotations

import json
from pathlib import Path


def read_prompts(path: Path, task: str) -> tuple[list[str], list[str]]:
    """Classes and templates of {"classes": [...], "templates": [...]}, or ValueError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        classes, templates = list(content["classes"]), list(content["templates"])
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"task {task!r}: cannot read classes and templates from {path} ({error!r})"
        ) from error
    twice = {name for name in classes if classes.count(name) > 1}
    if twice or not classes or not templates:
        problem = f"lists {sorted(twice)} twice" if twice else "has an empty list"
        raise ValueError(f"task {task!r}: {path} {problem}")
    for template in templates:
        rest = template.replace("{}", "", 1)
        if rest == template or "{" in rest or "}" in rest:
            raise ValueError(
                f"task {task!r}: {path}: the template {template!r} needs exactly one {{}}, the "
                "place of the class name"
            )
    return classes, templates
