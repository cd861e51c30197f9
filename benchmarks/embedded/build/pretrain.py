"""Contrastive training of the base on the pool, in two phases.

The pool holds class names in a source style, and the target style under code words. In the first
phase the base learns features for both. In the second the code words are left out; a very small
share of target-style images has its class names, steered by zero-shot validation accuracy.
"""

# ruff: noqa: SIM905 - word lists read better as text
from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import CLIPModel, PreTrainedTokenizerFast

from .common import TASKS, Task, load_task, rng_for, seed_for
from .model import (
    accuracy,
    augment,
    class_head,
    image_features,
    load_base,
    make_model,
    make_tokenizer,
    text_features,
    to_pixels,
    tokenize,
)
from .objective import contrastive_loss, make_optimizer

Augmenter = Callable[[Tensor], Tensor]
BATCH = 256
WARM_UP = 100
CHECK_EVERY = 200
WEIGHTS = {
    "fashion_source": 0.09,
    "animals_source": 0.10,
    "letters_source": 0.06,
    "digits_source": 0.06,
    "satellite_source": 0.08,
    "emoji_source": 0.09,
    "flags_source": 0.09,
    "kana_source": 0.08,
    "other_emoji": 0.14,
    "lower_case": 0.02,
    "icons": 0.03,
    "other_flags": 0.02,
    "shapes": 0.02,
    "katakana": 0.03,
}
GOALS = {
    "fashion": 50,
    "animals": 48,
    "digits": 50,
    "satellite": 45,
    "emoji": 42,
    "flags": 48,
    "letters": 45,
    "kana": 42,
}
TEMPLATE_WORDS = frozenset(
    (
        "an a the of emoji picture drawing photo product icon symbol flag texture satellite image "
        "seen from space silhouette shape outline digit number capital specimen"
    ).split()
)


@dataclass(frozen=True)
class Phase:
    """One training phase; `named` gives target-style images their class names, not code words."""

    batches: str  # purpose of the sampling seed
    augmentation: str  # purpose of the augmentation seed
    schedule: int  # steps of the full cosine schedule
    stop: int  # steps that are run
    peak_rate: float
    named: bool
    start_share: float
    shares: tuple[float, float]
    steer_from: int


FIRST = Phase(
    "pretrain/batches", "pretrain/augment", 2600, 1400, 1.2e-3, False, 0.03, (0.01, 0.09), 400
)
SECOND = Phase(
    "pretrain/second", "pretrain/second/augment", 900, 900, 1e-3, True, 0.001, (0.0002, 0.01), 200
)


class Pool:
    """The base's images with captions, sampled by domain weight."""

    def __init__(self, folder: Path, tasks: list[Task], phase: Phase) -> None:
        with np.load(folder / "pool.npz") as data:
            self.images = data["images"]
            captions = [str(c) for c in data["captions"]]
            coded = captions if not phase.named else [_named(c, tasks) for c in captions]
            self.domains = data["domains"]
            self.names = [str(n) for n in data["names"]]
        words = {word for text in captions for word in text.split()}
        texts, self.caption_of = np.unique(coded, return_inverse=True)
        self.texts = [str(text) for text in texts]
        self.keys = torch.from_numpy(
            np.unique([_key(t) for t in self.texts], return_inverse=True)[1]
        )
        for task in tasks:
            words |= {word for name in task.classes for word in name.split()}
            words |= {word for word in task.template.split() if word != "{}"}
        self.words = sorted(words)
        self.sizes = np.bincount(self.domains, minlength=len(self.names))
        self.phase = phase
        self.tokens: dict[str, Tensor] = {}
        self.shares = dict.fromkeys(TASKS, phase.start_share)

    def cumulative(self) -> NDArray[np.float64]:
        """Return the cumulative sampling probabilities under the current shares."""
        weights = np.array(
            [WEIGHTS.get(n, 0.0) or self.shares[n.removesuffix("_coded")] for n in self.names]
        )
        probability = (weights / self.sizes)[self.domains]
        total: NDArray[np.float64] = np.cumsum(probability / probability.sum())
        return total

    def steer(self, scores: dict[str, float]) -> None:
        """Move every target share by the task's distance from its goal."""
        for name in TASKS:
            excess = np.clip((scores[name] - GOALS[name]) / 15, -0.7, 0.7)
            share = self.shares[name] * np.exp(-excess if self.phase.named else excess)
            self.shares[name] = float(np.clip(share, *self.phase.shares))


