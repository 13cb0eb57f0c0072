"""Run one forward or one decision for several requests, and split the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, repeat
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.decoding.append_cache import AppendCache, SideBySide
from unmask.decoding.bans import Allowed, Bans
from unmask.decoding.cache import BlockCache
from unmask.decoding.canvas import Canvas
from unmask.decoding.executor import executor_for, run_model
from unmask.decoding.guidance import Guided
from unmask.decoding.observe import Outcome
from unmask.decoding.rows import History, Written
from unmask.decoding.transfer import to_device, to_host, widest_float
from unmask.decoding.turns import Todo, Turn
from unmask.serving.request import CachePlace, RunningRequest, is_pooled
from unmask.serving.scheduler import forward_width, padded, padded_length
from unmask.types import Cache, Decision, MaskedLM, Prediction


@torch.no_grad()
def run_forward(
    model: MaskedLM, requests: Sequence[RunningRequest], device: torch.device, *, alone: bool
) -> None:
    """Run the model once on all requests, and give each the output of its window."""
    rows = padded(requests, model)
    cache = _join_caches(model, requests, rows)
    length = padded_length(model, rows, cache, alone=alone)
    canvas, shifts = _join_canvases(rows, length, model.info.pad_id, device)
    windows = [
        slice(row.turn.window.start + shift, row.turn.window.stop + shift)
        for row, shift in zip(rows, shifts, strict=True)
    ]
    window = slice(min(each.start for each in windows), max(each.stop for each in windows))
    if rows[0].run.guidance:
        scales = torch.tensor([row.run.guidance for row in rows], dtype=torch.float32)
        given = torch.zeros(canvas.tokens.shape, dtype=torch.bool)
        for i, (row, shift) in enumerate(zip(rows, shifts, strict=True)):
            given[i, shift : shift + row.length] = row.given[: row.length]
        model = Guided(model, to_device(scales, device)[:, None, None], to_device(given, device))
    output = run_model(model, canvas, window, cache)
    for request, each, own in zip(requests, output, windows, strict=False):
        request.output = each[own.start - window.start : own.stop - window.start]


def _join_canvases(
    rows: Sequence[RunningRequest], length: int, pad_id: int, device: torch.device
) -> tuple[Canvas, list[int]]:
    """Left-pad the rows to `length`; return the canvas and how many columns each row gained."""
    first = rows[0].rows.canvas
    shifts = [length - row.length for row in rows]
    joined, attend = torch.full((len(rows), length), pad_id), torch.zeros(len(rows), length, dtype=torch.bool)
    for i, (row, shift) in enumerate(zip(rows, shifts, strict=True)):
        canvas = row.rows.canvas
        joined[i, shift:] = canvas.tokens[0, : row.length]
        attend[i, shift:] = True if canvas.attend is None else canvas.attend[0, : row.length]
    padded = any(shifts) or any(row.rows.canvas.attend is not None for row in rows)
    tokens, real = to_device(joined, device), to_device(attend, device) if padded else None
    return Canvas(tokens, real, first.start, first.mask_id), shifts


def _join_caches(
    model: MaskedLM, requests: Sequence[RunningRequest], rows: Sequence[RunningRequest]
) -> Cache | None:
    """Return one cache for all rows; `rows` may repeat the last request.

    Exact caches stay separate, side by side. Block caches are copied into a new one, unless the requests are
    the only users of one already, in the same order.
    """
    shared, places = requests[0].cache, [CachePlace(row, len(requests)) for row in range(len(requests))]
    if shared is None:
        return None
    if isinstance(shared, AppendCache):
        if len(rows) == 1 and not is_pooled(model, rows[0].run):
            return shared
        parts = [(row.cache, row.length) for row in rows if isinstance(row.cache, AppendCache)]
        return SideBySide(parts, running=max(forward_width(model, row) for row in requests))
    if [(each.cache, each.cache_place) for each in requests] == [(shared, place) for place in places]:
        return shared
    lanes = requests[0].request.num_rows  # a guided request has a second row, in the second half of its cache
    caches = [(row.cache, row.cache_place.row) for row in rows if isinstance(row.cache, BlockCache)]
    joined = BlockCache.join(
        [(cache, row + lane * cache.rows // lanes) for lane in range(lanes) for cache, row in caches]
    )
    for request, place in zip(requests, places, strict=True):
        request.cache, request.cache_place = joined, place
    return joined


class Decided(NamedTuple):
    """A decision on some requests, on its way to the host."""

    requests: Sequence[RunningRequest]
    prediction: Prediction
    decision: Decision  # on the device
    packed: Tensor  # [rows, parts * W + 4], see `_pack`
    logits: Tensor | None  # [rows, W, V]; None if no job asks for candidates


@torch.no_grad()
def decide(
    model: MaskedLM, requests: Sequence[RunningRequest], device: torch.device, *, alone: bool
) -> Decided:
    """Decide for requests with the same key; with `alone`, compute the logits row by row."""
    rows = padded(requests, model)
    run, turn = rows[0].run, _join_turns([row.turn for row in rows], device)
    if run.guidance:  # `run_forward` stored guided logits, which need no head
        model = Guided(model, run.guidance, torch.empty(0))
    calls = count()
    executor = executor_for(model)(
        model,
        run.sampler,
        run.options,
        run.bans,
        blockwise=run.plan.blockwise,
        noise=lambda running, width: _draw(rows, next(calls), device),
    )
    bans = Bans.join([row.bans for row in rows])
    # copy the large tensors first: `bans.to` alone would wait for the forwards
    if bans.closed is not None:
        bans = replace(bans, closed=to_device(bans.closed, device))
    if bans.allowed is not None:
        classes, kinds, which = bans.allowed.classes, bans.allowed.kinds, bans.allowed.which
        bans = replace(bans, allowed=Allowed(*(to_device(part, device) for part in (classes, kinds, which))))
    bans = bans.to(device)
    output = torch.stack([row.output for row in rows if row.output is not None])
    size = 1 if alone else len(rows)
    parts = [slice(first, first + size) for first in range(0, len(rows), size)]
    prediction = Prediction.join([executor.read(output[part], bans.take(part)) for part in parts])
    history = History.join([row.rows.history for row in rows])
    outcome = executor.decide(turn, prediction, history, _join_written(rows, device))
    watched = any(request.job.candidates for request in requests)
    logits = executor.logits(output, bans) if watched else None
    return Decided(requests, prediction, outcome.decision, _pack(outcome), logits)


def _join_turns(parts: Sequence[Turn], device: torch.device) -> Turn:
    """Stack turns of equal width, and copy them to the device in one transfer."""
    todos, width = [part.todo for part in parts], parts[0].todo.masked.shape[1]
    columns = [
        torch.cat([part.started for part in parts])[:, None],
        torch.tensor([part.clock for part in parts], dtype=widest_float(device)),
        torch.cat([todo.masked for todo in todos]),
        torch.cat([todo.active for todo in todos]),
    ]
    urgent = [todo.urgent for todo in todos if todo.urgent is not None]
    if urgent:
        columns.append(torch.cat(urgent))
    packed = to_device(torch.cat(columns, dim=-1), device)
    started, clock = packed[:, :1], packed[:, 1:5]
    masked, active, *others = torch.split(packed[:, 5:].bool(), width, dim=-1)
    running = torch.ones(len(parts), dtype=torch.bool, device=device)
    todo = Todo(masked, active, running, running, len(parts), len(parts), others[0] if others else None)
    return replace(parts[0], todo=todo, started=started[:, 0].long(), clock=clock)


def _draw(rows: Sequence[RunningRequest], number: int, device: torch.device) -> Tensor:
    return to_device(torch.cat([row.draw(number) for row in rows]), device)


def _join_written(rows: Sequence[RunningRequest], device: torch.device) -> Written | None:
    parts = [row.rows.written(row.turn) for row in rows]
    held = [part for part in parts if part is not None]
    if not held:
        return None
    return Written(*(to_device(torch.cat(sides), device) for sides in zip(*held, strict=True)))


def _pack(outcome: Outcome) -> Tensor:
    """Pack the columns and the flags of a decision for one transfer, [rows, parts * W + 4]."""
    decision = outcome.decision
    parts = [decision.commit, decision.eligible, decision.tokens, decision.revoke, decision.rewrite]
    goes_on = torch.zeros_like(decision.forced) if decision.open is None else decision.open
    flags = torch.stack([decision.forced, outcome.changed, outcome.broken, goes_on], dim=-1)
    return torch.cat([part.long() for part in (*parts, flags) if part is not None], dim=-1)


def start_reading(decided: Sequence[Decided]) -> Callable[[], list[list[Outcome]]]:
    """Start to copy all decisions to the host; the returned function waits and returns their outcomes."""
    if not decided:
        return list
    arrived = to_host(torch.cat([each.packed.flatten() for each in decided]))

    def read() -> list[list[Outcome]]:
        parts = torch.split(arrived(), [each.packed.numel() for each in decided])
        return [
            _outcomes(each, part.view(each.packed.shape)) for each, part in zip(decided, parts, strict=True)
        ]

    return read


def _outcomes(decided: Decided, packed: Tensor) -> list[Outcome]:
    """Return the outcome of each request. Only the sampler's `carry` stays on the device."""
    whole, packed = decided.decision, packed[: len(decided.requests)]
    commit, eligible, tokens, *changes = torch.split(packed[:, :-4], whole.commit.shape[1], dim=1)
    revoke, rewrite = (
        None if part is None else changes.pop(0).bool() for part in (whole.revoke, whole.rewrite)
    )
    forced, changed, broken, goes_on = packed[:, -4:].bool().unbind(1)
    decision = Decision(commit.bool(), eligible.bool(), forced, whole.carry, tokens)
    decision = replace(decision, revoke=revoke, rewrite=rewrite, open=None if whole.open is None else goes_on)
    return list(map(Outcome, _split(decision), torch.split(changed, 1), torch.split(broken, 1)))


def _split(decision: Decision) -> Iterator[Decision]:
    """Yield the decision of each row."""
    names = "commit", "eligible", "forced", "carry", "tokens", "revoke", "rewrite", "open"
    parts = [getattr(decision, name) for name in names]
    each_row = (repeat(None) if part is None else torch.split(part, 1) for part in parts)
    for row in zip(*each_row, strict=False):
        yield Decision(**dict(zip(names, row, strict=True)))
