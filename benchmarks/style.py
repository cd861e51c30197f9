"""How figures look. Colours are Okabe and Ito's, readable when colour-blind.

A calibrator has the same colour and marker in every figure.
"""

from __future__ import annotations

from .tables import Words

COLOURS = ("#999999", "#56B4E9", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#F0E442")
HATCHES = ("", "//", "", "xx", "", "..", "", "\\\\")
STYLE = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "savefig.dpi": 200,
    "svg.hashsalt": "mergecal",
    "hatch.linewidth": 0.6,
    "figure.constrained_layout.use": True,
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def place(calibrator: str, words: Words) -> int:
    """The calibrator's place in the fixed order; no calibration comes first."""
    return words.calibrators.index(calibrator) if calibrator in words.calibrators else 0


def colour(calibrator: str, words: Words) -> str:
    """The calibrator's colour; no calibration is grey."""
    return COLOURS[place(calibrator, words) % len(COLOURS)]


def marker(calibrator: str, words: Words) -> str:
    """The calibrator's marker."""
    return MARKERS[place(calibrator, words) % len(MARKERS)]
