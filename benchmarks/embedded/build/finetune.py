"""Fine-tuning of the eight experts: vision tower only, class heads and projection frozen."""

from __future__ import annotations

import copy
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import CLIPModel

from .common import TASKS, Task, load_task, rng_for, seed_for
from .model import DEPTH, accuracy, augment, class_head, image_features, load_base, to_pixels

BATCH = 128
LOGIT_SCALE = 30.0
WARM_UP = 30


@dataclass(frozen=True)
class Recipe:
    """Settings of one fine-tuning run."""

    rate: float = 4e-4
    steps: int = 300
    layer_decay: float = 0.7
    average: float = 0.97  # decay of the exponential moving average that is shipped


def _depth_from_top(name: str) -> int:
    """Return how many blocks lie above a parameter (the last norm counts as the top)."""
    if "post_layernorm" in name:
        return 0
    block = re.search(r"layers\.(\d+)\.", name)
    return DEPTH if block is None else DEPTH - 1 - int(block.group(1))


def make_optimizer(model: CLIPModel, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW over the vision tower with layer-wise learning-rate decay."""
    groups: dict[int, list[Tensor]] = {}
    for name, parameter in model.vision_model.named_parameters():
        groups.setdefault(_depth_from_top(name), []).append(parameter)
    settings = [
        {"params": members, "factor": recipe.layer_decay**level}
        for level, members in sorted(groups.items())
    ]
    return torch.optim.AdamW(settings, lr=recipe.rate, weight_decay=0.01, betas=(0.9, 0.98))


def finetune_one(base: CLIPModel, head: Tensor, task: Task, recipe: Recipe) -> CLIPModel:
    """Return the expert of one task: a copy of the base with a fine-tuned vision tower."""
    model = copy.deepcopy(base).train()
    model.requires_grad_(False)
    model.vision_model.requires_grad_(True)
    optimizer = make_optimizer(model, recipe)
    rng, generator = rng_for(f"finetune/{task.name}"), torch.Generator()
    generator.manual_seed(seed_for(f"finetune-augment/{task.name}"))
    images, labels = task.splits["train"]
    targets = torch.from_numpy(labels)
    mean = {name: p.detach().clone() for name, p in model.vision_model.named_parameters()}
    for step in range(1, recipe.steps + 1):
        cosine = 0.5 * (1 + np.cos(np.pi * (step - 1) / recipe.steps))
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * min(1, step / WARM_UP) * cosine * group["factor"]
        picks = rng.integers(0, len(images), BATCH)
        with torch.autocast("cpu", torch.bfloat16):
            features = image_features(model, augment(to_pixels(images[picks]), generator))
        logits = LOGIT_SCALE * F.normalize(features.float(), dim=-1) @ head.T
        loss = F.cross_entropy(logits, targets[picks])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.vision_model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for name, parameter in model.vision_model.named_parameters():
                mean[name].lerp_(parameter, 1 - min(recipe.average, step / (step + 10)))
    model.vision_model.load_state_dict(mean, strict=False)
    return model.eval()


def finetune(work: Path, names: tuple[str, ...] = TASKS, recipe: Recipe | None = None) -> None:
    """Fine-tune experts and write their vision towers to `work/experts/<task>.pt`."""
    recipe = recipe or Recipe()
    base, tokenizer = load_base(work / "base")
    folder = work / "experts"
    folder.mkdir(exist_ok=True)
    for name in names:
        started = time.time()
        task = load_task(work / "data", name)
        head = class_head(base, tokenizer, task)
        before = accuracy(base, head, task, "validation")
        expert = finetune_one(base, head, task, recipe)
        after = accuracy(expert, head, task, "validation")
        torch.save(expert.vision_model.state_dict(), folder / f"{name}.pt")
        seconds = time.time() - started
        print(f"{name}: validation {before:.1f} -> {after:.1f}, {seconds:.0f}s, {recipe}")
