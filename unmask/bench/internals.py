"""The only benchmark code that reaches inside a model. Adapt this file when the model's forward changes.

It needs four things from `Trunk`:

- `hidden_states(tokens, attend, window, cache)` runs a forward without its head. A compiled model may start
  it early instead: `runner.submit(...)` returns a handle, and its `result()` finishes the forward. The loop
  may also drop the handle.
- `logits(states)` applies the head.
- `states(tokens, attend, columns, cache)` returns the normed hidden states of the columns.
- `embed` and `head` hold their weights; `head` is None if it shares the embedding's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unmask.bench.timing import Spans, synchronize
from unmask.fast.graphs import Pending
from unmask.models.trunk import Trunk

# methods of a model that begin a forward, one for each kind of sampler needs
OPENINGS = ("hidden_states", "shadow_states", "attention_states")


class ForwardMarks(NamedTuple):
    """When the parts of each forward of a run began and ended."""

    opening: Spans  # the layers that were started early, or else all layers
    rest: Spans  # the remaining layers
    head: Spans

    def forward_ms(self) -> float:
        """Return the mean milliseconds of a forward, without the gaps between its parts."""
        total = sum(spans.between(*pair) for spans in self for pair in spans.marks)
        return total / len(self.opening.marks)

    def step_ms(self) -> list[float]:
        """Return the milliseconds from the start of each forward to the start of the next."""
        return self.opening.steps()


def mark_forwards(model: Trunk, run: Callable[[], object], device: torch.device) -> ForwardMarks:
    """Call `run` and return the marks of every forward that it made with `model`.

    An early start that the loop drops does not count as a part of a forward.
    """
    marks = ForwardMarks(Spans(device), Spans(device), Spans(device))
    openings = [name for name in OPENINGS if hasattr(model, name)]
    patched = [*((model, name, marks.opening) for name in openings), (model, "logits", marks.head)]
    for owner, name, spans in patched:
        setattr(owner, name, spans.around(getattr(owner, name)))
    runner: Any = model.runner
    if runner is not None:
        runner.submit = _marked_submit(runner.submit, marks, device)
    try:
        run()
        synchronize(device)
    finally:
        for owner, name, _ in patched:
            delattr(owner, name)
        if runner is not None:
            del runner.submit
    return marks


def _marked_submit(
    submit: Callable[..., Pending | None], marks: ForwardMarks, device: torch.device
) -> Callable[..., Pending | None]:
    """Mark the first layers of a forward when it is submitted, and the rest when it is finished."""

    def marked(*inputs: Any) -> Pending | None:
        opening = Spans(device)
        pending = opening.around(submit)(*inputs)
        if pending is None:
            return None

        def finish() -> Tensor:
            marks.opening.marks.extend(opening.marks)
            return marks.rest.around(pending.result)()

        return Pending(finish)

    return marked


def unaligned_logits(model: Trunk, tokens: Tensor, attend: Tensor | None) -> Tensor:
    """Return the logits of every column, as the published code gives them: Dream's are shifted by one."""
    return model.logits(model.states(tokens, attend, slice(0, tokens.shape[1]), None))


def all_bytes(model: Trunk) -> int:
    """Return the bytes of all weights."""
    return sum(weight.nbytes for weight in model.state_dict().values())


def read_bytes(model: Trunk) -> int:
    """Return the bytes that a forward must read: all weights except an embedding that is not the head."""
    embedding = [] if model.head is None else [*model.embed.parameters(), *model.embed.buffers()]
    return all_bytes(model) - sum(weight.nbytes for weight in embedding)
