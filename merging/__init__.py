"""Model merging and post-merging calibration behind one thin API."""

from .api import CALIBRATORS, MERGERS, Merged, Pool, calibrate, merge

# The two packages register their methods when imported, so they come after the registries.
from . import calibrators, mergers  # isort: skip

__all__ = [
    "CALIBRATORS",
    "MERGERS",
    "Merged",
    "Pool",
    "calibrate",
    "calibrators",
    "merge",
    "mergers",
]
