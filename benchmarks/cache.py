"""Features kept by content: one encoding of a split serves every correction of the same weights."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

LIMIT_BYTES = 1 << 30


class FeatureCache:
    """(weights, task, split) → features (n, d); the entries used longest ago go first."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit, self._held = limit_bytes, 0
        self._entries: OrderedDict[tuple[str, ...], Tensor] = OrderedDict()

    def get(self, model: nn.Module, names: tuple[str, ...], make: Callable[[], Tensor]) -> Tensor:
        """The features under the model's weights and ``names``, made if they are not there."""
        if any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
            return make()  # a hook may change the features
        key = (_hash(model), *names)
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key]
        made = self._entries[key] = make()
        self._held += made.numel() * made.element_size()
        while self._held > self._limit and len(self._entries) > 1:
            _, old = self._entries.popitem(last=False)
            self._held -= old.numel() * old.element_size()
        return made


def _hash(model: nn.Module) -> str:
    """Hash of all weights and buffers; far cheaper than one pass over a split."""
    digest = hashlib.blake2b(type(model).__name__.encode())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()
