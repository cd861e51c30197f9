"""Constants, seeds and the small data classes shared by the builder's modules."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ROOT_SEED = 20260
SIDE = 32
WEBP_QUALITY = 90
TASKS = ("fashion", "animals", "digits", "satellite", "emoji", "flags", "letters", "kana")
SPLITS = ("train", "validation", "test")

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


def seed_for(purpose: str) -> int:
    """Derive the seed of one random purpose from the root seed and the purpose's name."""
    digest = hashlib.sha256(f"{ROOT_SEED}:{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def rng_for(purpose: str) -> np.random.Generator:
    """Return the random generator of one purpose."""
    return np.random.default_rng(seed_for(purpose))


def encode(image: Images) -> bytes:
    """Encode one image as lossy WebP; the decoded pixels are what everything is trained on."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "WEBP", quality=WEBP_QUALITY, method=4)
    return buffer.getvalue()


def decode(data: bytes) -> Images:
    """Decode an encoded image to RGB pixels."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@dataclass
class Task:
    """One task: class names, prompt template and three splits disjoint by source.

    `encoded` holds the image files as shipped; after `pack` the pixels of `splits` are the
    decoded files, so training and evaluation see what a user of the suite sees.
    """

    name: str
    classes: list[str]
    template: str
    splits: dict[str, tuple[Images, Labels]] = field(default_factory=dict)
    encoded: dict[str, list[bytes]] = field(default_factory=dict)

    def pack(self) -> None:
        """Shuffle the rows of every split with the task's own seed and encode the images."""
        rng = rng_for(f"shuffle/{self.name}")
        for split, (images, labels) in self.splits.items():
            order = rng.permutation(len(images))
            files = [encode(image) for image in images[order]]
            self.encoded[split] = files
            pixels = np.stack([decode(data) for data in files])
            self.splits[split] = pixels, np.asarray(labels, dtype=np.int64)[order]

    def save(self, folder: Path) -> None:
        """Write the packed task to one npz file."""
        arrays: dict[str, NDArray[Any]] = {
            "classes": np.array(self.classes),
            "template": np.array(self.template),
        }
        for split, files in self.encoded.items():
            arrays[f"{split}_bytes"] = np.frombuffer(b"".join(files), np.uint8)
            arrays[f"{split}_ends"] = np.cumsum([len(data) for data in files])
            arrays[f"{split}_labels"] = self.splits[split][1]
        np.savez(folder / f"task_{self.name}.npz", **arrays)


def load_task(folder: Path, name: str) -> Task:
    """Read a task written by `Task.save`."""
    with np.load(folder / f"task_{name}.npz") as data:
        task = Task(name, [str(c) for c in data["classes"]], str(data["template"]))
        for split in SPLITS:
            joined, ends = data[f"{split}_bytes"].tobytes(), data[f"{split}_ends"]
            starts = np.concatenate([[0], ends[:-1]])
            files = [joined[start:end] for start, end in zip(starts, ends, strict=True)]
            task.encoded[split] = files
            pixels = np.stack([decode(item) for item in files])
            task.splits[split] = pixels, data[f"{split}_labels"]
    return task


@dataclass
class PoolPart:
    """One domain of the base's pool: images with captions."""

    name: str
    images: Images
    captions: list[str]
