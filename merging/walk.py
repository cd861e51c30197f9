"""Merged model and experts in lockstep, one residual block at a time.

For each stack of blocks the hidden states that enter its first block are recorded once per batch;
later blocks are reached by replaying single blocks, the merged model's stream through the blocks
as edited so far, each expert's through its own. Batches must not be padded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .experts import Experts
from .layouts import layout_of
from .norms import is_norm
from .replay import Stream, record, replay_inputs


def _check_eval(model: nn.Module, what: str) -> None:
    if model.training:  # dropout would make every replay another one
        raise ValueError(f"{what} is in training mode; call .eval() on it")


def _check_unpadded(batch: Mapping[str, Any], task: str) -> None:
    mask = batch.get("attention_mask")
    if isinstance(mask, Tensor) and not bool(mask.all()):
        raise ValueError(
            f"a calibration batch of task {task!r} is padded (its attention_mask has zeros), and "
            "padding would count as data; group examples of equal length into batches"
        )


def calibratable(block: nn.Module) -> list[str]:
    """Names of the linear and normalisation layers inside a block.

    Raises ValueError if the block has matrices outside such layers, which would stay as they are.
    """
    for name, module in block.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            raise ValueError(
                f"{name!r} is a fused nn.MultiheadAttention, whose linear maps cannot be seen; "
                "call merging.attention.split_attention on the base model and every expert"
            )
        loose = [n for n, p in module.named_parameters(recurse=False) if p.dim() > 1]
        if loose and not isinstance(module, nn.Linear | nn.Embedding):
            raise ValueError(
                f"{name or 'the block'!r} ({type(module).__name__}) has matrices of its own "
                f"({', '.join(loose)}) that are in no nn.Linear and would stay uncalibrated; split "
                "them into nn.Linear layers on the base model and every expert"
            )
    return [
        name
        for name, module in block.named_modules()
        if isinstance(module, nn.Linear) or is_norm(module)
    ]


@dataclass
class Step:
    """One residual block: edit ``merged`` in place, the walk propagates through the result."""

    stack: str
    index: int  # within its stack
    last: bool  # in its stack
    merged: nn.Module
    base: nn.Module
    tasks: tuple[str, ...]
    _experts: Experts
    _merged_streams: dict[str, list[Stream]]
    _expert_streams: dict[str, list[Stream]]
    _expert_outputs: dict[str, list[Tensor]] = field(default_factory=dict)
    _merged_outputs: dict[str, list[Tensor]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The block's dotted path in the model."""
        return f"{self.stack}.{self.index}"

    def expert(self, task: str) -> nn.Module:
        """The same block of an expert."""
        return self._experts.submodule(task, self.path)

    def inputs(
        self, names: Collection[str]
    ) -> Iterator[tuple[str, nn.Module, dict[str, Tensor], dict[str, Tensor]]]:
        """Per task and batch: task, expert's block, merged and expert inputs by module name.

        May be called again after an edit; each call replays the blocks as they now are.
        """
        for task in self.tasks:
            expert = self.expert(task)
            outputs = []
            for mine, theirs in zip(
                self._merged_streams[task], self._expert_streams[task], strict=True
            ):
                merged_inputs, _ = replay_inputs(
                    mine, self.merged, self.index, names, need_output=False
                )
                # experts are not edited: the output of any replay is the one to propagate
                wanted = not self.last and task not in self._expert_outputs
                expert_inputs, output = replay_inputs(
                    theirs, expert, self.index, names, need_output=wanted
                )
                outputs.append(output)
                yield task, expert, merged_inputs, expert_inputs
            if wanted:
                self._expert_outputs[task] = outputs

    def outputs(self) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        """Per task and batch: task, and three outputs of the block, (batch, tokens, d) each.

        They are the merged block's, the merged block's on the expert's input, and the expert's.
        For blocks that are not edited any more: the streams move on with these outputs.
        """
        for task in self.tasks:
            expert = self.expert(task)
            mine, theirs = [], []
            for merged_stream, expert_stream in zip(
                self._merged_streams[task], self._expert_streams[task], strict=True
            ):
                mine.append(merged_stream.replay(self.merged, self.index))
                theirs.append(expert_stream.replay(expert, self.index))
                yield task, mine[-1], expert_stream.replay(self.merged, self.index), theirs[-1]
            self._merged_outputs[task], self._expert_outputs[task] = mine, theirs

    def advance(self) -> None:
        """Move every stream past this block; an expert's output known from ``inputs`` is used."""
        for task in self.tasks:
            outputs = self._expert_outputs.get(task)
            if outputs is None:
                expert = self.expert(task)
                outputs = [s.replay(expert, self.index) for s in self._expert_streams[task]]
            for stream, output in zip(self._expert_streams[task], outputs, strict=True):
                stream.hidden = output
            known = self._merged_outputs.get(task)
            for position, stream in enumerate(self._merged_streams[task]):
                stream.hidden = known[position] if known else stream.replay(self.merged, self.index)


@torch.no_grad()
def walk(
    model: nn.Module,
    base: nn.Module,
    experts: Experts,
    calibration: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[Step]:
    """Every residual block of every stack in forward order, as a ``Step`` to edit.

    A later stack is recorded after the earlier ones have been edited, so a decoder's
    cross-attention sees the calibrated encoder.
    """
    tasks = tuple(experts)
    _check_eval(model, "the merged model")
    for stack in layout_of(model).stacks:
        blocks = list(model.get_submodule(stack))
        merged_streams: dict[str, list[Stream]] = {}
        expert_streams: dict[str, list[Stream]] = {}
        first_only = False
        for task in tasks:
            expert = experts[task]
            _check_eval(expert, f"expert {task!r}")
            theirs = list(expert.get_submodule(stack))
            merged_streams[task], expert_streams[task] = [], []
            for batch in calibration[task]:
                _check_unpadded(batch, task)
                mine = record(model, blocks, batch, first_only=first_only)
                merged_streams[task].append(mine)
                # One full pass tells whether later blocks are called as the first one is
                first_only = len(mine.calls) == 1
                expert_streams[task].append(record(expert, theirs, batch, first_only=first_only))
            del expert, theirs  # a lazily loaded expert is let go before the next one is loaded
        for index, block in enumerate(blocks):
            step = Step(
                stack,
                index,
                index == len(blocks) - 1,
                block,
                base.get_submodule(f"{stack}.{index}"),
                tasks,
                experts,
                merged_streams,
                expert_streams,
            )
            yield step
            if not step.last:
                step.advance()
