"""toy: three tasks of noisy prototype images, made in seconds in the layout of the real suites.

For tests and first tries. It takes the same loading code as every CLIP suite; its numbers say
nothing about methods.
"""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from merging.seeds import generator_for, seed_for

from ..progress import quiet_libraries
from .base import SUITES
from .clip import ClipSuite, folder_suite

VERSION = 2  # part of the cache folder's name: raise it when this file changes what it makes
TASKS = (("north", "North"), ("east", "East"), ("west", "West"))
CLASSES = ("one", "two", "three", "four")
TEMPLATES = ("a {} of %s", "{} of %s")
SIZES = {"train": 64, "validation": 32, "test": 48}
WORDS = ("<pad>", "<start>", "<end>", "<unk>", "a", "of", *CLASSES, *(name for name, _ in TASKS))
SIDE, SHIFT, NOISE = 16, 0.8, 0.6
# For speed alone, nothing here was chosen on data
SETTINGS = {"surgery": "surgery:steps=100", "probsurgery": "probsurgery:steps=100"}


def cache_folder() -> Path:
    """Where built suites are kept: ``$MERGECAL_CACHE`` or ``~/.cache/mergecal``."""
    return Path(os.environ.get("MERGECAL_CACHE", Path.home() / ".cache" / "mergecal"))


def toy_suite() -> ClipSuite:
    """The toy suite, built on first use into the cache folder."""
    root = cache_folder() / f"toy-{VERSION}"
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=root.parent, prefix="toy-unfinished-"))
        try:
            build(aside)
            aside.rename(root)
        except OSError:
            if not root.is_dir():  # another process may have finished first
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return folder_suite(root, "toy", "toy-ViT", TASKS, SETTINGS)


SUITES["toy"] = toy_suite


def build(root: Path) -> None:
    """Make data, labels, base and experts under ``root``."""
    from transformers import CLIPConfig, CLIPModel

    quiet_libraries()
    prototypes = {
        name: torch.rand((len(CLASSES), 3, SIDE, SIDE), generator=generator_for(0, "toy", name))
        for name, _ in TASKS
    }
    splits = {name: _write_task(root, name, prototypes[name]) for name, _ in TASKS}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(0, "toy", "initial weights"))
        model = CLIPModel(CLIPConfig(**_config()))
    base = root / "base"
    base.mkdir()
    tokens = _tokenizer(base)
    prompts = {name: tokens([t.format(c) for c in CLASSES for t in _templates(name)])
               for name, _ in TASKS}  # fmt: skip
    # The base sees each task's prototypes blended with their mirror images: a domain shift
    shifted = {
        name: (SHIFT * images.flip(-1) + (1 - SHIFT) * images, labels)
        for name, (images, labels) in splits.items()
    }
    _train(model, prompts, shifted, steps=60, rate=2e-3, purpose="base")
    copy.deepcopy(model).half().save_pretrained(base)  # float16, as shipped checkpoints are
    _processor(base)
    start = {key: value.clone() for key, value in model.state_dict().items()}
    for part in (model.text_model, model.text_projection, model.visual_projection):
        part.requires_grad_(False)
    model.logit_scale.requires_grad_(False)
    for name, _ in TASKS:
        model.load_state_dict(start)
        _train(model, prompts, {name: splits[name]}, steps=40, rate=1e-3, purpose=name)
        _save_tower(model, root / "experts" / name)


def _templates(name: str) -> list[str]:
    return [template % name for template in TEMPLATES]


def _config() -> dict:
    shared = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    text = {
        "vocab_size": len(WORDS),
        "num_hidden_layers": 1,
        "max_position_embeddings": 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 3,  # 2 would select an old pooling rule, so <unk> and <end> swap ids
    }
    vision = {"num_hidden_layers": 2, "image_size": SIDE, "patch_size": 8}
    return {
        "text_config": {**shared, **text},
        "vision_config": {**shared, **vision},
        "projection_dim": 24,
    }


def _tokenizer(folder: Path) -> object:
    """Write a word-level tokenizer to the folder; returns a function texts → model inputs."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = list(WORDS)
    words[2], words[3] = words[3], words[2]
    ids = {word: position for position, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>",
        special_tokens=[("<start>", ids["<start>"]), ("<end>", ids["<end>"])],
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<start>",
        eos_token="<end>",
        unk_token="<unk>",
        model_max_length=8,
    )
    fast.save_pretrained(folder)
    return lambda texts: fast(texts, padding=True, return_tensors="pt")


def _processor(folder: Path) -> None:
    from transformers import CLIPImageProcessor

    size = {"shortest_edge": SIDE}
    crop = {"height": SIDE, "width": SIDE}
    CLIPImageProcessor(size=size, crop_size=crop).save_pretrained(folder)


def _write_task(root: Path, name: str, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Write a task's parquet files and labels; returns the train images (0 to 1) and labels."""
    import datasets
    from PIL import Image

    (root / "labels").mkdir(exist_ok=True)
    content = {"classes": list(CLASSES), "templates": _templates(name)}
    (root / "labels" / f"{name}.json").write_text(json.dumps(content))
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=list(CLASSES))
    )
    (root / "data" / name).mkdir(parents=True)
    for split, size in SIZES.items():
        generator = generator_for(0, "toy", name, split)
        labels = torch.randint(len(CLASSES), (size,), generator=generator)
        noise = torch.randn((size, 3, SIDE, SIDE), generator=generator)
        images = (prototypes[labels] + NOISE * noise * 0.5).clamp(0, 1)
        pixels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        rows = []
        for array in pixels:
            buffer = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(array)).save(buffer, format="PNG")
            rows.append({"bytes": buffer.getvalue(), "path": None})
        table = datasets.Dataset.from_dict(
            {"image": rows, "label": labels.tolist()}, features=features
        )
        table.to_parquet(root / "data" / name / f"{split}.parquet")
        if split == "train":
            kept = images, labels
    return kept


def _train(
    model: nn.Module,
    prompts: dict[str, dict[str, Tensor]],
    data: dict[str, tuple[Tensor, Tensor]],
    *,
    steps: int,
    rate: float,
    purpose: str,
) -> None:
    """A few Adam steps of prompt classification on one or several tasks."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    generator = generator_for(0, "toy", "batches", purpose)
    model.train()
    for _ in range(steps):
        loss = torch.zeros(())
        for name, (images, labels) in data.items():
            rows = torch.randint(len(images), (32,), generator=generator)
            image, text = _embed(model, images[rows], prompts[name])
            loss = loss + nn.functional.cross_entropy(20 * image @ text.T, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def _embed(model: nn.Module, images: Tensor, tokens: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Normalised image embeddings and class embeddings (mean over templates)."""
    from ..images import normalise

    inputs = {key: tokens[key] for key in ("input_ids", "attention_mask")}
    text = model.text_projection(model.text_model(**inputs).pooler_output)
    text = nn.functional.normalize(text, dim=-1).unflatten(0, (len(CLASSES), -1)).mean(1)
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    pixels = normalise(images * 255, mean, std)
    image = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)
    return nn.functional.normalize(image, dim=-1), nn.functional.normalize(text, dim=-1)


def _save_tower(model: nn.Module, folder: Path) -> None:
    """Save the vision tower alone, as the public experts are saved."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    tower = {
        name: tensor.half().contiguous()
        for name, tensor in model.state_dict().items()
        if name.startswith("vision_model.")
    }
    save_file(tower, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        **model.config.vision_config.to_dict(),
        "architectures": ["CLIPVisionModel"],
        "dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
