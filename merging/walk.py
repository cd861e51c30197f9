"""Merged model and experts in lockstep, one residual block at a time.

For each stack of blocks the hidden states that enter its first block are recorded once per batch;
later blocks are reached by replaying single blocks, the merged model's stream through the blocks
as edited so far, each expert's through its own. Batches must not be padded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .experts import Experts
from .layouts import layout_of, run
from .norms import is_norm


class _Reached(Exception):
    """Leaves a forward pass once all that is needed has been recorded."""


@dataclass
class Call:
    """How a block was called, apart from its hidden states: positional and keyword arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def same_objects(self, other: Call) -> bool:
        """Whether both calls passed the very same objects (so one can stand for the other)."""
        mine, theirs = (
            [*call.args, *(value for _, value in sorted(call.kwargs.items()))]
            for call in (self, other)
        )
        return (
            len(mine) == len(theirs)
            and self.kwargs.keys() == other.kwargs.keys()
            and all(a is b for a, b in zip(mine, theirs, strict=True))
        )


@dataclass
class Stream:
    """One batch on its way through one model's stack."""

    hidden: Tensor
    calls: list[Call]  # one per block, or a single one that serves every block

    def replay(self, block: nn.Module, index: int) -> Tensor:
        """The block's output hidden states for this batch; does not move the stream."""
        call = self.calls[index if len(self.calls) > 1 else 0]
        tracked = not self.hidden.is_inference()
        version = self.hidden._version if tracked else 0
        output = block(self.hidden, *call.args, **call.kwargs)
        if tracked and self.hidden._version != version:
            raise ValueError(
                f"block {index} ({type(block).__name__}) changes its input in place, so it cannot "
                "be replayed; write x = x + f(x) instead of x += f(x)"
            )
        return output[0] if isinstance(output, tuple) else output


@contextlib.contextmanager
def _hooks(handles: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def record(
    model: nn.Module, blocks: Sequence[nn.Module], batch: Mapping[str, Any], *, first_only: bool
) -> Stream:
    """The hidden states that enter the first block, and how each block is called.

    With ``first_only`` the pass stops at the first block, whose call then serves all of them.
    """
    hidden: list[Tensor] = []
    calls: list[Call] = []

    def before(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args:
            first, rest = args[0], args[1:]
        else:  # hidden states passed by keyword are the first one
            kwargs = dict(kwargs)
            first, rest = kwargs.pop(next(iter(kwargs))), ()
        if not hidden:
            hidden.append(first)
        calls.append(Call(rest, kwargs))
        if first_only or len(calls) == len(blocks):
            raise _Reached

    handles = [block.register_forward_pre_hook(before, with_kwargs=True) for block in blocks]
    with _hooks(handles), contextlib.suppress(_Reached):
        run(model, batch)
        raise RuntimeError("the forward pass ended before the last block: a block was skipped")
    if all(call.same_objects(calls[0]) for call in calls[1:]):
        calls = calls[:1]
    return Stream(hidden[0], calls)


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
    """Names of the linear and normalisation layers inside a block."""
    for name, module in block.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            raise ValueError(
                f"{name!r} is a fused nn.MultiheadAttention, whose linear maps cannot be seen; "
                "call merging.attention.split_attention on the base model and every expert"
            )
    return [
        name
        for name, module in block.named_modules()
        if isinstance(module, nn.Linear) or is_norm(module)
    ]


def replay_inputs(
    stream: Stream, block: nn.Module, index: int, names: Collection[str], *, need_output: bool
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Input of each named module (in the order they run), and the block's output if needed.

    Without it the replay ends at the last named module, which itself is not run.
    """
    inputs: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            inputs[name] = args[0]
            if not need_output and len(inputs) == len(names):
                raise _Reached

        return hook

    handles = [block.get_submodule(name).register_forward_pre_hook(keep(name)) for name in names]
    output = None
    with _hooks(handles), contextlib.suppress(_Reached):
        output = stream.replay(block, index)
    missed = [name for name in names if name not in inputs]
    if missed:
        raise RuntimeError(
            f"modules {missed} of block {index} were not run by its forward pass; a model that "
            "caches keys and values needs use_cache=False in its batches"
        )
    return inputs, output


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

    def advance(self) -> None:
        """Move every stream past this block; an expert's output known from ``inputs`` is used."""
        for task in self.tasks:
            outputs = self._expert_outputs.get(task)
            if outputs is None:
                expert = self.expert(task)
                outputs = [s.replay(expert, self.index) for s in self._expert_streams[task]]
            for stream, output in zip(self._expert_streams[task], outputs, strict=True):
                stream.hidden = output
            for stream in self._merged_streams[task]:
                stream.hidden = stream.replay(self.merged, self.index)


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
