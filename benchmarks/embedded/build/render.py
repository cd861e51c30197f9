"""Sprites, backgrounds and compositing: everything that draws a 32x32 image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import skimage
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from .common import SIDE, Images, rng_for

SPRITE = 40
Floats = NDArray[np.float32]
PHOTOS = (
    "astronaut.png",
    "coffee.png",
    "chelsea.png",
    "rocket.jpg",
    "hubble_deep_field.jpg",
    "brick.png",
    "grass.png",
    "gravel.png",
)


@dataclass(frozen=True)
class Style:
    """How a sprite is put on its ground. Ranges are uniform; `rotation` is in degrees."""

    grounds: tuple[float, float, float] = (0.35, 0.3, 0.35)  # shares of plain, gradient, photo
    scale: tuple[float, float] = (0.75, 1.05)
    rotation: float = 15.0
    shift: float = 0.12
    shear: float = 0.15
    perspective: float = 0.0
    contrast: float = 0.3
    blur: float = 0.3
    cast: float = 0.0


def load_photos() -> list[Images]:
    """Return the sample photos that scikit-image installs, 256x256, for photo grounds."""
    folder = Path(skimage.__file__).parent / "data"
    size = (256, 256)
    return [np.asarray(Image.open(folder / n).convert("RGB").resize(size)) for n in PHOTOS]


def to_sprite(image: Image.Image, margin: int = 2) -> Images:
    """Scale an RGBA image to fit the sprite canvas and centre it."""
    factor = (SPRITE - margin) / max(image.size)
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    image = image.resize(size, Image.Resampling.BOX)
    canvas = Image.new("RGBA", (SPRITE, SPRITE))
    canvas.paste(image, ((SPRITE - image.width) // 2, (SPRITE - image.height) // 2))
    return np.asarray(canvas)


def masks_to_sprites(masks: Floats) -> Floats:
    """Turn 28x28 masks in [0, 1] into white sprites with the mask as alpha."""
    sprites = np.zeros((len(masks), SPRITE, SPRITE, 4), np.float32)
    sprites[..., :3] = 255
    sprites[:, 6:34, 6:34, 3] = masks * 255
    return sprites


class Painter:
    """Draws images with one random generator, seeded by its purpose."""

    def __init__(self, purpose: str) -> None:
        self.rng = rng_for(purpose)
        self.photos = load_photos()

    def draw(self, sprites: list[list[Images]], per_class: int) -> tuple[Images, NDArray[np.int64]]:
        """Pick `per_class` sprites of every class at random."""
        picks = [
            group[self.rng.integers(len(group))] for group in sprites for _ in range(per_class)
        ]
        return np.stack(picks), np.repeat(np.arange(len(sprites)), per_class)

    def captions(self, names: list[str], templates: list[str]) -> list[str]:
        """Fill every name into a random template."""
        return [templates[self.rng.integers(len(templates))].format(name) for name in names]

    def grounds(self, count: int, shares: tuple[float, float, float]) -> Floats:
        """Return plain, gradient and photo grounds in the given shares."""
        out = np.empty((count, SIDE, SIDE, 3), np.float32)
        rows, cols = np.mgrid[:SIDE, :SIDE] / (SIDE - 1.0) - 0.5
        for i, kind in enumerate(self.rng.choice(3, count, p=shares)):
            first, second = self.rng.integers(0, 256, (2, 3))
            if kind == 0:
                out[i] = first
            elif kind == 1:
                angle = self.rng.uniform(0, 2 * np.pi)
                ramp = (np.cos(angle) * cols + np.sin(angle) * rows + 0.7) / 1.4
                out[i] = first + (second - first) * ramp[..., None]
            else:
                photo = self.photos[self.rng.integers(len(self.photos))]
                size = self.rng.integers(32, 128)
                top, left = self.rng.integers(0, 256 - size, 2)
                crop = Image.fromarray(photo[top : top + size, left : left + size])
                out[i] = np.asarray(crop.resize((SIDE, SIDE)))
        return out

    def tint(self, sprites: Images | Floats, grounds: Floats, distance: float = 90.0) -> Floats:
        """Give every sprite one colour that differs from its ground's mean by `distance`."""
        out = sprites.astype(np.float32)
        for i, mean in enumerate(grounds.mean((1, 2))):
            colour = self.rng.integers(0, 256, 3)
            while np.abs(colour - mean).max() < distance:
                colour = self.rng.integers(0, 256, 3)
            out[i, ..., :3] = colour
        return out

    def fade(self, sprites: Images, low: float, high: float) -> Floats:
        """Pull colours toward grey: saturation factor uniform in [low, high]."""
        out = sprites.astype(np.float32)
        grey = out[..., :3].mean(-1, keepdims=True)
        factor = self.rng.uniform(low, high, (len(out), 1, 1, 1))
        out[..., :3] = grey + (out[..., :3] - grey) * factor
        return out

    def _uniform(self, low: float, high: float, count: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.uniform(low, high, count).astype(np.float32))

    def _grid(self, count: int, style: Style) -> torch.Tensor:
        angle = self._uniform(-style.rotation, style.rotation, count) * np.pi / 180
        width = self._uniform(*style.scale, count)
        height = width * self._uniform(0.9, 1.1, count)
        shear = self._uniform(-style.shear, style.shear, count)
        matrix = torch.zeros(count, 2, 3)
        matrix[:, 0, 0] = torch.cos(angle) / width
        matrix[:, 0, 1] = (shear - torch.sin(angle)) / width
        matrix[:, 1, 0] = torch.sin(angle) / height
        matrix[:, 1, 1] = torch.cos(angle) / height
        matrix[:, 0, 2] = self._uniform(-style.shift, style.shift, count) / width
        matrix[:, 1, 2] = self._uniform(-style.shift, style.shift, count) / height
        grid = F.affine_grid(matrix, [count, 4, SIDE, SIDE], align_corners=False)
        if style.perspective:
            tilt_x = self._uniform(-style.perspective, style.perspective, count)[:, None, None]
            tilt_y = self._uniform(-style.perspective, style.perspective, count)[:, None, None]
            grid = grid / (1 + tilt_x * grid[..., 0] + tilt_y * grid[..., 1])[..., None]
            phase = self._uniform(0, 2 * np.pi, count)[:, None, None]
            height_of_wave = self._uniform(0, 0.16, count)[:, None, None]
            wave = height_of_wave * torch.sin(grid[..., 0] * 4 + phase)
            grid = grid + torch.stack([torch.zeros_like(wave), wave], -1)
        return grid

    def compose(
        self, sprites: Images | Floats, style: Style, grounds: Floats | None = None
    ) -> Images:
        """Warp sprites, put them on grounds, then blur, change contrast and cast a colour."""
        ground = self.grounds(len(sprites), style.grounds) if grounds is None else grounds
        parts = []
        for start in range(0, len(sprites), 2000):
            block = torch.from_numpy(sprites[start : start + 2000].astype(np.float32))
            block = block.permute(0, 3, 1, 2) / 255
            behind = torch.from_numpy(ground[start : start + 2000]).permute(0, 3, 1, 2) / 255
            count = len(block)
            block[:, :3] *= block[:, 3:]
            warped = F.grid_sample(block, self._grid(count, style), align_corners=False)
            image = warped[:, :3] + behind * (1 - warped[:, 3:])
            chosen = torch.from_numpy(self.rng.random(count) < style.blur)
            if chosen.any():
                padded = F.pad(image[chosen], (1, 1, 1, 1), mode="replicate")
                image[chosen] = F.avg_pool2d(padded, 3, 1)
            gain = self._uniform(1 - style.contrast, 1 + style.contrast * 0.6, count)
            offset = self._uniform(-style.contrast / 3, style.contrast / 3, count)
            image = (image - 0.5) * gain.view(-1, 1, 1, 1) + 0.5 + offset.view(-1, 1, 1, 1)
            if style.cast:
                image = image * self._uniform(1 - style.cast, 1, count * 3).view(-1, 3, 1, 1)
            parts.append((image * 255).clamp(0, 255).permute(0, 2, 3, 1).round().byte().numpy())
        return np.concatenate(parts)

    def render(
        self, sprites: list[list[Images]], per_class: int, style: Style
    ) -> tuple[Images, NDArray[np.int64]]:
        """Draw sprites of every class and compose them in one style."""
        picked, labels = self.draw(sprites, per_class)
        return self.compose(picked, style), labels
