"""Tasks made of published artwork: emoji and flags, plus the base's further icon pools."""

# ruff: noqa: SIM905 - word lists read better as text
from __future__ import annotations

import numpy as np

from .common import Images, PoolPart, Task
from .icons import IconSets, recolour
from .render import Painter, Style

EMOJI = (
    "dog-face cat-face pig-face frog octopus snail butterfly turtle airplane automobile bus "
    "bicycle rocket red-apple banana grapes strawberry pizza hamburger birthday-cake doughnut "
    "soccer-ball basketball guitar trumpet umbrella key hammer scissors light-bulb crown tulip "
    "sunflower cactus christmas-tree snowman house tomato ice-cream lemon watermelon pineapple "
    "cherries alarm-clock fire"
).split()
EMOJI_VENDORS = {
    "train": ["twemoji", "noto-v1", "fluent-emoji", "streamline-emojis", "fluent-emoji-flat"],
    "validation": ["emojione"],
    "test": ["noto"],
    "base": ["fxemoji", "fluent-emoji-high-contrast"],
}
OTHER_VENDORS = ["fxemoji", "fluent-emoji-high-contrast", "fluent-emoji-flat", "twemoji", "noto-v1"]
EMOJI_TEMPLATES = ["an emoji of a {}", "a picture of a {}", "a {}"]
NOT_OBJECTS = "skin flag tone man- woman- person keycap regional button oclock thirty".split()
FLAGS = dict(
    pair.split("=")
    for pair in (
        "fr=france it=italy ie=ireland be=belgium de=germany nl=netherlands "
        "ru=russia ro=romania hu=hungary pl=poland id=indonesia at=austria lv=latvia se=sweden "
        "no=norway dk=denmark fi=finland is=iceland gb=united-kingdom us=united-states "
        "au=australia jp=japan kr=south-korea cn=china vn=vietnam tr=turkey in=india br=brazil "
        "ar=argentina mx=mexico ca=canada ch=switzerland gr=greece es=spain pt=portugal "
        "ua=ukraine co=colombia za=south-africa ng=nigeria ke=kenya eg=egypt"
    ).split()
)
FLAG_SOURCES = {
    "train": ["flag", "twemoji", "noto-v1"],
    "validation": ["emojione"],
    "test": ["flagpack"],
    "base": ["circle-flags"],
}
FLAG_TEMPLATES = ["the flag of {}", "a flag of {}"]
ICON_SETS = ["mdi", "tabler", "ph", "material-symbols", "fa6-solid"]
PLAIN = (0.7, 0.3, 0.0)
SIZES = {"train": 200, "validation": 10, "test": 22}


def _complete(tables: dict[str, list[list[Images]]], names: list[str]) -> list[int]:
    """Return the indices of the classes for which every split has a sprite."""
    kept = [i for i in range(len(names)) if all(table[i] for table in tables.values())]
    dropped = sorted(set(range(len(names))) - set(kept))
    print("classes dropped for a missing sprite:", [names[i] for i in dropped])
    return kept


def build_emoji(icons: IconSets) -> tuple[Task, list[PoolPart]]:
    """Emoji of several vendors in scenes; the base knows other vendors on plain grounds."""
    paint = Painter("data/emoji")
    tables = {k: [icons.sprites(v, name) for name in EMOJI] for k, v in EMOJI_VENDORS.items()}
    kept = _complete(tables, EMOJI)[:40]
    keys = [EMOJI[i] for i in kept]
    names = [key.replace("-", " ") for key in keys]
    style = Style((0.3, 0.3, 0.4), rotation=20, blur=0.2, cast=0.2)
    task = Task("emoji", names, "an emoji of a {}")
    for split, count in SIZES.items():
        task.splits[split] = paint.render([tables[split][i] for i in kept], count, style)
    source = _plain_emoji(paint, icons, keys, EMOJI_VENDORS["base"], 60)
    flat, contrast = icons.names("fluent-emoji-flat"), icons.names("fluent-emoji-high-contrast")
    usable = set(contrast) - set(EMOJI)
    others = [n for n in flat if n in usable and not any(part in n for part in NOT_OBJECTS)]
    chosen = sorted(others[i] for i in paint.rng.permutation(len(others))[:600])
    further = _plain_emoji(paint, icons, chosen, OTHER_VENDORS, 4)
    return task, [PoolPart("emoji_source", *source), PoolPart("other_emoji", *further)]


