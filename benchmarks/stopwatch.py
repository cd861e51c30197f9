"""Seconds, peak memory and energy of a block of code, on the device it runs on."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

from merging.timing import listening

from .energy import joules_meter


@dataclass
class Stopwatch:
    """Fills ``cost`` with what a ``with`` block took, by its name.

    ``paused`` returns seconds spent on loading so far; what passes inside the block is taken off
    and counted apart. Memory is the peak above the level at the start. Sections that the method
    marks (``merging.timing``) are listed by their names; they are parts of the whole.
    """

    name: str
    device: str
    paused: Callable[[], float] = lambda: 0.0
    cost: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> Stopwatch:
        _give_back()
        self._sampler = _PeakMemory()
        self._sampler.start()
        self._synchronise()
        if self.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(self.device)
            self._cuda = torch.cuda.memory_allocated(self.device)
        self._listening = listening(self._synchronise)
        self._sections = self._listening.__enter__()
        self._joules = joules_meter(self.device)
        self._paused, self._start = self.paused(), time.perf_counter()
        return self

    def __exit__(self, *error: Any) -> None:
        self._synchronise()
        spent, loading = time.perf_counter() - self._start, self.paused() - self._paused
        self._listening.__exit__(*error)
        if self._joules is not None:
            with contextlib.suppress(OSError):  # a counter that is not there any more
                self.cost[f"{self.name}_joules"] = self._joules()
        self.cost[f"{self.name}_seconds"] = spent - loading
        self.cost[f"{self.name}_loading_seconds"] = loading
        for section, seconds in self._sections.seconds.items():
            self.cost[f"{self.name}_{section}_seconds"] = seconds
        self.cost[f"{self.name}_rss_peak_bytes"] = float(self._sampler.stop())
        if self.device.startswith("cuda"):
            peak = torch.cuda.max_memory_allocated(self.device) - self._cuda
            self.cost[f"{self.name}_cuda_peak_bytes"] = float(peak)

    def _synchronise(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)


def _give_back() -> None:
    """Return freed memory to the system, so that using it again counts as a rise."""
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a libc other than glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)


class _PeakMemory(threading.Thread):
    """Samples resident memory every 20 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._process, self._stopped = psutil.Process(), threading.Event()
        self._first = self._peak = self._process.memory_info().rss

    def run(self) -> None:
        """Sample until stopped."""
        while not self._stopped.wait(0.02):
            self._peak = max(self._peak, self._process.memory_info().rss)

    def stop(self) -> int:
        """End sampling; bytes by which the peak exceeded the start."""
        self._stopped.set()
        self.join()
        return max(self._peak, self._process.memory_info().rss) - self._first
