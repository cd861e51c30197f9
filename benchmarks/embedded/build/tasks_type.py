"""Tasks made of typefaces: letters and kana, plus the base's further glyph pools."""

# ruff: noqa: SIM905 - word lists read better as text
from __future__ import annotations

from pathlib import Path

import numpy as np

from .common import Images, Labels, PoolPart, Task, rng_for
from .glyphs import font_files, glyph_table
from .render import Painter, Style
from .sources import load_pins
from .tasks_real import clean_print

UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
KANA = (
    "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをん"
)
KANA_NAMES = (
    "a i u e o ka ki ku ke ko sa shi su se so ta chi tsu te to na ni nu ne no ha hi fu he ho "
    "ma mi mu me mo ya yu yo ra ri ru re ro wa wo n"
).split()
KATAKANA_OFFSET = 0x60
ROLES = ("base", "train", "validation", "test")


def _fonts(sources: Path, group: str, limits: dict[str, int]) -> dict[str, list[Path]]:
    """Choose the font files of every role; roles never share a package."""
    rng = rng_for(f"fonts/{group}")
    pins = load_pins()[group]
    folder = sources / "debian"
    return {r: font_files(folder, sorted(pins[r]), limits.get(r, 4), rng) for r in ROLES}


def build_letters(sources: Path) -> tuple[Task, list[PoolPart], list[list[Images]]]:
    """Tinted capitals in scenes; the base knows clean black-and-white print.

    Also returns the printed digits' glyphs, for the digits task's source style.
    """
    paint = Painter("data/letters")
    fonts = _fonts(sources, "latin_fonts", {"base": 6})
    print("latin font files:", {role: len(paths) for role, paths in fonts.items()})
    names = [letter.lower() for letter in UPPER]
    style = Style(
        (0.35, 0.35, 0.3), (0.7, 1.05), 26, 0.12, 0.25, perspective=0.1, contrast=0.3, blur=0.2
    )

    def scenes(role: str, count: int) -> tuple[Images, Labels]:
        picked, labels = paint.draw(glyph_table(fonts[role], UPPER), count)
        grounds = paint.grounds(len(picked), style.grounds)
        return paint.compose(paint.tint(picked, grounds, 120), style, grounds), labels

    task = Task("letters", names, "the letter {}")
    for split, count in {"train": 300, "validation": 16, "test": 38}.items():
        task.splits[split] = scenes(split, count)
    drawn, labels = clean_print(paint, glyph_table(fonts["base"], UPPER), 250)
    templates = ["the letter {}", "the capital letter {}"]
    source = PoolPart(
        "letters_source", drawn, paint.captions([names[label] for label in labels], templates)
    )
    drawn, labels = clean_print(paint, glyph_table(fonts["base"], UPPER.lower()), 60)
    captions = [f"the small letter {names[label]}" for label in labels]
    lower = PoolPart("lower_case", drawn, captions)
    return task, [source, lower], glyph_table(fonts["base"] + fonts["train"], "0123456789")


def build_kana(sources: Path) -> tuple[Task, list[PoolPart]]:
    """Dark ink on light paper in scenes; the base knows clean white on black."""
    paint = Painter("data/kana")
    fonts = _fonts(sources, "japanese_fonts", dict.fromkeys(ROLES, 6))
    print("japanese font files:", {role: len(paths) for role, paths in fonts.items()})
    style = Style(
        (0.25, 0.55, 0.2), (0.68, 1.05), 26, 0.12, 0.25, perspective=0.1, contrast=0.3, blur=0.25
    )

    def paper(role: str, count: int) -> tuple[Images, Labels]:
        picked, labels = paint.draw(glyph_table(fonts[role], KANA), count)
        white = paint.rng.random((len(picked), 1, 1, 1)) * 0.3 + 0.45
        grounds = paint.grounds(len(picked), style.grounds) * (1 - white) + 255 * white
        ink = picked.astype(np.float32)
        ink[..., :3] = paint.rng.integers(0, 100, (len(ink), 1, 1, 3))
        return paint.compose(ink, style, grounds.astype(np.float32)), labels

    task = Task("kana", KANA_NAMES, "the hiragana letter {}")
    for split, count in {"train": 180, "validation": 9, "test": 20}.items():
        task.splits[split] = paper(split, count)

    def board(characters: str, count: int) -> tuple[Images, Labels]:
        picked, labels = paint.draw(glyph_table(fonts["base"], characters), count)
        grounds = np.zeros((len(picked), 32, 32, 3), np.float32)
        plain = Style(scale=(0.8, 1.05), rotation=6, shift=0.08, shear=0.1, contrast=0.1, blur=0.2)
        return paint.compose(picked, plain, grounds), labels

    drawn, labels = board(KANA, 100)
    templates = ["the hiragana letter {}", "the japanese letter {}"]
    names = [KANA_NAMES[label] for label in labels]
    source = PoolPart("kana_source", drawn, paint.captions(names, templates))
    katakana = "".join(chr(ord(char) + KATAKANA_OFFSET) for char in KANA[:30])
    drawn, labels = board(katakana, 30)
    captions = [f"the katakana letter {KANA_NAMES[label]}" for label in labels]
    return task, [source, PoolPart("katakana", drawn, captions)]
