"""Features, as the head reads them, of a model on calibration batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .layouts import layout_of, run
from .replay import hooks
from .timing import section

Batch = Mapping[str, Any]


@torch.no_grad()
def features(model: nn.Module, batches: Sequence[Batch], where: str) -> Tensor:
    """Rows (n, d): one per example, or one per token where the feature is a sequence.

    Raises FloatingPointError that names ``where`` and the first block whose output is NaN or
    infinite.
    """
    with section("encode"):
        result = torch.cat([_rows(model, batch) for batch in batches])
        bad = int((~torch.isfinite(result)).any(-1).sum())
    if bad:
        raise FloatingPointError(
            f"{where}: {bad} of {len(result)} feature rows are NaN or infinite, first in "
            f"{_first_bad(model, batches)}; check the weights (a merger's scale may be too large)"
        )
    return result


def _rows(model: nn.Module, batch: Batch) -> Tensor:
    kept: list[Tensor] = []
    module = model.get_submodule(layout_of(model).feature)
    with hooks([module.register_forward_hook(lambda _m, _i, output: kept.append(output))]):
        run(model, batch)
    return kept[-1].reshape(-1, kept[-1].shape[-1])


def _first_bad(model: nn.Module, batches: Sequence[Batch]) -> str:
    """Path of the first block whose output is not finite on some batch."""
    layout, bad = layout_of(model), []
    paths = [f"{s}.{i}" for s in layout.stacks for i in range(len(model.get_submodule(s)))]

    def look(path: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            if not torch.isfinite(hidden).all():
                bad.append(path)

        return hook

    with hooks([model.get_submodule(p).register_forward_hook(look(p)) for p in paths]):
        for batch in batches:
            run(model, batch)
            if bad:
                return f"block {bad[0]}"
    return f"the feature module {layout.feature!r}, after the last block"


class Rows:
    """Feature rows by number, encoded anew whenever they are asked for: code without a cache.

    Rows are numbered as ``features`` numbers those of the same batches. ``model`` is only asked
    how many rows an example has.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Batch]) -> None:
        groups: dict[object, list[Batch]] = {}
        table, counts = [], {}
        for batch in batches:  # batches of equal shapes become one, so that any rows go together
            key = tuple((k, v.shape[1:] if isinstance(v, Tensor) else v) for k, v in batch.items())
            each = len(_rows(model, select(batch, torch.zeros(1, dtype=torch.long))))
            groups.setdefault(key, []).append(batch)
            first, count = counts.get(key, 0), examples(batch)
            counts[key] = first + count
            group = list(groups).index(key)
            table += [(group, first + e, t) for e in range(count) for t in range(each)]
        self._groups = [join(group) for group in groups.values()]
        self._table = torch.tensor(table)

    def __len__(self) -> int:
        return len(self._table)

    def encode(self, model: nn.Module, indices: Tensor, where: str) -> Tensor:
        """The rows' features, (len(indices), d), each example encoded once."""
        group, example, token = self._table[indices].unbind(1)
        found, places = [], []
        for number in group.unique().tolist():
            place = (group == number).nonzero()[:, 0]
            chosen, inverse = example[place].unique(return_inverse=True)
            rows = features(model, [select(self._groups[number], chosen)], where)
            rows = rows.unflatten(0, (len(chosen), -1))
            found.append(rows[inverse, token[place]])
            places.append(place)
        return torch.cat(found)[torch.cat(places).argsort()]


def examples(batch: Batch) -> int:
    """Number of examples in a batch."""
    return len(next(value for value in batch.values() if isinstance(value, Tensor)))


def select(batch: Batch, indices: Tensor) -> dict[str, Any]:
    """Some examples of a batch."""
    return {
        key: value[indices.to(value.device)] if isinstance(value, Tensor) else value
        for key, value in batch.items()
    }


def join(batches: Sequence[Batch]) -> dict[str, Any]:
    """Batches of equal shapes as one."""
    return {
        key: torch.cat([b[key] for b in batches]) if isinstance(value, Tensor) else value
        for key, value in batches[0].items()
    }
