"""Experts as a mapping that may load lazily, and that can give one block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn


class Experts(Mapping[str, nn.Module]):
    """Task → expert. Iterates in sorted order of task names, so that sums do not depend on it.

    Subclasses that keep weights on disk override ``submodule`` to read one block only.
    """

    def __init__(self, experts: Mapping[str, nn.Module]) -> None:
        self._experts = experts
        self._tasks = tuple(sorted(experts))

    def __getitem__(self, task: str) -> nn.Module:
        return self._experts[task]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks  # the inherited one would load the expert

    def __len__(self) -> int:
        return len(self._tasks)

    def submodule(self, task: str, path: str) -> nn.Module:
        """The expert's module at a dotted path."""
        return self[task].get_submodule(path)
