"""Imports follow the arrows: each checked in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def loaded_by(statement):
    """Names of the top-level packages and our modules after a statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    names = done.stdout.split()
    ours = {name for name in names if name.startswith(("merging", "benchmarks"))}
    return ours | {name.partition(".")[0] for name in names}


def test_merging_needs_torch_and_none_of_the_driver():
    loaded = loaded_by("import merging")
    assert "torch" in loaded
    assert loaded & {
        "benchmarks", "transformers", "open_clip", "datasets", "evaluate", "pandas", "matplotlib"
    } == set()  # fmt: skip


@pytest.mark.parametrize("module", ["records", "tables", "figures", "progress"])
def test_what_works_on_rows_alone_needs_no_torch(module):
    loaded = loaded_by(f"import benchmarks.{module}")
    assert loaded & {"torch", "merging", "transformers", "datasets"} == set()


def test_tables_and_figures_know_only_rows():
    ours = {name for name in loaded_by("import benchmarks.figures") if name.startswith("bench")}
    known = ("figures", "study_figures", "drift_figures", "tables", "study_tables", "drift_tables",
             "style",
             "records")  # fmt: skip
    assert ours <= {"benchmarks", *(f"benchmarks.{name}" for name in known)}


def test_the_command_line_answers_without_loading_torch():
    loaded = loaded_by("from benchmarks.__main__ import _parser\n_parser().format_help()")
    assert loaded & {"torch", "transformers", "datasets", "matplotlib"} == set()


def test_planning_a_sweep_needs_no_model_library():
    loaded = loaded_by(
        "from benchmarks.sweeps import SWEEPS, Options\n"
        "from benchmarks.suites import SUITES\n"
        "SWEEPS['table-clip'].specs(SUITES['mini-clip8'](), Options('mini-clip8', 8, 1))"
    )
    assert loaded & {"transformers", "datasets", "evaluate", "open_clip"} == set()
