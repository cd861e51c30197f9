"""Runs specs: suite → pool → merger → calibrator → measures → rows, each run whole or absent.

A run's folder is ``runs/<id>``. ``rows.csv`` exists there exactly if the run is complete;
``run.json`` beside it says what made it; a run that failed leaves ``error.txt`` instead.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from merging import CALIBRATORS, Merged, Pool, calibrate, merge
from merging.registry import arguments_of

from .measures import MEASURES, Trial
from .progress import progress
from .records import Row, provenance, read_record, write_json, write_rows, write_text
from .spec import RunSpec
from .stopwatch import Stopwatch
from .suites import Suite

log = logging.getLogger(__name__)
SCORING = ("cache", "checkpoints", "drift", "energy", "images", "measures", "metrics", "prompts",
           "references", "stopwatch")  # fmt: skip


@dataclass
class Outcome:
    """What became of the runs of a sweep."""

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Session:
    """Runs on one suite; what neighbouring runs share (suite, pool, merged model) is kept."""

    suite: Suite
    runs: Path
    _pools: dict[tuple[int, str, int], Pool] = field(default_factory=dict)
    _decoding: dict[tuple[int, str, int], float] = field(default_factory=dict)
    _merged: tuple[object, Merged, dict[str, float]] | None = None
    _warm: set[str] = field(default_factory=set)

    @cached_property
    def fingerprint(self) -> str:
        """Hash over the suite's files."""
        return self.suite.fingerprint()

    @cached_property
    def provenance(self) -> dict:
        """Commit, packages and machine, read once."""
        device = self.suite.device
        gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else "none"
        return {**provenance(), "threads": torch.get_num_threads(), "device": device, "gpu": gpu}

    def complete(self, spec: RunSpec) -> bool:
        """Whether the run's rows exist and were made from the suite's present files."""
        folder = self.runs / spec.id
        if not (folder / "rows.csv").is_file():
            return False
        try:
            record = read_record(folder)
        except ValueError:
            return False
        return record["files"] == self.fingerprint and record.get("code") == code_of(spec)

    def run_all(self, specs: list[RunSpec], *, force: bool) -> Outcome:
        """Run what is missing; a failure is recorded and the others go on."""
        outcome = Outcome()
        todo = [spec for spec in specs if force or not self.complete(spec)]
        outcome.skipped = [spec.id for spec in specs if spec not in todo]
        for position, spec in enumerate(progress(todo, self.suite.name), 1):
            prefix = f"[{position}/{len(todo)}] {spec.id} {spec.title()}"
            try:
                summary = self.run(spec)
            except Exception as error:
                outcome.failed.append(spec.id)
                folder = self.runs / spec.id
                if force:  # what was there is not what was asked for
                    (folder / "rows.csv").unlink(missing_ok=True)
                write_text(folder / "error.txt", f"{spec.title()}\n\n{traceback.format_exc()}")
                log.error("%s FAILED: %s (%s)", prefix, error, folder / "error.txt")
            else:
                outcome.done.append(spec.id)
                log.info("%s: %s", prefix, summary)
        return outcome

    def run(self, spec: RunSpec) -> str:
        """One run, written to its folder; returns a line about its result."""
        start = datetime.datetime.now(datetime.timezone.utc)
        clock = time.perf_counter()
        folder = self.runs / spec.id
        pool = self.pool(spec)
        trial = self.trial(spec, pool)
        rows = [
            self.row(spec, *value)
            for measure in spec.measures
            for value in MEASURES[measure](trial)
        ]
        self.runs.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=self.runs, prefix=f".{spec.id}-"))
        aside.chmod(0o755)
        try:
            write_json(
                aside / "run.json", self.record(spec, pool, start, time.perf_counter() - clock)
            )
            write_rows(aside / "rows.csv", rows)
            shutil.rmtree(folder, ignore_errors=True)
            try:
                aside.rename(folder)  # the whole run at once
            except OSError:
                if not (folder / "rows.csv").is_file():  # else a peer finished the same run
                    raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return self.summary(rows, trial.cost)

    def record(
        self, spec: RunSpec, pool: Pool, start: datetime.datetime, seconds: float
    ) -> dict[str, object]:
        """What made a run: its spec, files, code, machine, and oddities of its pool."""
        return {
            "spec": spec.resolved(),
            "files": self.fingerprint,
            "code": code_of(spec),
            "notes": list(pool.check()),
            "start": start.isoformat(timespec="seconds"),
            "wall_seconds": round(seconds, 3),
            **self.provenance,
        }

    def pool(self, spec: RunSpec) -> Pool:
        """The pool of a run; the last few are kept, since sweeps come back to their seeds."""
        key = (spec.n, spec.split, spec.seed)
        if key not in self._pools:
            while len(self._pools) >= 4:
                self._pools.pop(next(iter(self._pools)))
            before = self.suite.decode_seconds
            self._pools[key] = self.suite.pool(spec.n, spec.split, spec.seed)
            self._decoding[key] = self.suite.decode_seconds - before
        return self._pools[key]

    def trial(self, spec: RunSpec, pool: Pool) -> Trial:
        """The finished model, and the cost of its merger and calibrator."""
        pool.check()  # reads every expert once, so that loading is not timed below
        merger, calibrator = spec.build_merger(), CALIBRATORS.build(spec.calibrator)
        if spec.is_reference:
            return Trial(self.suite, merger(pool), spec.evaluate, {})
        key = (merger, spec.seed if merger.draws or merger.needs_data else 0,
               (spec.n, spec.split) if merger.needs_data else 0)  # fmt: skip
        if self._merged is None or self._merged[0] != key:
            with self._timed("merge") as watch:
                merged = merge(merger, pool)
            self._merged = (key, merged, watch.cost)
        _, merged, merge_cost = self._merged
        if spec.repeat:
            self._warm_up(spec, merged)
        with self._timed("calibrate") as watch:
            calibrated = calibrate(calibrator, merged, pool)
        cost = {
            **merge_cost,
            **watch.cost,
            "load_seconds": sum(self.suite.experts().latest.values()),
        }
        if spec.n:
            cost["decode_seconds"] = self._decoding[spec.n, spec.split, spec.seed]
        return Trial(self.suite, calibrated, spec.evaluate, cost, merged)

    def _warm_up(self, spec: RunSpec, merged: Merged) -> None:
        """Run a calibrator once on two examples per task before it is timed for the first time."""
        name = CALIBRATORS.build(spec.calibrator).name
        if name not in self._warm:
            few = spec.n if spec.n in (0, 1) else 2
            calibrate(spec.calibrator, merged, self.suite.pool(few, spec.split, spec.seed))
            self._warm.add(name)

    def _timed(self, name: str) -> Stopwatch:
        experts = self.suite.experts()
        return Stopwatch(name, self.suite.device, lambda: experts.seconds)

    def row(self, spec: RunSpec, task: str, metric: str, block: str, value: float) -> Row:
        """A value of this run as a row."""
        merger, calibrator = spec.build_merger(), CALIBRATORS.build(spec.calibrator)
        return Row(
            run=spec.id,
            suite=self.suite.name,
            backbone=self.suite.backbone,
            merger=merger.name,
            merger_args=arguments_of(merger),
            calibrator=calibrator.name,
            calibrator_args=arguments_of(calibrator),
            n=spec.n,
            split=spec.split,
            evaluated_on=spec.evaluate,
            seed=spec.seed,
            task=task,
            metric=metric,
            block=block,
            value=value,
        )

    def summary(self, rows: list[Row], cost: dict[str, float]) -> str:
        """Mean of the tasks' first metrics, and the method's time."""
        main = {task.name: task.metrics[0] for task in self.suite.tasks}
        values = [row.value for row in rows if main.get(row.task) == row.metric]
        text = f"mean {100 * sum(values) / len(values):.1f} %" if values else f"{len(rows)} rows"
        seconds = sum(cost.get(f"{part}_seconds", 0.0) for part in ("merge", "calibrate"))
        return text + (f", method {seconds:.1f} s" if cost else "")


def code_of(spec: RunSpec) -> str:
    """A hash over the source of what makes a run's numbers: an edited method is another run.

    That is the core, how suites load and score, and the files of the run's own two methods with
    those they import; other methods may come and go.
    """
    methods = [sys.modules[type(m).__module__]
               for m in (spec.build_merger(), CALIBRATORS.build(spec.calibrator))]  # fmt: skip
    names = {getattr(value, "__module__", None) for m in methods for value in vars(m).values()}
    imported = [sys.modules[name] for name in names if str(name).startswith("merging.")]
    files = {Path(module.__file__) for module in (*methods, *imported)}
    here = Path(__file__).resolve().parent
    files |= set((here.parent / "merging").glob("*.py")) | set((here / "suites").glob("*.py"))
    files |= {here / f"{name}.py" for name in SCORING}
    digest = hashlib.sha256()
    for path in sorted({path.resolve() for path in files}):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def complete_runs(runs: Path, ids: list[str] | None = None) -> Iterator[Path]:
    """Folders of complete runs, all of them or those with the given ids."""
    folders = (runs / run for run in ids) if ids is not None else sorted(runs.glob("[!.]*"))
    return (folder for folder in folders if (folder / "rows.csv").is_file())
