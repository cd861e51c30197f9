"""The sweeps: which runs a table or figure is made of, in plain Python."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from merging import CALIBRATORS, MERGERS
from merging.registry import unknown

from .records import ALL
from .spec import RunSpec
from .suites import Suite

MAIN_MERGER = "task_arithmetic"  # the merged model on which the papers compare calibrators
FEW = 8  # the smallest calibration set of FeatCal's published curve
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
STUDIED = ("scores", "cost", "drift", "feature_drift")


@dataclass(frozen=True)
class Options:
    """What the command line can vary about a sweep; the run-time study repeats ``seeds`` times."""

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


def stem_of(name: str, options: Options) -> str:
    """The sweep's part of file names; sizes and seeds are in it if they are not the default."""
    default = sweep_named(name).defaults
    parts = [name, options.suite]
    parts += [f"n{options.n}"] if options.n != default.n else []
    parts += [f"seeds{options.seeds}"] if options.seeds != default.seeds else []
    return "_".join(parts)


def published_settings() -> list[str]:
    """Every calibrator with its defaults, which are the published ones."""
    return list(CALIBRATORS)


def chosen_settings(suite: Suite) -> list[str]:
    """Every calibrator as chosen on the suite's validation splits; without a choice, defaults."""
    return [suite.settings.get(name, name) for name in CALIBRATORS]


def _with(specs: Iterable[str], **fields: object) -> Iterator[str]:
    """Those calibrators that have all these fields, with these values."""
    for spec in specs:
        method = CALIBRATORS.build(spec)
        if set(fields) <= {f.name for f in dataclasses.fields(method)}:
            yield CALIBRATORS.spell(dataclasses.replace(method, **fields))


def _references(suite: Suite, evaluate: str = "test") -> Iterator[RunSpec]:
    for merger in ("base", "expert"):
        yield RunSpec(suite.name, merger, evaluate=evaluate)


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


def _sample_efficiency(suite: Suite, options: Options) -> Iterator[RunSpec]:
    yield from _references(suite)
    for seed in range(options.seeds):
        for n in sorted({n for n in SIZES if n < options.n} | {options.n}):
            for calibrator in chosen_settings(suite):
                yield RunSpec(suite.name, MAIN_MERGER, calibrator, n, seed=seed)


def _drift(suite: Suite, options: Options) -> Iterator[RunSpec]:
    for merger in ("base", "expert"):
        yield RunSpec(suite.name, merger, measures=STUDIED)
    for seed in range(options.seeds):
        # one panel of features is enough, and it is of the first seed
        measures = (*STUDIED, "tsne") if seed == 0 else STUDIED
        for calibrator in chosen_settings(suite):
            yield RunSpec(suite.name, MAIN_MERGER, calibrator, options.n, seed=seed,
                          measures=STUDIED if calibrator == "none" else measures)  # fmt: skip
    for calibrator in chosen_settings(suite):  # more runs for the correlation with accuracy
        yield RunSpec(suite.name, MAIN_MERGER, calibrator, FEW, measures=STUDIED)
        for merger in MERGERS:
            if merger != MAIN_MERGER:
                yield RunSpec(suite.name, merger, calibrator, options.n, measures=STUDIED)


def _runtime(suite: Suite, options: Options) -> Iterator[RunSpec]:
    """Repeats lie outside, so that a change of the machine's speed meets all methods alike."""
    measures = ("scores", "cost", "feature_drift")
    chosen = chosen_settings(suite)
    for repeat in range(1, options.seeds + 1):
        for calibrator in (*chosen, *_with(chosen, recompute=True)):
            yield RunSpec(suite.name, MAIN_MERGER, calibrator, options.n, measures=measures,
                          repeat=repeat)  # fmt: skip


