"""The contact sheet: per task the base's source style, training images and test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .common import Images, Task, rng_for

COLUMNS, TILE, GAP = 18, 64, 3
LEFT, TOP, HEAD = 190, 74, 40
INK, GREY, PAPER = (25, 25, 30), (95, 95, 105), (255, 255, 255)
ROWS = ("base saw (with class name)", "expert training", "test (held-out source)")


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _pick(labels: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Return one random image per class for as many classes as fit, then fill up."""
    order = rng.permutation(len(labels))
    first = {int(labels[i]): int(i) for i in order[::-1]}
    chosen = [first[label] for label in sorted(first)][:COLUMNS]
    others = [int(i) for i in order if int(i) not in chosen]
    return chosen + others[: COLUMNS - len(chosen)]


def _paste_row(sheet: Image.Image, images: Images, top: int) -> None:
    for column, pixels in enumerate(images):
        tile = Image.fromarray(pixels).resize((TILE, TILE), Image.Resampling.NEAREST)
        sheet.paste(tile, (LEFT + column * (TILE + GAP), top))


def draw_contact_sheet(work: Path, tasks: list[Task], path: Path) -> None:
    """Draw every task as a titled block of three labelled rows."""
    with np.load(work / "data/pool.npz") as pool:
        images, domains = pool["images"], pool["domains"]
        names = [str(name) for name in pool["names"]]
    rng = rng_for("contact sheet")
    block = HEAD + len(ROWS) * (TILE + GAP) + 14
    size = (LEFT + COLUMNS * (TILE + GAP) + 12, TOP + block * len(tasks))
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((12, 10), "mini-clip8: eight tasks, 32x32 pixels", INK, _font(26))
    note = "Fine-tuning undoes a change of style: the base learned the names in another style."
    draw.text((12, 44), note, GREY, _font(17))
    for index, task in enumerate(tasks):
        top = TOP + index * block
        draw.text((12, top + 6), task.name, INK, _font(24))
        listed = ", ".join(task.classes[:9]) + (", ..." if len(task.classes) > 9 else "")
        summary = f'{len(task.classes)} classes: {listed}    prompt: "{task.template}"'
        draw.text((LEFT, top + 11), summary, GREY, _font(16))
        source = np.flatnonzero(domains == names.index(f"{task.name}_source"))
        picks = [images[np.sort(rng.choice(source, COLUMNS, replace=False))]]
        for split in ("train", "test"):
            pixels, labels = task.splits[split]
            picks.append(pixels[_pick(labels, rng)])
        for row, (label, pixels) in enumerate(zip(ROWS, picks, strict=True)):
            y = top + HEAD + row * (TILE + GAP)
            lines = label.replace(" (", "\n(")
            draw.multiline_text((12, y + 14), lines, INK, _font(15))
            _paste_row(sheet, pixels, y)
    sheet.save(path, optimize=True)
