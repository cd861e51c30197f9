"""No calibration: the merged model as it is, the control of every comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..api import CALIBRATORS, Merged, Pool


@CALIBRATORS.register("none", title="-")
@dataclass(frozen=True)
class NoCalibration:
    """A copy of the merged model."""

    needs_data: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    transductive: ClassVar[bool] = False

    def __call__(self, merged: Merged, pool: Pool) -> Merged:
        """The merged model, copied so that nobody edits it through the result."""
        return merged.copy()
