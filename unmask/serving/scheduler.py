"""Which requests share a forward, which share a decision, and how a shared decision is taken apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count, islice, repeat
from typing import Any, NamedTuple

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
from unmask.decoding.transfer import to_device, to_host
from unmask.decoding.turns import Todo, Turn
from unmask.serving.request import CachePlace, RunningRequest, is_pooled
from unmask.serving.shapes import FEW_COLUMNS, round_length, split_rows
from unmask.types import Cache, Decision, MaskedLM, Prediction

MIN_LENGTH = 0.75  # of the longest row of a forward, to which all are padded
FAR = 1023  # columns that a row may see beside shorter ones where keys are copied; beyond, like joins like
PROMPT_UNIT = 64  # columns of a prompt are rounded up to a multiple of this, and of more for long ones


def begin_cache(model: Any, request: RunningRequest) -> None:
    """Let the cache of a new request begin with what the pool holds of its prompt."""
    cache, canvas = request.cache, request.rows.canvas
    if isinstance(cache, AppendCache) and is_pooled(model, request.run):
        padding = 0 if canvas.attend is None else int((~canvas.attend).sum())
        model.runner.kv_pool.begin(cache, canvas.tokens[0, : cache.block.start], padding)


def forward_groups(
    model: MaskedLM, requests: Sequence[RunningRequest], *, alone: bool
) -> list[list[RunningRequest]]:
    """Group requests that are worth one forward.

    Rows are of like length, as all are padded to the longest. Rows with a block cache are of equal length and
    run the same columns; with an exact cache they may have any length. Guided rows, which run twice, share a
    forward with each other. Every request is in a group, so none waits for another.
    """
    if alone:
        return [[request] for request in requests]
    kinds: dict[object, list[RunningRequest]] = {}
    for request in requests:
        kinds.setdefault(_kind(model, request), []).append(request)
    groups: list[list[RunningRequest]] = []
    for kind in kinds.values():
        first = kind[0]
        if isinstance(first.cache, AppendCache):
            for part in _of_like_width(model, kind):
                groups += _split(model, part, max(_width(model, row) for row in part))
            continue
        length = _compiled_length(model, first)
        groups += _of_like_length(kind) if length is None else _split(model, kind, length)
    return groups


def _split(model: MaskedLM, rows: list[RunningRequest], length: int) -> list[list[RunningRequest]]:
    """Split rows into forwards of few sizes, if every size must be compiled."""
    if getattr(model, "runner", None) is None:
        return [rows]
    upcoming = iter(rows)
    sizes = split_rows(len(rows), length * rows[0].request.num_rows)
    return [list(islice(upcoming, size)) for size in sizes]


def _of_like_width(model: MaskedLM, rows: list[RunningRequest]) -> list[list[RunningRequest]]:
    """Split rows with exact caches by the columns that they run, unless all together are few.

    A row that begins a block runs two blocks, others run one. One wide forward is faster than two as long as
    its columns take no longer than its weights take to arrive.
    """
    parts: dict[int, list[RunningRequest]] = {}
    for row in rows:
        parts.setdefault(_width(model, row), []).append(row)
    if len(rows) * rows[0].request.num_rows * max(parts) <= FEW_COLUMNS:
        return [rows]
    return list(parts.values())


def _width(model: MaskedLM, request: RunningRequest) -> int:
    """Return how many columns a row with an exact cache runs.

    A captured forward of a prompt is bound to its width, so there prompts are rounded up to few widths.
    """
    assert isinstance(request.cache, AppendCache)
    columns = _running(model, request)
    width: int = columns.stop - columns.start
    if request.cache.is_short(width) or not is_pooled(model, request.run):
        return width
    return round_length(width, PROMPT_UNIT)


def _of_like_length(requests: Sequence[RunningRequest]) -> list[list[RunningRequest]]:
    groups: list[list[RunningRequest]] = []
    longest = 0
    for request in sorted(requests, key=lambda request: request.length, reverse=True):
        if longest and request.length >= MIN_LENGTH * longest:
            groups[-1].append(request)
        else:
            longest = request.length
            groups.append([request])
    return groups


def _compiled_length(model: MaskedLM, request: RunningRequest) -> int | None:
    """Return the length that a row is padded to, so that a compiled model meets few; None: its own.

    Rows with a cache, and those of models with blocks, keep theirs: their columns must not move.
    """
    runner = getattr(model, "runner", None)
    if runner is None or request.cache is not None or model.info.grid is not None:
        return None
    return round_length(request.length, runner.bucket)


def _kind(model: MaskedLM, request: RunningRequest) -> object:
    """Return a key: only requests with equal keys can share a forward."""
    guided, cache = request.run.guidance > 0, request.cache
    if cache is None:
        return guided, _compiled_length(model, request)
    if isinstance(cache, AppendCache):  # rows end with their block, so that all end in the same column
        width = _width(model, request)
        runner = getattr(model, "runner", None)
        reads_pages = is_pooled(model, request.run) and runner is not None and runner.reads_pages
        # elsewhere keys are copied, and a row that sees far more of them would let all others copy as many
        far = None if reads_pages else max(request.length, FAR).bit_length()
        return "exact", guided, None if cache.is_short(width) else width, far
    need, columns = _needed(model, request), _running(model, request)
    state = request.request.length, cache.state
    return guided, *state, columns.start, columns.stop, need.start, need.stop


def _needed(model: MaskedLM, request: RunningRequest) -> slice:
    """Return the columns whose states its next decision needs."""
    predicting: Callable[[slice], slice] = getattr(model, "predicting", lambda window: window)
    return predicting(request.turn.window)


def _running(model: MaskedLM, request: RunningRequest) -> slice:
    """Return the columns that its next forward runs."""
    assert request.cache is not None, "without a cache all columns run"
    return request.cache.columns(_needed(model, request), request.request.length)


def padded_length(
    model: MaskedLM, group: Sequence[RunningRequest], cache: Cache | None, *, alone: bool
) -> int:
    """Return the columns to which all rows of a forward are padded."""
    if isinstance(cache, SideBySide):
        return cache.length
    fixed = None if alone else _compiled_length(model, group[0])
    return fixed or max(row.length for row in group)


def decide_groups(requests: Iterable[RunningRequest]) -> list[list[RunningRequest]]:
    """Group requests that can be decided together."""
    groups: dict[object, list[RunningRequest]] = {}
    for request in requests:
        groups.setdefault(request.key, []).append(request)
    return list(groups.values())


def padded(requests: Sequence[RunningRequest], model: MaskedLM) -> list[RunningRequest]:
    """Repeat the last request up to a power of two, if every size of a batch must be compiled."""
    if getattr(model, "runner", None) is None:
        return list(requests)
    size = 1 << (len(requests) - 1).bit_length()
    return [*requests, *[requests[-1]] * (size - len(requests))]


@torch.no_grad()
def run_forward(
    model: MaskedLM, requests: Sequence[RunningRequest], device: torch.device, *, alone: bool
) -> None:
    """Run the model once on all requests; each takes the output of its window."""
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
    """Pad the rows on the left to a length; also returns the columns added."""
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
    """Return one cache of all rows, which may repeat a request.

    It is the one they share already, if they alone share it and in this order, else a copy.
    """
    shared, places = requests[0].cache, [CachePlace(row, len(requests)) for row in range(len(requests))]
    if shared is None:
        return None
    if isinstance(shared, AppendCache):
        if len(rows) == 1 and not is_pooled(model, rows[0].run):
            return shared
        parts = [(row.cache, row.length) for row in rows if isinstance(row.cache, AppendCache)]
        return SideBySide(parts, running=max(_width(model, row) for row in requests))
    if [(each.cache, each.cache_place) for each in requests] == [(shared, place) for place in places]:
        return shared
    lanes = requests[0].request.num_rows  # a guided request has a second row, in the cache's second half
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
    packed: Tensor  # [rows, parts * W + 4]: columns, flags of the row
    logits: Tensor | None  # [rows, W, V], if anybody watches


@torch.no_grad()
def decide(
    model: MaskedLM, requests: Sequence[RunningRequest], device: torch.device, *, alone: bool
) -> Decided:
    """Decide on requests with the same key; `alone` computes the logits of each row by itself."""
    rows = padded(requests, model)
    run, turn = rows[0].run, _join_turns([row.turn for row in rows], device)
    if run.guidance:  # its output is logits: see run_forward
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
    # a plain copy would wait for the forwards
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
    """Stack the rows of several turns of one width, on a device, with one copy."""
    todos, width = [part.todo for part in parts], parts[0].todo.masked.shape[1]
    columns = [
        torch.cat([part.started for part in parts])[:, None],
        torch.tensor([part.clock for part in parts], dtype=torch.float64),
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
    """Pack a decision for one transfer: [rows, parts * W + 4]."""
    decision = outcome.decision
    parts = [decision.commit, decision.eligible, decision.tokens, decision.revoke, decision.rewrite]
    goes_on = torch.zeros_like(decision.forced) if decision.open is None else decision.open
    flags = torch.stack([decision.forced, outcome.changed, outcome.broken, goes_on], dim=-1)
    return torch.cat([part.long() for part in (*parts, flags) if part is not None], dim=-1)


def start_reading(decided: Sequence[Decided]) -> Callable[[], list[list[Outcome]]]:
    """Start to copy all decisions to the host. The function returned waits and gives each request its own."""
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
    """Return the outcome of each request, on the CPU but for what its sampler carries."""
    whole, packed = decided.decision, packed[: len(decided.requests)]
    commit, eligible, tokens, *changes = torch.split(packed[:, :-4], whole.commit.shape[1], dim=1)
    revoke, rewrite = (
        None if part is None else changes.pop(0).bool() for part in (whole.revoke, whole.rewrite)
    )
    forced, changed, broken, goes_on = packed[:, -4:].bool().unbind(1)
    fields = {
        "commit": commit.bool(),
        "eligible": eligible.bool(),
        "forced": forced,
        "carry": whole.carry,
        "tokens": tokens,
        "revoke": revoke,
        "rewrite": rewrite,
        "open": None if whole.open is None else goes_on,
    }
    rows = zip(*map(_each_row, (*fields.values(), changed, broken)), strict=False)
    return [
        Outcome(Decision(**dict(zip(fields, own, strict=True))), row_changed, row_broken)
        for *own, row_changed, row_broken in rows
    ]


def _each_row(tensor: Tensor | None) -> Iterable[Any]:
    """Return the rows of a tensor, [1, ...] each; of None, None without end."""
    return repeat(None) if tensor is None else torch.split(tensor, 1)
