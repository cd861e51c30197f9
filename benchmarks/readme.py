"""The generated parts of README.md: the list of methods and the committed results.

Each lies between ``<!-- name -->`` and ``<!-- /name -->``; `make publish` rewrites them, and a
test compares them with the registry and with results/embedded.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from merging import CALIBRATORS, MERGERS
from merging.registry import Registry


def with_block(text: str, name: str, content: str) -> str:
    """The text with the named block's content replaced; ValueError if it has no such block."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the README has no block '<!-- {name} --> ... <!-- /{name} -->'")
    return pattern.sub(lambda match: f"{match[1]}{content.strip()}\n{match[2]}", text)


def methods_block() -> str:
    """A Markdown table of every method with its hyperparameters and their defaults."""
    lines = ["| kind | name | title | paper | fields and defaults | known from |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for registry in (MERGERS, CALIBRATORS):
        lines += _lines(registry)
    return "\n".join(lines)


def _lines(registry: Registry) -> list[str]:
    lines = []
    for name, cls in sorted(registry.items(), key=lambda item: item[1].paper):
        fields = ", ".join(f"`{f.name}={_shown(f.default)}`" for f in dataclasses.fields(cls))
        known = f"reconstructed {cls.reconstructed}" if cls.reconstructed else "paper and code"
        title, paper = cls.title, cls.paper
        if not paper:
            title, paper, known = "no calibration", "-", "-"
        lines.append(
            f"| {registry.kind} | `{name}` | {title} | {paper} | {fields or '-'} | {known} |"
        )
    return lines


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def results_block(embedded: Path) -> str:
    """The committed table of the main sweep, its figure, and where both come from."""
    origin = json.loads((embedded / "provenance.json").read_text(encoding="utf-8"))
    table = (embedded / "tables" / "table-clip_mini-clip8.md").read_text(encoding="utf-8")
    figure = f"{embedded.as_posix()}/figures/table-clip_mini-clip8.png"
    packages = ", ".join(
        f"{name} {origin['packages'][name]}" for name in ("torch", "transformers", "datasets")
    )
    return (
        f"{table}\n"
        f"![Accuracy per task of merged and calibrated models]({figure})\n\n"
        f"Made by `make table-clip` at commit `{origin['commit'][:12]}` on {origin['cpu']}, "
        f"{origin['threads']} threads, Python {origin['python']}, {packages}."
    )


def update(readme: Path, embedded: Path) -> None:
    """Rewrite both blocks of the README."""
    text = with_block(readme.read_text(encoding="utf-8"), "methods", methods_block())
    text = with_block(text, "results", results_block(embedded))
    readme.write_text(text, encoding="utf-8")
