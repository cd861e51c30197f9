"""Energy counters, where this machine lets them be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

POWERCAP = Path("/sys/class/powercap")


def joules_meter(device: str, powercap: Path = POWERCAP) -> Callable[[], float] | None:
    """A function that returns joules used since it was made, or None if nothing can be read.

    On a GPU its own counter (NVML, if the package nvidia-ml-py is there), else the processor
    packages' counters (RAPL), which often only root may read.
    """
    return _gpu(device) if device.startswith("cuda") else _cpu(powercap)


def _cpu(powercap: Path) -> Callable[[], float] | None:
    zones = sorted(powercap.glob("intel-rapl:[0-9]*"))
    try:  # packages, neither their parts nor the platform that contains them
        zones = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
        spans = [int((zone / "max_energy_range_uj").read_text()) for zone in zones]
        last = [int((zone / "energy_uj").read_text()) for zone in zones]
    except (OSError, ValueError):
        return None
    if not zones:
        return None
    used = 0

    def joules() -> float:
        nonlocal used
        for place, (zone, span) in enumerate(zip(zones, spans, strict=True)):
            now = int((zone / "energy_uj").read_text())
            used += (now - last[place]) % (span + 1)  # the counter starts again at its range
            last[place] = now
        return used / 1e6

    return joules


def _gpu(device: str) -> Callable[[], float] | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        # by its own name: NVML does not know which devices CUDA was told to see
        uuid = torch.cuda.get_device_properties(device).uuid
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        start = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # no package, no driver, or a device without a counter
        return None
    return lambda: (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - start) / 1e3
