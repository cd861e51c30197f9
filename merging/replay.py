"""One block of a model on its own: record how a forward pass calls it, then call it again."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .layouts import run
from .timing import section


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
        with section("encode"):
            output = block(self.hidden, *call.args, **call.kwargs)
        if tracked and self.hidden._version != version:
            raise ValueError(
                f"block {index} ({type(block).__name__}) changes its input in place, so it cannot "
                "be replayed; write x = x + f(x) instead of x += f(x)"
            )
        return output[0] if isinstance(output, tuple) else output


@contextlib.contextmanager
def hooks(handles: list[Any]) -> Iterator[None]:
    """Remove the hooks at the end of the block, whatever happens in it."""
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
    with hooks(handles), contextlib.suppress(_Reached), section("encode"):
        run(model, batch)
        raise RuntimeError("the forward pass ended before the last block: a block was skipped")
    if all(call.same_objects(calls[0]) for call in calls[1:]):
        calls = calls[:1]
    return Stream(hidden[0], calls)


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
    with hooks(handles), contextlib.suppress(_Reached):
        output = stream.replay(block, index)
    missed = [name for name in names if name not in inputs]
    if missed:
        raise RuntimeError(
            f"modules {missed} of block {index} were not run by its forward pass; a model that "
            "caches keys and values needs use_cache=False in its batches"
        )
    return inputs, output
