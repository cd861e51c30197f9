"""mini-clip8: eight real image tasks over one small CLIP, shipped in the repository."""

from __future__ import annotations

from pathlib import Path

from .base import SUITES
from .clip import folder_suite

ROOT = Path(__file__).resolve().parent.parent / "embedded" / "mini-clip8"

TASKS = (
    ("fashion", "Fashion"),
    ("animals", "Animals"),
    ("digits", "Digits"),
    ("satellite", "Satellite"),
    ("emoji", "Emoji"),
    ("flags", "Flags"),
    ("letters", "Letters"),
    ("kana", "Kana"),
)

# Best mean validation accuracy over n = 8 and n = 64 in the grids of `make tune-featcal` and
# `make tune-surgery`
SETTINGS = {
    "featcal": "featcal:ridge=0.02,rho=8.0,alpha=0.5",
    "surgery": "surgery:rank=128,rate=0.0003",
    "probsurgery": "probsurgery:rate=0.0003",
    "ridge_surgery": "ridge_surgery:ridge=10.0",
}

SUITES["mini-clip8"] = lambda: folder_suite(
    ROOT, "mini-clip8", "mini-ViT-8", TASKS, SETTINGS, shown="kana"
)
