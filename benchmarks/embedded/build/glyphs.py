"""Typefaces of the Debian font packages, rendered to white glyph sprites."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .common import Images
from .render import SPRITE, to_sprite

SUFFIXES = (".ttf", ".otf", ".ttc")


def font_files(
    folder: Path, packages: list[str], limit: int, rng: np.random.Generator
) -> list[Path]:
    """Return at most `limit` font files of every package, chosen at random."""
    chosen: list[Path] = []
    for package in packages:
        root = folder / package / "usr/share/fonts"
        files = sorted(p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES)
        files = [p for p in files if "ymbol" not in p.name and not p.is_symlink()]
        if not files:
            raise FileNotFoundError(f"no font file in {root}")
        order = rng.permutation(len(files))[:limit]
        chosen += [files[i] for i in sorted(order)]
    return chosen


def glyph(path: Path, character: str) -> Images | None:
    """Render one character as a white sprite; None when the font lacks it."""
    try:
        font = ImageFont.truetype(str(path), 64)
        drawn, missing = (Image.new("L", (160, 160)) for _ in range(2))
        ImageDraw.Draw(drawn).text((40, 30), character, font=font, fill=255)
        ImageDraw.Draw(missing).text((40, 30), "\ufffe", font=font, fill=255)
    except (OSError, ValueError) as error:
        print(f"glyph skipped: {path.name} {character!r}: {error}")
        return None
    box = drawn.getbbox()
    if box is None or drawn.tobytes() == missing.tobytes():
        return None
    mask = drawn.crop(box)
    white = Image.new("RGBA", mask.size, (255, 255, 255, 0))
    white.putalpha(mask)
    sprite = to_sprite(white, margin=6).copy()
    sprite[..., :3] = 255
    assert sprite.shape == (SPRITE, SPRITE, 4)
    return sprite


def glyph_table(paths: list[Path], characters: str) -> list[list[Images]]:
    """Return, per character, the sprites of all fonts that have it."""
    table = [[glyph(path, char) for path in paths] for char in characters]
    return [[sprite for sprite in row if sprite is not None] for row in table]
