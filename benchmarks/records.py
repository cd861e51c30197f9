"""The row, reading and writing rows, and where they came from. No torch in here."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import TextIO

import pandas as pd

RESULTS = Path("results")
ALL = -1  # as a number of calibration examples: every example of the split
PACKAGES = (
    "torch", "torchvision", "open_clip_torch", "transformers", "datasets", "evaluate",
    "safetensors", "numpy", "pandas", "scikit-learn", "matplotlib",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One measured value. Fractions lie in [0, 1], times in seconds, memory in bytes.

    ``split`` is where calibration examples come from ("" if none are used), ``evaluated_on`` the
    split that the value was measured on; ``task`` is "" for values of the whole run.
    """

    run: str
    suite: str
    backbone: str
    merger: str
    merger_args: str
    calibrator: str
    calibrator_args: str
    n: int
    split: str
    evaluated_on: str
    seed: int
    task: str
    metric: str
    block: str
    value: float
    source: str = "measured"


COLUMNS = [f.name for f in fields(Row)]
TEXT = {name: str for name in COLUMNS if name not in ("n", "seed", "value")}


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as CSV under a temporary name, then rename: the file is whole or absent."""
    with _aside(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(tuple(asdict(row).values()) for row in rows)


def read_rows(path: Path) -> pd.DataFrame:
    """Rows of one CSV file; ValueError if a column is missing or a value is not a number."""
    try:
        frame = pd.read_csv(path, dtype=TEXT, keep_default_na=False)
        for name in {"n", "seed", "value"} & set(frame.columns):
            frame[name] = pd.to_numeric(frame[name])
    except (ValueError, pd.errors.ParserError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise ValueError(f"{path} lacks the columns {missing}; it has {list(frame.columns)}")
    return frame[COLUMNS]


def write_text(path: Path, text: str) -> None:
    """Write a text file aside, then rename it."""
    with _aside(path) as file:
        file.write(text)


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[TextIO]:
    """An open text file beside ``path`` that takes its place on success and vanishes on error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp's own mode is private
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_record(folder: Path) -> dict:
    """A run's ``run.json``; ValueError names the file if it is missing or damaged."""
    path = folder / "run.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}; run it again with --force") from error
    if not isinstance(record, dict) or "files" not in record:
        raise ValueError(f"{path} is no record of a run; run it again with --force")
    return record


def provenance() -> dict:
    """The code's commit, the packages and the machine, as plain data."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "dirty": bool(_git("status", "--porcelain", "--", ".", ":!results")),
        "python": platform.python_version(),
        "packages": versions,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
    }


def _git(*arguments: str) -> str:
    here = Path(__file__).resolve().parent.parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write_json(path: Path, content: dict) -> None:
    """Write JSON aside, then rename it."""
    write_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")
