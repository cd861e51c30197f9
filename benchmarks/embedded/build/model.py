"""The small CLIP: configuration, initialisation, word-level tokenizer and class heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

from .common import Images, Task, seed_for

WIDTH, DEPTH, HEADS, PROJECTION = 160, 6, 5, 128
TEXT_LENGTH = 16
SPECIAL = ("<pad>", "<bos>", "<unk>", "<eos>")
PAD, BOS, UNKNOWN, EOS = range(4)
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(1, 3, 1, 1)
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(1, 3, 1, 1)


def make_config(vocabulary: int) -> CLIPConfig:
    """Return the configuration; eos is not id 2, which would select CLIP's legacy pooling."""
    vision = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "image_size": 32,
        "patch_size": 8,
        "projection_dim": PROJECTION,
    }
    text = {
        "vocab_size": vocabulary,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": TEXT_LENGTH,
        "projection_dim": PROJECTION,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    return CLIPConfig(text_config=text, vision_config=vision, projection_dim=PROJECTION)


def _positions() -> Tensor:
    """Return sine and cosine positions of the 4x4 patches; the class token's row is zero."""
    quarter = WIDTH // 4
    rows, cols = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    frequency = torch.linspace(0.4, 2.4, quarter)
    table = torch.zeros(17, WIDTH)
    for axis, coordinate in enumerate((rows, cols)):
        phase = coordinate.reshape(-1, 1) * frequency + axis
        start = axis * 2 * quarter
        table[1:, start : start + quarter] = torch.sin(phase)
        table[1:, start + quarter : start + 2 * quarter] = torch.cos(phase)
    return table * 0.4


def make_model(vocabulary: int) -> CLIPModel:
    """Return a freshly initialised model (seeded)."""
    torch.manual_seed(seed_for("model/init"))
    model = CLIPModel._from_config(make_config(vocabulary), attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embedding" not in name:
                torch.nn.init.trunc_normal_(parameter, std=0.8 * parameter.shape[1] ** -0.5)
        embeddings = model.vision_model.embeddings
        embeddings.patch_embedding.weight.normal_(0, 0.04)
        embeddings.position_embedding.weight.copy_(_positions())
        embeddings.class_embedding.normal_(0, 0.3)
        model.text_model.embeddings.token_embedding.weight.normal_(0, 0.3)
        model.logit_scale.fill_(3.0)
    return model


def make_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer that frames a text by begin and end tokens."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[BOS]} $A {SPECIAL[EOS]}",
        special_tokens=[(SPECIAL[BOS], BOS), (SPECIAL[EOS], EOS)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[PAD],
        bos_token=SPECIAL[BOS],
        unk_token=SPECIAL[UNKNOWN],
        eos_token=SPECIAL[EOS],
        model_max_length=TEXT_LENGTH,
    )


def tokenize(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> dict[str, Tensor]:
    """Encode texts, padded to the fixed length."""
    batch = tokenizer(
        texts, padding="max_length", truncation=True, max_length=TEXT_LENGTH, return_tensors="pt"
    )
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


def to_pixels(images: Images) -> Tensor:
    """Return normalised pixel tensors of uint8 images."""
    tensor = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 255
    return (tensor - MEAN) / STD


def image_features(model: CLIPModel, pixels: Tensor) -> Tensor:
    """Return projected image features (not normalised)."""
    pooled = model.vision_model(pixel_values=pixels).pooler_output
    features: Tensor = model.visual_projection(pooled)
    return features


def text_features(model: CLIPModel, batch: dict[str, Tensor]) -> Tensor:
    """Return projected text features (not normalised)."""
    features: Tensor = model.text_projection(model.text_model(**batch).pooler_output)
    return features


@torch.no_grad()
def class_head(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, task: Task) -> Tensor:
    """Return the zero-shot head of one task: normalised text features of its prompts."""
    prompts = [task.template.format(name) for name in task.classes]
    return F.normalize(text_features(model, tokenize(tokenizer, prompts)), dim=-1)


@torch.no_grad()
def accuracy(
    model: CLIPModel, head: Tensor, task: Task, split: str, limit: int | None = None
) -> float:
    """Return the zero-shot accuracy in percent on one split."""
    images, labels = task.splits[split]
    images, labels = images[:limit], labels[:limit]
    hits = 0
    for start in range(0, len(images), 250):
        features = image_features(model, to_pixels(images[start : start + 250]))
        predicted = (F.normalize(features.float(), dim=-1) @ head.T).argmax(1).numpy()
        hits += int((predicted == labels[start : start + 250]).sum())
    return 100.0 * hits / len(images)


def augment(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Apply small random affine maps and brightness changes."""
    count = len(pixels)

    def spread(amount: float) -> Tensor:
        return (torch.rand(count, generator=generator) * 2 - 1) * amount

    angle, scale = spread(8) * np.pi / 180, 1 + spread(0.12)
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0] = torch.cos(angle) * scale
    matrix[:, 0, 1] = -torch.sin(angle) * scale
    matrix[:, 1, 0] = torch.sin(angle) * scale
    matrix[:, 1, 1] = torch.cos(angle) * scale
    matrix[:, 0, 2], matrix[:, 1, 2] = spread(0.08), spread(0.08)
    grid = F.affine_grid(matrix, list(pixels.shape), align_corners=False)
    moved = F.grid_sample(pixels, grid, align_corners=False, padding_mode="border")
    gain, offset = 1 + spread(0.2), spread(0.3)
    return moved * gain.view(-1, 1, 1, 1) + offset.view(-1, 1, 1, 1)


def load_base(folder: Path) -> tuple[CLIPModel, PreTrainedTokenizerFast]:
    """Load a model folder with eager attention (faster than sdpa for 17 tokens on a CPU)."""
    model = CLIPModel.from_pretrained(folder, attn_implementation="eager").eval()
    return model, PreTrainedTokenizerFast.from_pretrained(folder)
