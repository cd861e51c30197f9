"""Writes the shipped suite: fp16 checkpoints, parquet splits, label files and a contact sheet."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Image
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPImageProcessor, CLIPModel, PreTrainedTokenizerFast

from .common import SPLITS, TASKS, Labels, Task, load_task
from .model import load_base
from .sheet import draw_contact_sheet

TRAIN_ROWS = 1024


def _half(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.half().contiguous() for name, value in state.items()}


def _save_weights(state: dict[str, Tensor], folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file(_half(state), path, {"format": "pt"})
    path.chmod(0o644)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def ship_base(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> dict[str, Any]:
    """Write the base as a full CLIPModel folder and return its configuration."""
    folder.mkdir(parents=True)
    _save_weights(model.state_dict(), folder)
    config = model.config.to_diff_dict() | {"architectures": ["CLIPModel"], "dtype": "float16"}
    for tower in ("text_config", "vision_config"):
        config[tower]["dtype"] = "float16"
    _write_json(folder / "config.json", config)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # known to transformers 4 and 5
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    _write_json(path, settings)
    processor = CLIPImageProcessor(
        size={"shortest_edge": 32},
        crop_size={"height": 32, "width": 32},
        resample=3,
        do_convert_rgb=True,
    )
    processor.save_pretrained(folder)
    return config


def ship_experts(work: Path, folder: Path, config: dict[str, Any]) -> None:
    """Write every expert's vision tower in the layout of the public CLIPVisionModel experts."""
    vision = dict(config["vision_config"])
    vision |= {"architectures": ["CLIPVisionModel"], "model_type": "clip_vision_model"}
    for name in TASKS:
        target = folder / name
        target.mkdir(parents=True)
        state = torch.load(work / "experts" / f"{name}.pt", weights_only=True)
        state = {f"vision_model.{key}": value for key, value in state.items()}
        _save_weights(state, target)
        _write_json(target / "config.json", vision)


def _spread(labels: Labels, rows: int) -> np.ndarray:
    """Return the first `rows` indices that give every class an equal share, in row order."""
    quota = -(-rows // len(np.unique(labels)))
    seen: dict[int, int] = {}
    picked = []
    for index, label in enumerate(labels):
        seen[int(label)] = seen.get(int(label), 0) + 1
        if seen[int(label)] <= quota:
            picked.append(index)
    return np.array(picked[:rows])


def _to_parquet(files: list[bytes], labels: Labels, classes: list[str], path: Path) -> None:
    features = Features({"image": Image(), "label": ClassLabel(names=classes)})
    rows = {
        "image": [{"bytes": data, "path": None} for data in files],
        "label": [int(label) for label in labels],
    }
    Dataset.from_dict(rows, features=features).to_parquet(path)


def ship_task(task: Task, folder: Path) -> dict[str, int]:
    """Write one task's splits and label file; return the number of rows per split."""
    target = folder / "data" / task.name
    target.mkdir(parents=True)
    sizes = {}
    for split in SPLITS:
        labels = task.splits[split][1]
        rows = _spread(labels, TRAIN_ROWS) if split == "train" else np.arange(len(labels))
        files = [task.encoded[split][row] for row in rows]
        _to_parquet(files, labels[rows], task.classes, target / f"{split}.parquet")
        sizes[split] = len(rows)
    (folder / "labels").mkdir(exist_ok=True)
    labels_file = folder / "labels" / f"{task.name}.json"
    _write_json(labels_file, {"classes": task.classes, "templates": [task.template]})
    return sizes


def ship(work: Path, out: Path) -> None:
    """Write the whole suite to `out`; SOURCES.md and other hand-written files there are kept."""
    for part in ("base", "experts", "data", "labels"):
        shutil.rmtree(out / part, ignore_errors=True)
    base, tokenizer = load_base(work / "base")
    config = ship_base(base, tokenizer, out / "base")
    ship_experts(work, out / "experts", config)
    tasks = [load_task(work / "data", name) for name in TASKS]
    for task in tasks:
        print(task.name, ship_task(task, out))
    draw_contact_sheet(work, tasks, out / "contact_sheet.png")
    total = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    for part in sorted(path for path in out.iterdir()):
        inside = [p for p in (part.rglob("*") if part.is_dir() else [part]) if p.is_file()]
        print(f"{part.name}: {sum(p.stat().st_size for p in inside) / 1e6:.2f} MB")
    print(f"total {total / 1e6:.2f} MB in {out}")
