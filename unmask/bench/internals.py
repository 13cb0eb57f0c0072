"""The only benchmark code that reaches inside a model. Adapt this file when the model's forward changes.

It needs four things of `Trunk`:

- `ready(tokens, attend, window, cache)` starts a forward and returns a function that finishes it. A compiled
  model starts its first layers in `ready`. The loop calls the returned function only if it needs the forward.
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
from unmask.models.trunk import Trunk


class ForwardMarks(NamedTuple):
    """When the parts of each forward of a run began and ended."""

    opening: Spans  # the layers that start early
    rest: Spans  # the other layers
    head: Spans

    def forward_ms(self) -> float:
        """Mean milliseconds of a forward, without the gaps between its parts."""
        total = sum(spans.between(*pair) for spans in self for pair in spans.marks)
        return total / len(self.opening.marks)

    def step_ms(self) -> list[float]:
        """Milliseconds from the start of each forward to the start of the next."""
        return self.opening.steps()


def mark_forwards(model: Trunk, run: Callable[[], object], device: torch.device) -> ForwardMarks:
    """Call `run` and return the marks of every forward that it made with `model`.

    An early start that the loop drops does not count as a part of a forward.
    """
    marks = ForwardMarks(Spans(device), Spans(device), Spans(device))
    ready, logits = model.ready, model.logits

    def watched(*given: Any) -> Callable[[], Tensor]:
        opening = Spans(device)
        finish = opening.around(ready)(*given)

        def watched_finish() -> Tensor:
            marks.opening.marks.extend(opening.marks)
            return marks.rest.around(finish)()

        return watched_finish

    model.ready = watched  # type: ignore[method-assign, assignment]
    model.logits = marks.head.around(logits)  # type: ignore[method-assign]
    try:
        run()
        synchronize(device)
    finally:
        del model.ready, model.logits
    return marks


def unaligned_logits(model: Trunk, tokens: Tensor, attend: Tensor | None) -> Tensor:
    """Return the logits of every column, as the published code gives them: Dream's are shifted by one."""
    return model.logits(model.states(tokens, attend, slice(0, tokens.shape[1]), None))


def all_bytes(model: Trunk) -> int:
    """Return the bytes of all weights."""
    return sum(weight.nbytes for weight in model.parameters())


def read_bytes(model: Trunk) -> int:
    """Return the bytes that a forward must read: all weights except an embedding that is not the head."""
    embedding = 0 if model.head is None else model.embed.weight.nbytes
    return all_bytes(model) - embedding
