"""Coloured shapes with counting captions: general knowledge for the base."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from .common import PoolPart, rng_for

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 180, 50),
    "blue": (40, 60, 220),
    "yellow": (240, 220, 40),
    "black": (10, 10, 10),
    "white": (245, 245, 245),
    "orange": (250, 140, 20),
    "purple": (140, 40, 170),
    "brown": (120, 70, 30),
    "gray": (128, 128, 128),
    "pink": (250, 150, 190),
}
CORNERS = {"square": 4, "triangle": 3, "star": 10}
COUNTS = ("one", "two", "three", "four")


@dataclass(frozen=True)
class Shape:
    """One shape to draw."""

    kind: str
    fill: str
    radius: int
    turn: float


def _draw_shape(draw: ImageDraw.ImageDraw, shape: Shape, x: int, y: int) -> None:
    radius, turn, fill = shape.radius, shape.turn, COLOURS[shape.fill]
    if shape.kind == "circle":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
        return
    if shape.kind == "line":
        dx, dy = radius * np.cos(turn), radius * np.sin(turn)
        draw.line((x - dx, y - dy, x + dx, y + dy), fill=fill, width=5)
        return
    points = []
    for k in range(CORNERS[shape.kind]):
        reach = radius * 0.45 if shape.kind == "star" and k % 2 else radius
        angle = turn + 2 * np.pi * k / CORNERS[shape.kind]
        points.append((x + reach * np.cos(angle), y + reach * np.sin(angle)))
    draw.polygon(points, fill=fill)


def build_shapes(count: int = 4000) -> PoolPart:
    """Return pictures of one to four equal shapes on a plain ground."""
    rng = rng_for("data/shapes")
    shapes = ("circle", "square", "triangle", "star", "line")
    images, captions = [], []
    for _ in range(count):
        number = int(rng.integers(1, 5))
        shape = shapes[rng.integers(len(shapes))]
        fill, ground = (list(COLOURS)[i] for i in rng.permutation(len(COLOURS))[:2])
        canvas = Image.new("RGB", (96, 96), COLOURS[ground])
        draw = ImageDraw.Draw(canvas)
        places = rng.permutation(9)[:number] if number > 1 else [4]
        radius = int(rng.integers(8, 15) if number > 1 else rng.integers(14, 38))
        for place in places:
            jitter = rng.integers(-3, 4, 2)
            x, y = 16 + 32 * (int(place) % 3) + jitter[0], 16 + 32 * (int(place) // 3) + jitter[1]
            turn = rng.uniform(0, 2 * np.pi)
            _draw_shape(draw, Shape(shape, fill, radius, turn), int(x), int(y))
        images.append(np.asarray(canvas.resize((32, 32), Image.Resampling.BOX)))
        word = COUNTS[number - 1]
        options = (
            f"{word} {fill} {shape}",
            f"{word} {shape} on a {ground} background",
            f"a picture of {word} {fill} {shape} on a {ground} background",
        )
        captions.append(options[rng.integers(len(options))])
    return PoolPart("shapes", np.stack(images), captions)