def _plain_emoji(
    paint: Painter, icons: IconSets, keys: list[str], vendors: list[str], count: int
) -> tuple[Images, list[str]]:
    """Draw emoji on plain grounds; return images and captions."""
    sprites, names = [], []
    for key in keys:
        for vendor in vendors:
            sprite = icons.sprite(vendor, key)
            for _ in range(count if sprite is not None else 0):
                mono = vendor == "fluent-emoji-high-contrast"
                sprites.append(recolour(sprite, paint.rng) if mono else sprite)
                names.append(key.replace("-", " "))
    drawn = paint.compose(np.stack(sprites), Style(PLAIN, rotation=10, contrast=0.2))
    return drawn, paint.captions(names, EMOJI_TEMPLATES)


def _flag_sprites(icons: IconSets, code: str, icon_sets: list[str]) -> list[Images]:
    country = FLAGS[code]
    names = {
        "flag": [f"{code}-4x3"],
        "flagpack": ["gb-ukm" if code == "gb" else code],
        "circle-flags": [code],
        "twemoji": [f"flag-{country}"],
        "emojione": [f"flag-for-{country}"],
        "noto-v1": [f"flag-for-flag-{country}", f"flag-for-{country}"],
    }
    found = []
    for icon_set in icon_sets:
        for name in names[icon_set]:
            sprite = icons.sprite(icon_set, name)
            if sprite is not None:
                found.append(sprite)
                break
    return found


def build_flags(icons: IconSets) -> tuple[Task, list[PoolPart]]:
    """Waved, faded, turned flags in scenes; the base knows round icons on plain grounds."""
    paint = Painter("data/flags")
    codes = list(FLAGS)
    tables = {k: [_flag_sprites(icons, c, v) for c in codes] for k, v in FLAG_SOURCES.items()}
    kept = _complete(tables, codes)
    names = [FLAGS[codes[i]].replace("-", " ") for i in kept]
    style = Style(
        (0.25, 0.35, 0.4), (0.7, 1.0), 35, 0.12, perspective=0.3, contrast=0.4, blur=0.4, cast=0.35
    )
    task = Task("flags", names, "the flag of {}")
    for split, count in SIZES.items():
        picked, labels = paint.draw([tables[split][i] for i in kept], count)
        task.splits[split] = paint.compose(paint.fade(picked, 0.45, 1.0), style), labels
    plain = Style((0.8, 0.2, 0.0), rotation=6, contrast=0.15, blur=0.2)
    drawn, labels = paint.render([tables["base"][i] for i in kept], 100, plain)
    captions = paint.captions([names[label] for label in labels], FLAG_TEMPLATES)
    other = [c for c in icons.names("circle-flags") if c not in FLAGS and len(c) == 2][:100]
    more, more_labels = paint.render([icons.sprites(["circle-flags"], c) for c in other], 16, plain)
    more_captions = [f"the flag of country {other[label]}" for label in more_labels]
    return task, [
        PoolPart("flags_source", drawn, captions),
        PoolPart("other_flags", more, more_captions),
    ]


def build_icons(icons: IconSets) -> PoolPart:
    """Return 250 user-interface icons of five sets, tinted: general knowledge for the base."""
    paint = Painter("data/icons")
    members = [set(icons.names(name)) for name in ICON_SETS]
    shared = sorted(n for n in members[0] if sum(n in other for other in members[1:]) >= 2)
    chosen = shared[::3][:250]
    picked, labels = paint.draw([icons.sprites(ICON_SETS, name) for name in chosen], 16)
    style = Style((0.6, 0.4, 0.0))
    grounds = paint.grounds(len(picked), style.grounds)
    drawn = paint.compose(paint.tint(picked, grounds), style, grounds)
    names = [chosen[label].replace("-", " ") for label in labels]
    templates = ["an icon of {}", "a symbol of {}", "a {} icon"]
    return PoolPart("icons", drawn, paint.captions(names, templates))
