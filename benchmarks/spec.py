"""What to run: the spec of one run and its id, and the sweeps, in plain Python."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from merging import CALIBRATORS, MERGERS
from merging.registry import unknown

from .references import REFERENCES
from .suites import Suite

MAIN_MERGER = "task_arithmetic"  # the merged model on which the papers compare calibrators
FEW = 8  # the smallest calibration set of FeatCal's published curve


@dataclass(frozen=True)
class RunSpec:
    """One run. ``split`` feeds the calibrator, ``evaluate`` is the split that is scored."""

    suite: str
    merger: str
    calibrator: str = "none"
    n: int = 0
    split: str = "train"
    evaluate: str = "test"
    seed: int = 0
    measures: tuple[str, ...] = ("scores", "cost")

    def normalised(self) -> RunSpec:
        """The same run in one spelling: what its methods do not use is set to zero."""
        merger, calibrator = self.build_merger(), CALIBRATORS.build(self.calibrator)
        data = merger.needs_data or calibrator.needs_data
        draws = data or merger.draws or calibrator.draws
        if data and self.n < 1:
            raise ValueError(
                f"{self.merger} + {self.calibrator} need calibration examples, got n={self.n}"
            )
        if data and self.split in ("test", self.evaluate):
            raise ValueError(
                f"calibration examples from the {self.split!r} split would be scored on that "
                "split or belong to a test set; choose split='train'"
            )
        registry = REFERENCES if self.is_reference else MERGERS
        return dataclasses.replace(
            self,
            merger=registry.canonical(self.merger),
            calibrator=CALIBRATORS.canonical(self.calibrator),
            n=self.n if data else 0,
            split=self.split if data else "",
            seed=self.seed if draws else 0,
        )

    @property
    def is_reference(self) -> bool:
        """Whether the merger is a model to compare with rather than a method."""
        return self.merger.partition(":")[0] in REFERENCES

    def build_merger(self) -> Any:
        """The merger, or the reference model of that name."""
        if self.is_reference:
            return REFERENCES.build(self.merger)
        return MERGERS.build(self.merger)

    def resolved(self) -> dict[str, Any]:
        """The spec with every hyperparameter in force, defaults too, as plain data."""
        merger, calibrator = self.build_merger(), CALIBRATORS.build(self.calibrator)
        return {
            **asdict(self),
            "merger": {"name": merger.name, **asdict(merger)},
            "calibrator": {"name": calibrator.name, **asdict(calibrator)},
        }

    @property
    def id(self) -> str:
        """First 12 hex digits of the SHA-256 of the resolved spec: a changed default is new."""
        text = json.dumps(self.resolved(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def title(self) -> str:
        """One line for people."""
        parts = [self.merger] + ([f"+ {self.calibrator}"] if self.calibrator != "none" else [])
        parts += [f"n={self.n}"] if self.n else []
        parts += [f"seed {self.seed}"] if self.split or self.build_merger().draws else []
        return " ".join(parts)


@dataclass(frozen=True)
class Options:
    """What the command line can vary about a sweep."""

    suite: str
    n: int
    seeds: int


@dataclass(frozen=True)
class Sweep:
    """A named set of runs with the tables and figures made from them."""

    title: str
    plan: Callable[[Suite, Options], Iterator[RunSpec]]
    tables: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    defaults: Options = Options("mini-clip8", 256, 3)

    def specs(self, suite: Suite, options: Options) -> list[RunSpec]:
        """Normalised runs, each once, those that share a merged model side by side."""
        specs = dict.fromkeys(spec.normalised() for spec in self.plan(suite, options))
        order = {spec.merger: rank for rank, spec in reversed(list(enumerate(specs)))}
        return sorted(specs, key=lambda spec: (order[spec.merger], spec.seed))


def _references(suite: Suite, evaluate: str = "test") -> Iterator[RunSpec]:
    for merger in ("base", "expert"):
        yield RunSpec(suite.name, merger, evaluate=evaluate)


def published_settings() -> list[str]:
    """Every calibrator with its defaults, which are the published ones."""
    return list(CALIBRATORS)


def chosen_settings(suite: Suite) -> list[str]:
    """Every calibrator as chosen on the suite's validation splits; without a choice, defaults."""
    return [suite.settings.get(name, name) for name in CALIBRATORS]


