"""What to run: the spec of one run, its checks and its id."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from merging import CALIBRATORS, MERGERS
from merging.registry import unknown

from .records import ALL
from .references import REFERENCES


@dataclass(frozen=True)
class RunSpec:
    """One run. ``split`` feeds the calibrator, ``evaluate`` is the split that is scored.

    ``n`` is the number of calibration examples per task (``ALL``: the whole split). A ``repeat``
    above 0 is a timed repetition: the same run again, behind a warm-up.
    """

    suite: str
    merger: str
    calibrator: str = "none"
    n: int = 0
    split: str = "train"
    evaluate: str = "test"
    seed: int = 0
    measures: tuple[str, ...] = ("scores", "cost")
    repeat: int = 0

    def normalised(self) -> RunSpec:
        """The same run in one spelling: what its methods do not use is set to zero."""
        merger, calibrator = self.build_merger(), CALIBRATORS.build(self.calibrator)
        data = merger.needs_data or calibrator.needs_data
        draws = data or merger.draws or calibrator.draws
        if data and self.n < 1 and self.n != ALL:
            raise ValueError(
                f"{self.merger} + {self.calibrator} need calibration examples, got n={self.n}"
            )
        if data:
            self._check_split(calibrator, merger.needs_data)
        registry = REFERENCES if self.is_reference else MERGERS
        return dataclasses.replace(
            self,
            merger=registry.canonical(self.merger),
            calibrator=CALIBRATORS.canonical(self.calibrator),
            n=self.n if data else 0,
            split=self.split if data else "",
            seed=self.seed if draws else 0,
        )

    def _check_split(self, calibrator: Any, merger_reads: bool) -> None:
        if calibrator.transductive and self.split != self.evaluate:
            raise ValueError(
                f"{self.calibrator} is fitted to the very examples that are scored, as in its "
                f"authors' code; the run spec must say so with split={self.evaluate!r} (got "
                f"split={self.split!r}), and every table will; or choose protocol=matched"
            )
        asked = calibrator.transductive and not merger_reads
        if self.split in ("test", self.evaluate) and not asked:
            raise ValueError(
                f"calibration examples from the {self.split!r} split would be scored on that "
                "split or belong to a test set; choose split='train'"
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
        parts += [f"n={'all' if self.n == ALL else self.n}"] if self.n else []
        parts += [f"of the {self.split} split"] if self.split not in ("", "train") else []
        parts += [f"seed {self.seed}"] if self.split or self.build_merger().draws else []
        parts += [f"repeat {self.repeat}"] if self.repeat else []
        return " ".join(parts)


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
