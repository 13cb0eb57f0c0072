"""Group the requests that share a forward, and those that share a decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from unmask.decoding.append_cache import AppendCache, SideBySide
from unmask.fast.graphs import runner_of
from unmask.serving.request import RunningRequest, is_pooled
from unmask.serving.shapes import FEW_COLUMNS, round_length, split_rows
from unmask.types import Cache, MaskedLM

MIN_LENGTH = 0.75  # shortest row of a forward, as a share of the longest, to which all are padded
FAR = 1023  # where keys are copied, rows that see more columns join only rows of similar length
PROMPT_UNIT = 64  # prompts are rounded up to a multiple of this, long ones to a larger unit


def forward_groups(
    model: MaskedLM, requests: Sequence[RunningRequest], *, alone: bool
) -> list[list[RunningRequest]]:
    """Group all requests into forwards.

    The rows of a group have similar lengths, because all are padded to the longest. With a block cache they
    have equal lengths and run the same columns. With an exact cache they may have any length. Guided rows run
    twice, so they share forwards only with each other.
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
                groups += _split(model, part, max(forward_width(model, row) for row in part))
            continue
        length = _compiled_length(model, first)
        groups += _of_like_length(kind) if length is None else _split(model, kind, length)
    return groups


def _split(model: MaskedLM, rows: list[RunningRequest], length: int) -> list[list[RunningRequest]]:
    """Split rows into forwards of few different sizes if the model is compiled for every size."""
    if runner_of(model) is None:
        return [rows]
    upcoming = iter(rows)
    sizes = split_rows(len(rows), length * rows[0].request.num_rows)
    return [list(islice(upcoming, size)) for size in sizes]


def _of_like_width(model: MaskedLM, rows: list[RunningRequest]) -> list[list[RunningRequest]]:
    """Split rows with exact caches by the number of columns that they run, unless the total is small.

    A row that begins a block runs two blocks, the others run one. While loading the weights takes longer than
    computing the columns, one wide forward is faster than two.
    """
    parts: dict[int, list[RunningRequest]] = {}
    for row in rows:
        parts.setdefault(forward_width(model, row), []).append(row)
    if len(rows) * rows[0].request.num_rows * max(parts) <= FEW_COLUMNS:
        return [rows]
    return list(parts.values())


def forward_width(model: MaskedLM, request: RunningRequest) -> int:
    """Return how many columns a row with an exact cache runs in its next forward.

    A captured forward is bound to its width, so there are few widths in the pool. A last block that is cut
    off runs as many columns as a whole one, and prompts are rounded up.
    """
    assert isinstance(request.cache, AppendCache)
    columns = _running(model, request)
    width: int = columns.stop - columns.start
    if not is_pooled(model, request.run):
        return width
    if request.cache.is_short(width):
        return width + request.cache.block.stop - request.length
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
    """Return the length to which a compiled model pads a row, or None if that is not fixed.

    Rows with a cache and rows of models with block attention have none, because their columns must not move.
    """
    runner = runner_of(model)
    if runner is None or request.cache is not None or model.info.grid is not None:
        return None
    return round_length(request.length, runner.bucket)


def _kind(model: MaskedLM, request: RunningRequest) -> object:
    """Return a key: only requests with equal keys can share a forward."""
    guided, cache = request.run.guidance > 0, request.cache
    if cache is None:
        return guided, _compiled_length(model, request), _place_in_block(model, request)
    if isinstance(cache, AppendCache):  # each row ends with its block, and left padding aligns the ends
        width, runner = forward_width(model, request), runner_of(model)
        reads_pages = runner is not None and runner.reads_pages and is_pooled(model, request.run)
        # otherwise keys are copied, and next to a row that sees many of them, all rows copy as many
        far = None if reads_pages else max(request.length, FAR).bit_length()
        prompt = None if cache.is_short(width) else width
        return "exact", guided, prompt, far, _place_in_block(model, request)
    need, columns = _needed(model, request), _running(model, request)
    state = request.request.length, cache.state
    return guided, *state, columns.start, columns.stop, need.start, need.stop


def _place_in_block(model: MaskedLM, request: RunningRequest) -> int:
    """Return where a row ends in its block, or 0 if padding may move it by any number of columns.

    Padding does not move a grid that counts from column 0, so rows may only move by whole blocks there.
    """
    grid = model.info.grid
    if grid is None or grid.origin == "row" or is_pooled(model, request.run):
        return 0
    return request.length % grid.length


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
    """Return the length to which all rows of a forward are padded."""
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
    """Repeat the last request up to a power of two if the model is compiled for every batch size."""
    if runner_of(model) is None:
        return list(requests)
    size = 1 << (len(requests) - 1).bit_length()
    return [*requests, *[requests[-1]] * (size - len(requests))]
