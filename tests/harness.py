"""The toy suite built once per session, copies of it to break, and the command line in process."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import datasets
import torch
from safetensors.torch import load_file, save_file

from benchmarks.__main__ import main
from benchmarks.records import COLUMNS, read_rows
from benchmarks.suites import SUITES
from benchmarks.suites.clip import ClipSuite, folder_suite
from benchmarks.suites.toy import SETTINGS, TASKS, cache_folder

COPY = "copied"  # the name under which a copy of the toy suite is registered
NAMES = tuple(name for name, _ in TASKS)


@functools.cache
def scratch() -> Path:
    """A folder for this session, removed at its end; built suites are cached there."""
    folder = Path(tempfile.mkdtemp(prefix="mergecal-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["MERGECAL_CACHE"] = str(folder / "cache")
    datasets.config.HF_DATASETS_CACHE = folder / "datasets"  # not in the user's home
    return folder


@functools.cache
def toy_root() -> Path:
    """The toy suite's folder, built on the first call."""
    scratch()
    SUITES["toy"]()
    (root,) = cache_folder().iterdir()
    return root


def fresh() -> ClipSuite:
    """A toy suite that has loaded nothing yet."""
    toy_root()
    return SUITES["toy"]()


toy = functools.cache(fresh)  # one that tests share and leave as it is


def suite_at(root: Path, name: str = COPY) -> ClipSuite:
    """The toy suite's tasks over the files in another folder."""
    return folder_suite(root, name, "toy-ViT", TASKS, SETTINGS)


def copy_toy(folder: Path, monkeypatch) -> Path:
    """A copy of the toy suite's files, registered as the suite ``copied``."""
    root = folder / "suite"
    shutil.copytree(toy_root(), root)
    monkeypatch.setitem(SUITES, COPY, lambda: suite_at(root))
    return root


@functools.cache
def _smoke() -> tuple[Path, int]:
    results = scratch() / "smoke"
    return results, cli("run", "smoke", results=results)


def smoke_results(folder: Path) -> Path:
    """A copy of the results of ``run smoke`` on the toy suite, which ran once per session."""
    toy_root()
    results, code = _smoke()
    assert code == 0
    return Path(shutil.copytree(results, folder / "results"))


def cli(command: str, *arguments: str, results: Path) -> int:
    """The command line in this process; its exit code."""
    threads = ["--threads", "1"] if command == "run" else []
    return main([command, *threads, *arguments, "--results", str(results)])


def run_folder(results: Path, **wanted: object) -> Path:
    """The folder of the one complete run whose rows have these values."""
    found = []
    for path in sorted((results / "runs").glob("*/rows.csv")):
        first = read_rows(path).iloc[0]
        if all(first[key] == value for key, value in wanted.items()):
            found.append(path.parent)
    (folder,) = found
    return folder


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Rewrite ``model.safetensors`` after ``change`` has edited its dictionary in place."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"format": "pt"})


def edit_json(path: Path, change: Callable[[dict], object]) -> None:
    """Rewrite a JSON file after ``change`` has edited its content in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def truncate(path: Path) -> None:
    """Keep the first half of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def files_under(folder: Path) -> list[str]:
    """Every path below a folder, hidden ones too; empty if it does not exist."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def row(**values: object) -> dict[str, object]:
    """A row of plausible values, for tables and figures made by hand."""
    plain = {
        "run": "r", "suite": "toy", "backbone": "tiny", "merger": "average", "merger_args": "",
        "calibrator": "none", "calibrator_args": "", "n": 0, "split": "", "evaluated_on": "test",
        "seed": 0, "task": "", "metric": "accuracy", "block": "", "value": 0.0,
        "source": "measured",
    }  # fmt: skip
    assert list(plain) == COLUMNS
    return {**plain, **values}