def _native(suite: Suite, options: Options) -> Iterator[RunSpec]:
    """Transductive calibrators beside their matched form; test images are read on purpose."""
    yield from _references(suite)
    for seed in range(options.seeds):
        for calibrator in chosen_settings(suite):
            yield RunSpec(suite.name, MAIN_MERGER, calibrator, options.n, seed=seed)
        for calibrator in _with(published_settings(), protocol="native"):
            yield RunSpec(suite.name, MAIN_MERGER, calibrator, ALL, "test", seed=seed)


def _smoke(suite: Suite, options: Options) -> Iterator[RunSpec]:
    yield from _references(suite)
    for seed in range(options.seeds):
        for calibrator in chosen_settings(suite):
            for n in (4, options.n):
                yield RunSpec(suite.name, MAIN_MERGER, calibrator, n, seed=seed)


def _tuning(suite: Suite, options: Options, calibrators: Iterable[str]) -> Iterator[RunSpec]:
    """Every setting at both sizes on validation splits: never test.

    The setting with the best mean over both sizes is the one to take.
    """
    for calibrator, n, seed in itertools.product(
        calibrators, (FEW, options.n), range(options.seeds)
    ):
        yield RunSpec(suite.name, MAIN_MERGER, calibrator, n, evaluate="validation", seed=seed)


def _tune_featcal(suite: Suite, options: Options) -> Iterator[RunSpec]:
    yield from _references(suite, "validation")
    for scale in (0.1, 0.2, 0.3, 0.4, 0.5):
        yield RunSpec(suite.name, f"{MAIN_MERGER}:scale={scale}", evaluate="validation")
    grid = itertools.product((0.01, 0.02, 0.05, 0.1), (2.2, 5.0, 8.0, 10.0), (0.25, 0.5, 0.75))
    yield from _tuning(suite, options, [f"featcal:ridge={r},rho={p},alpha={a}" for r, p, a in grid])


def _tune_surgery(suite: Suite, options: Options) -> Iterator[RunSpec]:
    yield from _references(suite, "validation")
    yield RunSpec(suite.name, MAIN_MERGER, evaluate="validation")
    grid = itertools.product((1e-4, 3e-4, 1e-3), ("false", "true"))
    training = [f"rate={rate},normalise={unit}" for rate, unit in grid]
    calibrators = [
        *(f"surgery:rank={r},{t}" for r, t in itertools.product((16, 64, 128), training)),
        *(f"probsurgery:hidden={h},{t}" for h, t in itertools.product((32, 128), training)),
        *(f"ridge_surgery:ridge={r}" for r in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
    ]
    yield from _tuning(suite, options, calibrators)


TUNING = Options("mini-clip8", 64, 1)

SWEEPS = {
    "table-clip": Sweep(
        "Every merger with every calibrator on a CLIP suite",
        _table_clip,
        tables=("main", "cross_experts"),
        figures=("accuracy", "cross_experts"),
    ),
    "sample-efficiency": Sweep(
        "Accuracy against the size of the calibration set",
        _sample_efficiency,
        tables=("sample_efficiency",),
        figures=("sample_efficiency",),
    ),
    "drift": Sweep(
        "Feature drift block by block, and its relation to accuracy",
        _drift,
        tables=("drift", "drift_blocks", "drift_correlation"),
        figures=("drift", "drift_parts", "features", "drift_accuracy"),
    ),
    "runtime": Sweep(
        "Accuracy against calibration time and memory, with and without cached features",
        _runtime,
        tables=("runtime",),
        figures=("runtime",),
        defaults=Options("mini-clip8", 256, 5),
    ),
    "native": Sweep(
        "Surgery and ProbSurgery fitted to the test images, as by their authors",
        _native,
        tables=("main",),
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
        defaults=TUNING,
    ),
    "tune-surgery": Sweep(
        "Hyperparameters of Surgery, ProbSurgery and ridge surgery on the validation splits",
        _tune_surgery,
        tables=("main",),
        defaults=TUNING,
    ),
}


def sweep_named(name: str) -> Sweep:
    """A sweep by name; KeyError names the nearest ones."""
    if name not in SWEEPS:
        raise KeyError(unknown("sweep", name, SWEEPS))
    return SWEEPS[name]
