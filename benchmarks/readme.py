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

SHOWN = {  # sweep → what its first figure shows
    "table-clip": "Accuracy per task of merged and calibrated models",
    "sample-efficiency": "Average accuracy against the number of calibration examples",
    "drift": "Distance from the experts after each block and at the final feature",
    "runtime": "Accuracy against calibration time and memory",
}


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


def results_block(embedded: Path, sweep: str, figure: str) -> str:
    """The committed table of a sweep, a figure of it, and where both come from."""
    stem = f"{sweep}_mini-clip8"
    provenance = json.loads((embedded / "provenance.json").read_text(encoding="utf-8"))
    if stem not in provenance:
        raise ValueError(f"{embedded} lacks {stem}: run `make {sweep}` before publishing")
    origin = provenance[stem]
    table = (embedded / "tables" / f"{stem}.md").read_text(encoding="utf-8")
    packages = ", ".join(
        f"{name} {origin['packages'][name]}" for name in ("torch", "transformers", "datasets")
    )
    return (
        f"{table}\n"
        f"![{figure}]({embedded.as_posix()}/figures/{stem}.png)\n\n"
        f"Made by `make {sweep}` at commit `{origin['commit'][:12]}` on {origin['cpu']}, "
        f"{origin['threads']} threads, Python {origin['python']}, {packages}, in "
        f"{origin['wall_seconds'] / 60:.0f} minutes."
    )


def blocks(embedded: Path) -> dict[str, str]:
    """Every generated block by its name."""
    made = {sweep: results_block(embedded, sweep, text) for sweep, text in SHOWN.items()}
    return {"methods": methods_block(), **made}


def update(readme: Path, embedded: Path) -> None:
    """Rewrite all blocks of the README."""
    text = readme.read_text(encoding="utf-8")
    for name, content in blocks(embedded).items():
        text = with_block(text, name, content)
    readme.write_text(text, encoding="utf-8")
