"""Command line: ``python -m benchmarks list | run SWEEP | report``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from .records import RESULTS

log = logging.getLogger("benchmarks")


class Refused(Exception):
    """A request that cannot be carried out; its text is for the user."""


@contextlib.contextmanager
def doors() -> Iterator[None]:
    """Turn what the checks before any work raise into a refusal; later errors stay errors."""
    try:
        yield
    except (KeyError, ValueError, OSError) as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        raise Refused(str(text)) from error


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 all well, 1 a run failed, 2 the request cannot be carried out."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    for noisy in ("httpx", "datasets", "evaluate", "matplotlib", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    options = _parser().parse_args(arguments)
    try:
        return options.do(options)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _cores() -> int:
    # what this process may use, which in a container is less than what the machine has
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="every suite, method with its fields, sweep")
    listing.set_defaults(do=_list)
    run = commands.add_parser("run", help="run what is missing of a sweep, then report it")
    run.add_argument("sweep")
    run.add_argument("--suite", help="default: the sweep's own")
    run.add_argument("--n", type=int, help="calibration examples per task")
    run.add_argument("--seeds", type=int, help="number of calibration seeds, from 0")
    run.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: cpu)")
    run.add_argument("--threads", type=int, default=_cores(), help="default: all cores")
    run.add_argument("--only", action="append", default=[], metavar="KEY=VALUE")
    run.add_argument("--dry-run", action="store_true", help="print the runs and stop")
    run.add_argument("--force", action="store_true", help="run again what is complete")
    run.set_defaults(do=_run)
    report = commands.add_parser("report", help="tables and figures from complete runs alone")
    report.add_argument("sweep", nargs="?", help="default: every sweep that was run")
    report.set_defaults(do=_report)
    publish = commands.add_parser("publish", help="copy the report to results/embedded")
    publish.set_defaults(do=_publish)
    for command in (run, report, publish):
        command.add_argument("--results", type=Path, default=RESULTS)
    return parser


def _list(_: argparse.Namespace) -> int:
    from merging import CALIBRATORS, MERGERS

    from .measures import MEASURES
    from .metrics import METRICS
    from .suites import SUITES
    from .sweeps import SWEEPS

    for registry in (MERGERS, CALIBRATORS):
        print(f"{registry.kind}s:")
        for name, cls in sorted(registry.items()):
            defaults = ", ".join(f"{f.name}={f.default}" for f in dataclasses.fields(cls))
            print(f"  {name:<18}{cls.title:<18}{cls.paper or '-':<18}{defaults}")
            if cls.reconstructed:
                print(f"  {'':<18}reconstructed: {cls.reconstructed}")
    for title, table in (("suites", SUITES), ("measures", MEASURES), ("metrics", METRICS)):
        print(f"{title}: {', '.join(sorted(table))}")
    print("sweeps:")
    for name, sweep in SWEEPS.items():
        print(f"  {name:<18}{sweep.title} (default suite: {sweep.defaults.suite})")
    return 0


def _resolved(options: argparse.Namespace, sweep: object) -> object:
    given = {key: getattr(options, key) for key in ("suite", "n", "seeds")}
    chosen = dataclasses.replace(
        sweep.defaults, **{key: value for key, value in given.items() if value is not None}
    )
    if chosen.n < 1 or chosen.seeds < 1:
        raise ValueError(f"--n and --seeds are at least 1, got {chosen.n} and {chosen.seeds}")
    return chosen


def _run(options: argparse.Namespace) -> int:
    import torch

    from .driver import Session
    from .progress import quiet_libraries
    from .report import remember, report_sweep
    from .spec import selected
    from .suites import suite_named
    from .sweeps import sweep_named

    start = time.perf_counter()
    with doors():
        _check_machine(options)
        sweep = sweep_named(options.sweep)
        chosen = _resolved(options, sweep)
        suite = suite_named(chosen.suite, options.device)
        specs = selected(sweep.specs(suite, chosen), options.only)
        session = Session(suite, options.results / "runs")
        missing = [spec for spec in specs if options.force or not session.complete(spec)]
    log.info(
        "%s on %s: %d runs, %d complete, %d to run (%d threads)",
        options.sweep, suite.name, len(specs), len(specs) - len(missing), len(missing),
        torch.get_num_threads(),
    )  # fmt: skip
    if options.dry_run:
        for spec in specs:
            print(f"{spec.id}  {'to run' if spec in missing else 'complete'}  {spec.title()}")
        return 0
    if missing:
        quiet_libraries()
        with doors():
            scored = {spec.evaluate for spec in missing}
            suite.check(sorted(scored | {spec.split for spec in missing} - {""}), sorted(scored))
            largest = max(missing, key=lambda spec: spec.n)
            for task in suite.tasks if largest.n else ():
                suite.calibration_indices(task, largest.n, largest.split, 0)  # too few: raises
    else:
        log.info("nothing to compute: all rows are in %s", options.results / "runs")
    with doors():
        remember(options.sweep, chosen, options.results)
    outcome = session.run_all(specs, force=options.force)
    written = report_sweep(options.sweep, suite, chosen, options.results)
    for path in written:
        log.info("wrote %s", path)
    log.info("%d run, %d skipped, %d failed in %.0f s", len(outcome.done), len(outcome.skipped),
             len(outcome.failed), time.perf_counter() - start)  # fmt: skip
    if outcome.failed:
        log.error("failed: %s (see error.txt in %s)", ", ".join(outcome.failed),
                  options.results / "runs")  # fmt: skip
    return 1 if outcome.failed else 0


def _check_machine(options: argparse.Namespace) -> None:
    """Set threads; ValueError for a device or number of threads that cannot be had."""
    import torch

    if options.threads < 1:
        raise ValueError(f"--threads is at least 1, got {options.threads}")
    kind = options.device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"unknown --device {options.device!r} (known: cpu, cuda, cuda:N)")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {options.device}: this machine or torch build has no CUDA")
    torch.set_num_threads(options.threads)


def _report(options: argparse.Namespace) -> int:
    from .report import remembered, report_sweep
    from .suites import suite_named
    from .sweeps import sweep_named

    written: list[Path] = []
    with doors():
        if options.sweep:
            sweep_named(options.sweep)
        for name, chosen in remembered(options.results):
            if options.sweep in (None, name):
                suite = suite_named(chosen.suite)
                written += report_sweep(name, suite, chosen, options.results)
        if not written:
            what = f"of {options.sweep} " if options.sweep else ""
            raise ValueError(f"{options.results / 'runs'} holds no complete run {what}; use `run`")
    for path in dict.fromkeys(written):
        log.info("wrote %s", path)
    return 0


def _publish(options: argparse.Namespace) -> int:
    from .publish import publish

    with doors():
        written = publish(options.results)
    for path in written:
        log.info("wrote %s", path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
