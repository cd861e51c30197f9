"""Derived seeds: one independent stream per purpose, so that adding a draw moves no other draw."""

from __future__ import annotations

import hashlib

import torch


def seed_for(seed: int, *purpose: str) -> int:
    """A 63-bit seed that depends on ``seed`` and on every word of ``purpose``."""
    text = "\x1f".join((str(seed), *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_for(seed: int, *purpose: str) -> torch.Generator:
    """A CPU generator on its own derived seed; drawing on the CPU keeps draws device-free."""
    return torch.Generator("cpu").manual_seed(seed_for(seed, *purpose))
