"""What the README shows is run, or compared with what it is generated from."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import readme
from merging import MERGERS, Pool, merge, mergers

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """The text of a generated block."""
    return re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", README, re.DOTALL)[1].strip()


@pytest.fixture
def median(tmp_path):
    """The README's example merger, imported as a file of merging/mergers, then forgotten."""
    code = re.search(r"<!-- example: (\S+) -->\n```python\n(.*?)```", README, re.DOTALL)
    path = tmp_path / Path(code[1]).name
    path.write_text(code[2])
    name = f"{mergers.__name__}.{path.stem}"
    there = MERGERS.pop("median", None)  # a reader may have followed the README already
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield code[2]
    del sys.modules[name], MERGERS["median"]
    if there:
        MERGERS["median"] = there


def test_the_example_merger_is_found_by_name_and_computes_the_median(median):
    base = nn.Linear(2, 2)
    experts = {}
    for task, shift in (("a", 1.0), ("b", 2.0), ("c", 9.0)):
        experts[task] = nn.Linear(2, 2)
        moved = {key: value + shift for key, value in base.state_dict().items()}
        experts[task].load_state_dict(moved)
    merged = merge("median:scale=0.5", Pool(base=base, experts=experts))
    torch.testing.assert_close(merged.model.weight, base.weight + 0.5 * 2.0)


def test_the_example_merger_is_as_short_as_promised(median):
    code = [line for line in median.splitlines() if line.strip() and "import" not in line]
    assert len(code) <= 15


def test_the_method_table_is_the_registry():
    assert block("methods") == readme.methods_block()


@pytest.mark.parametrize("sweep", readme.SHOWN)
def test_the_results_are_those_committed(sweep, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert block(sweep) == readme.blocks(Path("results/embedded"))[sweep]


def test_results_without_a_sweep_that_the_readme_shows_are_refused(tmp_path):
    (tmp_path / "provenance.json").write_text("{}")
    with pytest.raises(ValueError, match="lacks table-clip_mini-clip8: run `make table-clip`"):
        readme.blocks(tmp_path)


def test_every_make_target_that_the_readme_names_exists():
    named = set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE))
    named |= set(re.findall(r"`make ([a-z-]+)", README))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named
    assert named <= targets


def test_make_alone_lists_every_target():
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in targets - {"help"}:
        assert re.search(rf"make {target}\s+\S", shown), target


def test_links_to_files_of_the_repository_lead_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