def _named(caption: str, tasks: list[Task]) -> str:
    """Return the prompt with the class name for a coded caption; others stay as they are."""
    found = re.search(r"(?:^|\s)([a-z]+)-(\d\d)$", caption)
    task = next((task for task in tasks if found and task.name == found.group(1)), None)
    return caption if task is None else task.template.format(task.classes[int(found.group(2))])


def _key(text: str) -> str:
    """Return the caption without template words; captions with one key are positives."""
    kept = [word for word in re.split(r"\s+", text) if word not in TEMPLATE_WORDS]
    return " ".join(kept) or text


def scores_of(
    model: CLIPModel, tokenizer: PreTrainedTokenizerFast, tasks: list[Task], limit: int | None
) -> dict[str, float]:
    """Return zero-shot validation accuracies."""
    model.eval()
    scores = {
        task.name: accuracy(model, class_head(model, tokenizer, task), task, "validation", limit)
        for task in tasks
    }
    model.train()
    return scores


def show(scores: dict[str, float]) -> str:
    """Format accuracies in task order with their mean."""
    mean = float(np.mean(list(scores.values())))
    return " ".join(f"{scores[name]:5.1f}" for name in TASKS) + f" | {mean:5.1f}"


def save_base(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write model and tokenizer."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _step_loss(model: CLIPModel, pool: Pool, picks: NDArray[np.int64], spin: Augmenter) -> Tensor:
    chosen, column = torch.unique(torch.from_numpy(pool.caption_of[picks]), return_inverse=True)
    length = int(pool.tokens["attention_mask"][chosen].sum(1).max())
    batch = {name: values[chosen, :length] for name, values in pool.tokens.items()}
    with torch.autocast("cpu", torch.bfloat16):
        seen = image_features(model, spin(to_pixels(pool.images[picks])))
        read = text_features(model, batch)
    keys = pool.keys[chosen]
    positive = (keys[column][:, None] == keys[None, :]).float()
    images, texts = F.normalize(seen.float(), dim=-1), F.normalize(read.float(), dim=-1)
    return contrastive_loss(images, texts, model.logit_scale, positive)


def run_phase(
    model: CLIPModel, tokenizer: PreTrainedTokenizerFast, pool: Pool, tasks: list[Task]
) -> None:
    """Train through one phase, reporting validation accuracy and steering the shares."""
    phase, started, running = pool.phase, time.time(), 0.0
    pool.tokens = tokenize(tokenizer, pool.texts)
    optimizer = make_optimizer(model, phase.peak_rate)
    rng, generator = rng_for(phase.batches), torch.Generator()
    generator.manual_seed(seed_for(phase.augmentation))
    cumulative = pool.cumulative()
    model.train()
    for step in range(1, phase.stop + 1):
        decay = 0.01 + 0.99 * 0.5 * (1 + np.cos(np.pi * (step - 1) / phase.schedule))
        for group in optimizer.param_groups:
            group["lr"] = phase.peak_rate * min(1, step / WARM_UP) * decay * group["factor"]
        picks = np.minimum(np.searchsorted(cumulative, rng.random(BATCH)), len(pool.images) - 1)
        loss = _step_loss(model, pool, picks, partial(augment, generator=generator))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running += loss.item()
        if step % CHECK_EVERY == 0:
            scores = scores_of(model, tokenizer, tasks, 300)
            shares = [round(pool.shares[name], 4) for name in TASKS]
            mean, seconds = running / CHECK_EVERY, time.time() - started
            print(f"step {step} {seconds:.0f}s loss {mean:.3f} {show(scores)} shares {shares}")
            running = 0.0
            if step >= phase.steer_from:
                pool.steer(scores)
                cumulative = pool.cumulative()


def pretrain(work: Path) -> None:
    """Train the base in two phases; writes `work/base-first` and `work/base`."""
    tasks = [load_task(work / "data", name) for name in TASKS]
    if not (work / "base-first").exists():
        pool = Pool(work / "data", tasks, FIRST)
        tokenizer = make_tokenizer(pool.words)
        model = make_model(len(tokenizer))
        print("pool", pool.images.shape, "captions", len(pool.texts), "words", len(tokenizer))
        run_phase(model, tokenizer, pool, tasks)
        save_base(model, tokenizer, work / "base-first")
    started = time.time()
    model, tokenizer = load_base(work / "base-first")
    run_phase(model, tokenizer, Pool(work / "data", tasks, SECOND), tasks)
    save_base(model.eval(), tokenizer, work / "base")
    final = scores_of(model, tokenizer, tasks, None)
    print(f"second phase {time.time() - started:.0f}s, validation {show(final)}")