def _table_clip(suite: Suite, options: Options) -> Iterator[RunSpec]:
    yield from _references(suite)
    for task in suite.tasks:
        yield RunSpec(suite.name, f"cross_expert:expert={task.name}")
    for seed in range(options.seeds):
        for merger in MERGERS:
            for calibrator in chosen_settings(suite):
                yield RunSpec(suite.name, merger, calibrator, options.n, seed=seed)
        for calibrator in published_settings():
            yield RunSpec(suite.name, MAIN_MERGER, calibrator, options.n, seed=seed)
        for calibrator in chosen_settings(suite):
            yield RunSpec(suite.name, MAIN_MERGER, calibrator, FEW, seed=seed)


def _smoke(suite: Suite, options: Options) -> Iterator[RunSpec]:
    yield from _references(suite)
    for calibrator in chosen_settings(suite):
        for n in (4, options.n):
            yield RunSpec(suite.name, MAIN_MERGER, calibrator, n)


def _tune_featcal(suite: Suite, options: Options) -> Iterator[RunSpec]:
    """The search behind a suite's FeatCal settings: validation scores only, never test.

    The setting with the best mean over both sizes is the one to take.
    """
    yield from _references(suite, "validation")
    for scale in (0.1, 0.2, 0.3, 0.4, 0.5):
        yield RunSpec(suite.name, f"{MAIN_MERGER}:scale={scale}", evaluate="validation")
    for n in (FEW, options.n):
        for ridge, rho, alpha in itertools.product(
            (0.01, 0.02, 0.05, 0.1), (2.2, 5.0, 8.0, 10.0), (0.25, 0.5, 0.75)
        ):
            calibrator = f"featcal:ridge={ridge},rho={rho},alpha={alpha}"
            yield RunSpec(suite.name, MAIN_MERGER, calibrator, n, evaluate="validation")


SWEEPS = {
    "table-clip": Sweep(
        "Every merger with every calibrator on a CLIP suite",
        _table_clip,
        tables=("main", "cross_experts"),
        figures=("accuracy", "cross_experts"),
    ),
    "smoke": Sweep(
        "A few runs on the toy suite",
        _smoke,
        tables=("main",),
        figures=("accuracy",),
        defaults=Options("toy", 32, 1),
    ),
    "tune-featcal": Sweep(
        "FeatCal's hyperparameters on the validation splits",
        _tune_featcal,
        tables=("main",),
        defaults=Options("mini-clip8", 64, 1),
    ),
}


def sweep_named(name: str) -> Sweep:
    """A sweep by name; KeyError names the nearest ones."""
    if name not in SWEEPS:
        raise KeyError(unknown("sweep", name, SWEEPS))
    return SWEEPS[name]


def selected(specs: list[RunSpec], only: list[str]) -> list[RunSpec]:
    """The specs that match every ``key=value``; a method matches by name or by full spec."""
    for condition in only:
        key, equals, value = condition.partition("=")
        known = [f.name for f in dataclasses.fields(RunSpec)]
        if not equals or key not in known:
            raise ValueError(
                f"--only {condition!r}: expected key=value with a key of: {', '.join(known)}"
            )
        values = {str(getattr(spec, key)) for spec in specs}
        names = values | {text.partition(":")[0] for text in values}
        if value not in names:
            raise ValueError(f"--only {condition!r} matches no run; {unknown(key, value, names)}")
        specs = [
            spec
            for spec in specs
            if value in (str(getattr(spec, key)), str(getattr(spec, key)).partition(":")[0])
        ]
    return specs
