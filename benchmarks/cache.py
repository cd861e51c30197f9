"""Features kept by content: one encoding of a split serves every correction of the same weights."""

from __future__ import annotations

import hashlib
import weakref
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
        self._hashes: weakref.WeakKeyDictionary[nn.Module, tuple[int, str]]
        self._hashes = weakref.WeakKeyDictionary()

    def get(self, model: nn.Module, names: tuple[str, ...], make: Callable[[], Tensor]) -> Tensor:
        """The features under the model's weights and ``names``, made if they are not there."""
        key = (self._hash(model), *names)
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key]
        made = self._entries[key] = make()
        self._held += made.numel() * made.element_size()
        while self._held > self._limit and len(self._entries) > 1:
            _, old = self._entries.popitem(last=False)
            self._held -= old.numel() * old.element_size()
        return made

    def _hash(self, model: nn.Module) -> str:
        """Hash of the weights; remembered until one of them is written to or replaced."""
        tensors = [*model.parameters(), *model.buffers()]
        tracked = not any(t.is_inference() for t in tensors)  # else torch counts no writes
        state = hash(tuple((t.data_ptr(), t._version) for t in tensors)) if tracked else 0
        known = self._hashes.get(model)
        if known is None or known[0] != state or not tracked:
            digest = hashlib.blake2b(type(model).__name__.encode())
            for name, tensor in model.state_dict().items():
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(
                    tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
                )
            known = self._hashes[model] = (state, digest.hexdigest())
        return known[1]
