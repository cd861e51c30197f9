"""Labelled images of a data set as tensors: decoded once per process, labels checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .progress import progress
from .suites.base import Task


def load_split(task: Task, split: str) -> object:
    """A ``datasets.Dataset`` with the columns ``image`` and ``label``."""
    import datasets

    datasets.disable_progress_bars()
    source = task.source
    where = f"task {task.name!r}, split {split!r} of {source.path}"
    if Path(source.path).is_absolute() and not Path(source.path).is_dir():
        raise FileNotFoundError(f"{where}: the folder does not exist")
    name = source.split(split)
    # of a folder only the split's own file is read, so that an error is about that split
    single = (Path(source.path) / f"{name}.parquet").is_file()
    try:
        dataset = datasets.load_dataset(
            source.path,
            source.config,
            split=name,
            revision=source.revision,
            data_files={name: f"{name}.parquet"} if single else None,
        )
    except Exception as error:
        # datasets wraps a damaged parquet file in its own generic error; the cause says more
        cause = error.__cause__ or error
        raise ValueError(
            f"{where}: cannot be read ({type(cause).__name__}: {cause}); fetch the files again"
        ) from error
    missing = {"image", "label"} - set(dataset.column_names)
    if missing:
        raise ValueError(
            f"{where}: lacks the columns {sorted(missing)}, it has {dataset.column_names}"
        )
    return dataset


def checked_labels(dataset: object, classes: Sequence[str], where: str) -> list[int]:
    """The labels; ValueError unless each is a position in ``classes`` and names agree."""
    names = getattr(dataset.features["label"], "names", None)
    if names is not None and len(names) != len(classes):
        raise ValueError(
            f"{where}: its class list has {len(classes)} names, the data set has {len(names)}"
        )
    if names is not None:
        ours, theirs = ([_plain(name) for name in group] for group in (classes, names))
        moved = [
            i
            for i, (a, b) in enumerate(zip(ours, theirs, strict=True))
            if a != b and (b in ours or a in theirs)
        ]
        if moved:  # names that only one side has may be synonyms; common ones must agree
            first = moved[0]
            raise ValueError(
                f"{where}: the class list has the data set's names in another order (class "
                f"{first} is {classes[first]!r}, the data set says {names[first]!r})"
            )
    labels = list(dataset["label"])
    empty = sum(label is None for label in labels)
    if empty:
        raise ValueError(f"{where}: {empty} rows have no label")
    labels = np.asarray(labels)
    bad = labels[(labels < 0) | (labels >= len(classes))]
    if bad.size:
        raise ValueError(
            f"{where}: {bad.size} labels lie outside its list of {len(classes)} classes "
            f"(first: {bad[0]}); known are 0 to {len(classes) - 1}"
        )
    return labels.tolist()


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", " ", str(name)).strip().lower()


def decode(dataset: object, processor: object, indices: Sequence[int], where: str) -> Tensor:
    """The images at ``indices`` after the processor's resize and crop: uint8 (n, 3, h, w).

    Values are not normalised, so that a decoded test set takes a quarter of the memory.
    """
    chunks = []
    for start in progress(range(0, len(indices), 256), f"decode {where}"):
        rows = dataset.select(indices[start : start + 256])
        try:
            images = [image.convert("RGB") for image in rows["image"]]
        except Exception as error:
            raise ValueError(f"{where}: an image near row {start} is damaged: {error}") from error
        pixels = processor(images, return_tensors="pt", do_rescale=False, do_normalize=False)
        chunks.append(pixels["pixel_values"].round().clamp(0, 255).to(torch.uint8))
    return torch.cat(chunks)


def normalise(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 pixels (n, 3, h, w) to the model's float32 input."""
    mean, std = (
        torch.tensor(values, device=pixels.device).view(1, 3, 1, 1) for values in (mean, std)
    )
    return (pixels.float() / 255 - mean) / std
