"""Vector icon sets of the @iconify-json packages, rendered to sprites."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import resvg_py
from PIL import Image

from .common import Images
from .render import to_sprite


class IconSets:
    """Reads icon sets below one npm folder and renders single icons."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cache: dict[tuple[str, str], Images | None] = {}

    @cache  # noqa: B019 - one instance per build
    def load(self, name: str) -> dict[str, Any]:
        """Return the JSON of one icon set."""
        data: dict[str, Any] = json.loads((self.folder / name / "icons.json").read_text())
        return data

    def names(self, icon_set: str) -> list[str]:
        """Return the icon names of one set in the set's order."""
        return list(self.load(icon_set)["icons"])

    def sprite(self, icon_set: str, name: str) -> Images | None:
        """Render one icon (aliases are followed); None when the set lacks it."""
        key = (icon_set, name)
        if key not in self._cache:
            self._cache[key] = self._render(icon_set, name)
        return self._cache[key]

    def sprites(self, icon_sets: list[str], name: str) -> list[Images]:
        """Render one icon from every set that has it."""
        found = (self.sprite(icon_set, name) for icon_set in icon_sets)
        return [sprite for sprite in found if sprite is not None]

    def _render(self, icon_set: str, name: str) -> Images | None:
        data = self.load(icon_set)
        while name not in data["icons"]:
            if name not in data.get("aliases", {}):
                return None
            name = data["aliases"][name]["parent"]
        icon = data["icons"][name]
        width = icon.get("width", data.get("width", 16))
        height = icon.get("height", data.get("height", 16))
        body = icon["body"].replace("currentColor", "#fff")
        svg = (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'width="{width}" height="{height}" '
            f'viewBox="{icon.get("left", 0)} {icon.get("top", 0)} {width} {height}">{body}</svg>'
        )
        try:
            png = bytes(resvg_py.svg_to_bytes(svg_string=svg, width=80))
        except Exception as error:
            print(f"icon skipped: {icon_set}/{name}: {error}")
            return None
        image = Image.open(io.BytesIO(png)).convert("RGBA")
        box = image.getchannel("A").point(lambda value: 255 * (value > 128)).getbbox()
        return None if box is None else to_sprite(image.crop(box))


def recolour(sprite: Images, rng: np.random.Generator) -> Images:
    """Give a one-colour sprite a random colour."""
    out = sprite.copy()
    out[..., :3] = rng.integers(0, 256, 3)
    return out
