"""Command line: python -m benchmarks.embedded.build {sources,data,pretrain,...} --work DIR."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .common import TASKS

STAGES = ("sources", "data", "pretrain", "finetune", "ship")
OUTPUT = Path(__file__).resolve().parents[1] / "mini-clip8"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embedded.build")
    parser.add_argument("stage", choices=(*STAGES, "all"))
    parser.add_argument("--work", type=Path, required=True, help="work folder (several GB)")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="where `ship` writes the suite")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help="experts to fine-tune")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Run one stage or all of them; stages import late so that each needs only its packages."""
    options = _parse()
    torch.set_num_threads(options.threads)
    for stage in STAGES if options.stage == "all" else (options.stage,):
        if stage == "sources":
            from .sources import fetch_all

            fetch_all(options.work)
        elif stage == "data":
            from .data import build_all

            build_all(options.work)
        elif stage == "pretrain":
            from .pretrain import pretrain

            pretrain(options.work)
        elif stage == "finetune":
            from .finetune import finetune

            finetune(options.work, tuple(options.tasks))
        else:
            from .ship import ship

            ship(options.work, options.out)


if __name__ == "__main__":
    main()
