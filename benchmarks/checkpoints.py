"""Reading checkpoints: folders or Hub ids, canonical names, one block at a time, clear errors."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from merging.experts import Experts
from merging.state import check_keys

TOWER = "vision_model."


@dataclass(frozen=True)
class Checkpoint:
    """A folder, or a Hugging Face Hub id with a revision."""

    path: str
    revision: str | None = None

    def folder(self) -> Path:
        """The local folder; a Hub id is downloaded first (or found in the Hub's cache)."""
        if Path(self.path).is_dir():
            return Path(self.path)
        if Path(self.path).is_absolute() or self.path.startswith("."):
            raise FileNotFoundError(f"checkpoint folder {self.path} does not exist")
        from huggingface_hub import snapshot_download

        kinds = ["*.json", "*.safetensors", "*.txt"]
        return Path(snapshot_download(self.path, revision=self.revision, allow_patterns=kinds))


def canonical(name: str) -> str | None:
    """Our name of a vision-tower tensor, or None for what is not part of the tower.

    ``CLIPVisionModel`` of transformers 4 saves ``vision_model.*``; 5 drops the prefix. Position
    ids are a constant that old files hold and new ones do not.
    """
    if name.endswith("position_ids"):
        return None
    if name.startswith(TOWER):
        return name
    if name.startswith(("embeddings.", "encoder.", "pre_layrnorm.", "post_layernorm.")):
        return TOWER + name
    return None


@contextmanager
def opened(folder: Path) -> Iterator[safe_open]:
    """The folder's ``model.safetensors``; ValueError says which file is missing or damaged."""
    path = folder / "model.safetensors"
    if not path.is_file():
        found = ", ".join(sorted(p.name for p in folder.iterdir())) if folder.is_dir() else "none"
        raise FileNotFoundError(f"{path} does not exist (files there: {found})")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(
            f"{path} is damaged ({error}); fetch it again, e.g. with `git checkout` or a download"
        ) from error


def config_of(folder: Path) -> dict:
    """The folder's config.json; ValueError if it is missing or not JSON."""
    path = folder / "config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error


def read_base(folder: Path) -> tuple[object, dict[str, Tensor]]:
    """The base's ``CLIPConfig`` and its float32 state under the names of ``CLIPModel``.

    Raises ValueError unless the folder holds every tensor of the model, text tower and projections
    included, with the shapes of its configuration and finite values: nothing is ever left at
    random.
    """
    from transformers import CLIPConfig, CLIPModel

    what = f"base {folder}"
    content = config_of(folder)
    if "vision_config" not in content or "text_config" not in content:
        raise ValueError(
            f"{folder / 'config.json'} is not the configuration of a CLIPModel; it needs "
            "vision_config and text_config"
        )
    config = CLIPConfig(**content)
    with torch.device("meta"):
        expected = {
            name: tensor.shape
            for name, tensor in CLIPModel(config).state_dict().items()
            if not name.endswith("position_ids")
        }
    with opened(folder) as file:
        names = [name for name in file.keys() if not name.endswith("position_ids")]  # noqa: SIM118
        do = "it must be a full CLIPModel folder, not a tower alone (with a random projection)"
        check_keys(what, names, expected, do)
        state = {name: file.get_tensor(name).float() for name in names}
    for name, tensor in state.items():
        if tensor.shape != expected[name]:
            raise ValueError(
                f"{what}: {name} has shape {tuple(tensor.shape)}, its config.json says "
                f"{tuple(expected[name])}"
            )
    check_finite(what, state, "fetch the checkpoint again")
    return config, state


def check_finite(what: str, state: Mapping[str, Tensor], do: str) -> None:
    """Raise ValueError, naming the tensor, if any value is NaN or infinite."""
    for name, tensor in state.items():
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise ValueError(
                f"{what}: {name} holds {bad} NaN or infinite values of {tensor.numel()}; {do}"
            )


class TowerFile:
    """The vision tower in one checkpoint folder, checked against the base model's names.

    Only the header is read on construction. A projection in the file is ignored: the visual
    projection always comes from the base, so a tower can never run with a random one.
    """

    def __init__(self, what: str, folder: Path, base: Mapping[str, tuple[int, ...]]) -> None:
        self.what, self.folder = what, folder
        with opened(folder) as file:
            self.names = {c: name for name in file.keys() if (c := canonical(name))}  # noqa: SIM118
            shapes = {c: tuple(file.get_slice(n).get_shape()) for c, n in self.names.items()}
        check_keys(f"{what} ({folder})", shapes, base, "it must hold the base's vision tower")
        for name, shape in shapes.items():
            if shape != base[name]:
                raise ValueError(
                    f"{what} ({folder}): {name} has shape {shape}, the base model's is "
                    f"{base[name]}; was it fine-tuned from another backbone?"
                )

    def read(self, prefix: str = "") -> dict[str, Tensor]:
        """Tensors whose canonical names start with ``prefix``, in float32."""
        with opened(self.folder) as file:
            state = {
                name: file.get_tensor(stored).float()
                for name, stored in self.names.items()
                if name.startswith(prefix)
            }
        do = "fetch the checkpoint again or leave this task out"
        check_finite(f"{self.what} ({self.folder})", state, do)
        return state


class DiskExperts(Experts):
    """Experts read from disk when asked for.

    Towers that fit ``keep_bytes`` together are kept once read; otherwise each access reads its
    expert, or its block, again. ``seconds`` is the time spent reading so far, ``latest`` that of
    the latest reading of each whole expert.
    """

    def __init__(
        self, files: Mapping[str, TowerFile], base: nn.Module, keep_bytes: int = 2 << 30
    ) -> None:
        super().__init__(dict.fromkeys(files))
        self._files, self._base = files, base
        size = sum(p.numel() * p.element_size() for p in base.parameters())
        self._kept: dict[str, nn.Module] | None = {} if size * len(files) <= keep_bytes else None
        self.seconds = 0.0
        self.latest: dict[str, float] = {}

    def __getitem__(self, task: str) -> nn.Module:
        if self._kept is not None and task in self._kept:
            return self._kept[task]
        before = self.seconds
        model = self._load(self._base, self._files[task].read)
        self.latest[task] = self.seconds - before
        if self._kept is not None:
            self._kept[task] = model
        return model

    def submodule(self, task: str, path: str) -> nn.Module:
        """One module of an expert; reads only its tensors unless the expert is kept anyway."""
        if self._kept is not None:
            return super().submodule(task, path)
        prefix = path + "."

        def read() -> dict[str, Tensor]:
            state = self._files[task].read(prefix)
            return {name.removeprefix(prefix): tensor for name, tensor in state.items()}

        return self._load(self._base.get_submodule(path), read)

    def _load(self, like: nn.Module, read: Callable[[], dict[str, Tensor]]) -> nn.Module:
        start = time.perf_counter()
        model = copy.deepcopy(like)
        model.load_state_dict(read(), strict=False)  # names were checked against the base's
        self.seconds += time.perf_counter() - start
        return model
