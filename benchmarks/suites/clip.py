"""Image classification over a CLIP vision tower, with zero-shot heads from its text tower.

The same code reads Hub ids and local folders: a base in full ``CLIPModel`` layout, experts that
hold the vision tower only (as the public eight-task experts do), data sets with the columns
``image`` and ``label``, and one JSON file per task with class names and prompt templates.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from merging.api import Batch
from merging.layouts import run
from merging.state import check_keys

from ..cache import FeatureCache
from ..checkpoints import TOWER, Checkpoint, DiskExperts, TowerFile, canonical, config_of, read_base
from ..images import checked_labels, decode, load_split, normalise
from ..prompts import read_prompts
from .base import Predictions, Source, Suite, Task

PROJECTION = "visual_projection.weight"
TOKENS_PER_BATCH = 4608  # of calibration batches: large products that still fit the caches


@dataclass(eq=False)
class ClipSuite(Suite):
    """A suite whose tasks are image folders and whose models are CLIP vision towers.

    ``labels`` is the folder of ``<task>.json`` files: {"classes": [...], "templates": [...]}.
    """

    labels: str = ""
    exclude: tuple[str, ...] = ("visual_projection.*",)  # frozen in fine-tuning, from the base
    batch_size: int = 256
    _pixels: dict[tuple[str, str], Tensor] = field(default_factory=dict, repr=False)
    _features: FeatureCache = field(default_factory=FeatureCache, repr=False)
    _heads: dict[str, Tensor] = field(default_factory=dict, repr=False)
    _datasets: dict[tuple[str, str], object] = field(default_factory=dict, repr=False)
    _labels: dict[tuple[str, str], list[int]] = field(default_factory=dict, repr=False)

    # ---- models

    @cached_property
    def _base(self) -> nn.Module:
        from transformers import CLIPVisionModelWithProjection

        config, state = read_base(self.base.folder())
        vision = copy.deepcopy(config.vision_config)
        vision.projection_dim = config.projection_dim
        # float32 whatever the configuration says: its dtype is that of the file
        model = CLIPVisionModelWithProjection(vision).eval().float()
        parts = {name for name in state if name.startswith(TOWER) or name == PROJECTION}
        buffers = [name for name in model.state_dict() if name.endswith("position_ids")]
        missing = model.load_state_dict({n: state[n] for n in parts}, strict=False).missing_keys
        check_keys("the base's vision tower", parts, parts | (set(missing) - set(buffers)), "")
        return model.to(self.device)

    def base_model(self) -> nn.Module:
        """The base's vision tower and projection."""
        return self._base

    @cached_property
    def _files(self) -> dict[str, TowerFile]:
        base = {
            name: tuple(tensor.shape)
            for name, tensor in self._base.state_dict().items()
            if name.startswith(TOWER) and canonical(name)
        }
        files = {}
        for task in self.tasks:
            folder = task.expert.folder()
            files[task.name] = TowerFile(f"expert {task.name!r}", folder, base)
            config = config_of(folder)
            config = config.get("vision_config", config)
            for key in ("hidden_act", "num_attention_heads", "layer_norm_eps", "patch_size"):
                ours = getattr(self._base.config, key)
                if config.get(key, ours) != ours:
                    raise ValueError(
                        f"expert {task.name!r} ({folder}) has {key} {config[key]!r}, the base "
                        f"{ours!r}: its weights would compute something else"
                    )
        return files

    @cached_property
    def _experts(self) -> DiskExperts:
        return DiskExperts(self._files, self._base)

    def experts(self) -> DiskExperts:
        """Experts with the base's projection; only their towers are read from disk."""
        return self._experts

    # ---- prompts and heads

    def prompts(self, task: Task) -> tuple[list[str], list[str]]:
        """Class names and templates of a task."""
        return read_prompts(Path(self.labels) / f"{task.name}.json", task.name)

    def head(self, task: Task) -> Tensor:
        """Zero-shot head (classes, d): normalised mean of normalised prompt embeddings."""
        if task.name not in self._heads:
            self._fill_heads()
        return self._heads[task.name]

    @torch.inference_mode()
    def _fill_heads(self) -> None:
        from transformers import CLIPModel

        config, state = read_base(self.base.folder())
        clip = CLIPModel(config).eval().float()
        clip.load_state_dict(state, strict=False)  # names were checked, position ids may lack
        clip.to(self.device)
        for task in self.tasks:
            classes, templates = self.prompts(task)
            texts = [template.format(name) for name in classes for template in templates]
            tokens = self._tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
            inputs = {key: tokens[key].to(self.device) for key in ("input_ids", "attention_mask")}
            pooled = clip.text_model(**inputs).pooler_output
            embedded = nn.functional.normalize(clip.text_projection(pooled), dim=-1)
            mean = embedded.unflatten(0, (len(classes), len(templates))).mean(1)
            scale = clip.logit_scale.exp()
            self._heads[task.name] = scale * nn.functional.normalize(mean, dim=-1)

    # ---- data

    @cached_property
    def _processor(self) -> object:
        from transformers import CLIPImageProcessor

        return self._from_base(CLIPImageProcessor, "preprocessor_config.json")

    @cached_property
    def _tokenizer(self) -> object:
        from transformers import AutoTokenizer

        return self._from_base(AutoTokenizer, "tokenizer.json")

    def _from_base(self, kind: type, file: str) -> object:
        folder = self.base.folder()
        if not (folder / file).is_file():
            raise FileNotFoundError(f"base {folder} lacks {file}; fetch it again")
        try:
            return kind.from_pretrained(folder)
        except Exception as error:
            raise ValueError(f"base {folder}: {file} cannot be used: {error}") from error

    def _dataset(self, task: Task, split: str) -> object:
        key = (task.name, split)
        if key not in self._datasets:
            dataset = load_split(task, split)
            where = f"suite {self.name}, task {task.name!r}, {split}"
            self._labels[key] = checked_labels(dataset, self.prompts(task)[0], where)
            self._datasets[key] = dataset
        return self._datasets[key]

    def size(self, task: Task, split: str) -> int:
        """Number of images of a split."""
        return len(self._dataset(task, split))

    def pixels(self, task: Task, split: str, indices: Sequence[int] | None = None) -> Tensor:
        """uint8 pixels (n, 3, h, w) of a split, in full (then kept) or of some examples."""
        kept = self._pixels.get((task.name, split))
        if kept is not None:
            return kept if indices is None else kept[indices]
        dataset, where = self._dataset(task, split), f"{self.name} {task.name} {split}"
        start = time.perf_counter()
        rows = range(len(dataset)) if indices is None else indices
        pixels = decode(dataset, self._processor, rows, where)
        self.decode_seconds += time.perf_counter() - start
        if indices is None:
            self._pixels[task.name, split] = pixels
        return pixels

    def _inputs(self, pixels: Tensor) -> Batch:
        mean, std = self._processor.image_mean, self._processor.image_std
        return {"pixel_values": normalise(pixels.to(self.device), mean, std)}

    def batches(self, task: Task, split: str, indices: Sequence[int]) -> list[Batch]:
        """Batches of about ``TOKENS_PER_BATCH`` tokens."""
        tokens = self._base.vision_model.embeddings.position_embedding.num_embeddings
        size = max(1, TOKENS_PER_BATCH // tokens)
        chunks = self.pixels(task, split, indices).split(size)
        return [self._inputs(chunk) for chunk in chunks]

    @torch.inference_mode()
    def predict(
        self, model: nn.Module, task: Task, split: str, correction: nn.Module | None = None
    ) -> Predictions:
        """Logits: scaled cosine of the image's (corrected) embedding with each class."""
        head, scores = self.head(task), []
        for kept in self.embeddings(model, task, split).split(self.batch_size):
            rows = kept.to(self.device)
            rows = rows if correction is None else rows - correction(rows)
            scores.append((nn.functional.normalize(rows, dim=-1) @ head.T).cpu())
        return Predictions(torch.cat(scores), None, self._labels[task.name, split])

    @torch.inference_mode()
    def embeddings(self, model: nn.Module, task: Task, split: str) -> Tensor:
        """Projected features (n, d) of a split, not normalised; kept by the model's weights."""

        def encode() -> Tensor:
            chunks = self.pixels(task, split).split(self.batch_size)
            return torch.cat([run(model, self._inputs(c)).image_embeds.cpu() for c in chunks])

        return self._features.get(model, (task.name, split), encode)

    # ---- doors

    def check(
        self, splits: Sequence[str] = ("train", "test"), scored: Sequence[str] = ("test",)
    ) -> None:
        """Read weights, class lists, prompts and labels once; decode what will be scored."""
        for file in self._files.values():
            file.read()
        for task in self.tasks:
            for split in splits:
                self._dataset(task, split)
            self.head(task)
            for split in scored:
                self.pixels(task, split)

    def fingerprint(self) -> str:
        """SHA-256 over the names and contents of all local files, and over Hub revisions."""
        digest = hashlib.sha256()
        for task in self.tasks:
            source = task.source
            parts = (task.name, self.base.revision, task.expert.revision, source.config,
                     source.revision, source.train, source.validation, source.test)  # fmt: skip
            digest.update(repr(parts).encode())
        digest.update(repr(self.exclude).encode())
        roots = [self.labels, self.base.path, *(t.expert.path for t in self.tasks)]
        for root in sorted({*roots, *(t.source.path for t in self.tasks)}):
            folder = Path(root)
            if not folder.is_dir():
                digest.update(root.encode())
                continue
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                digest.update(f"{path.relative_to(folder)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()[:16]


def folder_suite(  # noqa: PLR0917
    root: Path,
    name: str,
    backbone: str,
    tasks: tuple[tuple[str, str], ...],
    settings: Mapping,
    shown: str = "",
) -> ClipSuite:
    """A CLIP suite whose base, experts, data and labels lie in one folder."""
    return ClipSuite(
        name=name,
        backbone=backbone,
        base=Checkpoint(str(root / "base")),
        tasks=tuple(
            Task(
                task,
                title,
                Checkpoint(str(root / "experts" / task)),
                Source(str(root / "data" / task)),
            )
            for task, title in tasks
        ),
        settings=settings,
        shown=shown,
        labels=str(root / "labels"),
    )
