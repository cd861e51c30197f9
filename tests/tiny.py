"""Tiny real models, experts around them and calibration batches, all built from fixed seeds."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from merging import Pool
from merging.attention import split_attention

TASKS = ("moths", "ants", "bees")  # not in sorted order, on purpose
WIDTH, IMAGE, FEATURE = 32, 16, 24


def noisy(model: nn.Module, seed: int, size: float) -> nn.Module:
    """A copy with Gaussian noise on every floating-point weight and float buffer."""
    draw = torch.Generator().manual_seed(seed)
    result = copy.deepcopy(model)
    floats = [*result.parameters(), *(b for b in result.buffers() if b.is_floating_point())]
    with torch.no_grad():
        for tensor in floats:
            tensor.add_(size * torch.randn(tensor.shape, generator=draw).to(tensor))
    return result


def clip() -> nn.Module:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=IMAGE,
        patch_size=8,
        projection_dim=FEATURE,
    )
    return CLIPVisionModelWithProjection(config)


def open_clip_fused() -> nn.Module:
    from open_clip.transformer import VisionTransformer

    return VisionTransformer(
        image_size=IMAGE,
        patch_size=8,
        width=WIDTH,
        layers=2,
        heads=4,
        mlp_ratio=4.0,
        output_dim=FEATURE,
    )


def open_clip() -> nn.Module:
    return split_attention(open_clip_fused())


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=48,
        d_model=WIDTH,
        d_kv=8,
        d_ff=4 * WIDTH,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
        decoder_start_token_id=0,
        tie_word_embeddings=True,
    )
    return T5ForConditionalGeneration(config)


class Counter(nn.Module):
    """A layer with an integer and a boolean buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.tensor([3, 1, 4]))
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x: Tensor) -> Tensor:
        return x


def mlp() -> nn.Module:
    """A plain module that no layout knows."""
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), Counter(), nn.Linear(8, 3, bias=False)
    )


BUILDERS = {"clip": clip, "open_clip": open_clip, "t5": t5, "mlp": mlp}
FAMILIES = ("clip", "open_clip", "t5")  # with a layout; mergers must also work on the mlp
MODELS = (*FAMILIES, "mlp")


@functools.cache
def _base(family: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = BUILDERS[family]()
    return noisy(model, 2, 0.05).eval()


@functools.cache
def _expert(family: str, number: int, dtype: torch.dtype, size: float) -> nn.Module:
    return noisy(copy.deepcopy(_base(family)).to(dtype), 10 + number, size)


def batches(family: str, seed: int, sizes: tuple[int, ...] = (5, 3)) -> list[dict[str, object]]:
    """Unlabelled batches of the given sizes; texts of one batch share a length."""
    draw = torch.Generator().manual_seed(seed)
    if family == "mlp":
        return []
    if family != "t5":
        return [{"pixel_values": torch.randn(n, 3, IMAGE, IMAGE, generator=draw)} for n in sizes]
    return [
        {
            "input_ids": torch.randint(2, 48, (n, 7 + index), generator=draw),
            "decoder_input_ids": torch.randint(2, 48, (n, 3 + index), generator=draw),
            "use_cache": False,
        }
        for index, n in enumerate(sizes)
    ]


def cast(value: object, dtype: torch.dtype) -> object:
    """A float tensor in another type; anything else as it is."""
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def pool_of(
    family: str,
    *,
    dtype: torch.dtype = torch.float32,
    size: float = 0.05,
    sizes: tuple[int, ...] = (5, 3),
    tasks: tuple[str, ...] = TASKS,
    **fields: object,
) -> Pool:
    """A fresh pool: a base, experts at distance ``size`` from it, two batches per task."""
    base = copy.deepcopy(_base(family)).to(dtype)
    experts = {task: copy.deepcopy(_expert(family, n, dtype, size)) for n, task in enumerate(tasks)}
    for position, expert in enumerate(experts.values()):
        for name, buffer in expert.named_buffers():
            if not buffer.is_floating_point() and not name.endswith("position_ids"):
                buffer.copy_(buffer.long() + position + 1)
    calibration = {
        task: [
            {key: cast(value, dtype) for key, value in batch.items()}
            for batch in batches(family, 20 + n, sizes)
        ]
        for n, task in enumerate(tasks)
    }
    if family == "mlp":
        calibration = {}
    return Pool(**{"base": base, "experts": experts, "calibration": calibration, **fields})


def state_of(*models: nn.Module) -> list[dict[str, Tensor]]:
    """Copies of the models' states, for comparisons before and after."""
    return [{k: v.clone() for k, v in model.state_dict().items()} for model in models]


def assert_equal_states(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """The same names in the same order, types and bits."""
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype, name
        assert torch.equal(got[name], tensor), name


def assert_close_states(
    got: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float
) -> None:
    """The same names and values up to an absolute tolerance."""
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        error = (got[name].double() - tensor.double()).abs().max()
        assert error <= tolerance, f"{name}: off by {error:.2e}"


def hooks_on(*models: nn.Module) -> list[str]:
    """Names of modules that carry a forward hook or pre-hook."""
    return [
        f"{type(model).__name__}.{name}"
        for model in models
        for name, module in model.named_modules()
        if module._forward_hooks or module._forward_pre_hooks
    ]


class LazyExperts(Mapping[str, nn.Module]):
    """Builds an expert at each look-up and counts how many of them are alive at once."""

    def __init__(self, experts: Mapping[str, nn.Module]) -> None:
        gc.freeze()  # so that looking for cycles below takes no time
        self._experts = dict(experts)
        self._alive: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.peak = self.loads = 0

    def __getitem__(self, task: str) -> nn.Module:
        model = copy.deepcopy(self._experts[task])
        self._alive.add(model)
        if len(self._alive) > 1:
            gc.collect()  # cycles inside a model are not the caller's doing
        self.loads += 1
        self.peak = max(self.peak, len(self._alive))
        return model

    def __iter__(self) -> Iterator[str]:
        return iter(self._experts)

    def __len__(self) -> int:
        return len(self._experts)
