"""What a model and a sampler must give, yours too; looks at types, shapes and dtypes, hardly at values."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from unmask.decoding.bans import Bans
from unmask.decoding.canvas import Canvas
from unmask.decoding.options import Options
from unmask.decoding.plan import Plan
from unmask.errors import flag, token_ids, whole
from unmask.types import Decision, MaskedLM, ModelInfo, Needs, Sampler


def check_run(
    model: MaskedLM, canvas: Canvas, sampler: Sampler, plan: Plan, options: Options, bans: Bans
) -> None:
    """Raise if a run cannot work, before its first forward. Reads the device once."""
    is_model(model)
    is_sampler(sampler)
    check_needs(sampler)
    info = model.info
    generation, length = plan.columns, canvas.tokens.shape[1]
    if info.vocab_size < 2:
        raise ValueError(f"vocab_size must be >= 2, got {info.vocab_size}")
    if canvas.mask_id != info.mask_id:
        raise ValueError(f"the canvas uses mask id {canvas.mask_id}, the model {info.mask_id}")
    if options.min_new_tokens > length - canvas.start:
        raise ValueError(
            f"min_new_tokens must be at most the {length - canvas.start} tokens of the generation, "
            f"got {options.min_new_tokens}"
        )
    token_ids("eos_ids", info.eos_ids, info.vocab_size)
    token_ids("banned_ids", bans.ids, info.vocab_size)
    if len(set(bans.ids)) == info.vocab_size:
        raise ValueError("banned_ids rules out every token; leave at least one")
    behind = canvas.masked(slice(generation.stop, length)).any()
    unknown = ((canvas.tokens < 0) | (canvas.tokens >= info.vocab_size)).any()
    unplanned, foreign = torch.stack([behind, unknown]).tolist()
    if generation.start < canvas.start or generation.stop > length or unplanned:
        raise ValueError(
            f"the plan covers columns {generation.start} to {generation.stop}, but the canvas generates "
            f"in columns {canvas.start} to {length}; every mask must be inside the plan"
        )
    if foreign:
        token_ids("the canvas", canvas.tokens.flatten().tolist(), info.vocab_size)


def is_model(model: object) -> None:
    """Refuse what only names a model."""
    if isinstance(model, (str, Path)):
        raise ValueError(
            f"model must be a loaded model, got {str(model)!r}; load it with unmask.load({str(model)!r})"
        )
    if isinstance(model, type) or not callable(model) or not hasattr(model, "info"):
        raise ValueError(
            f"model must be a loaded model, got {type(model).__name__}; unmask.load gives one, "
            "and one of your own has `info` and can be called"
        )


def is_sampler(sampler: object) -> None:
    """Refuse what only names a sampler."""
    if isinstance(sampler, type) or not hasattr(sampler, "decide"):
        raise ValueError(f"sampler must be a sampler such as LESS() or make_sampler('less'), got {sampler!r}")


def check_needs(sampler: Sampler) -> None:
    """Refuse needs that cannot be met."""
    name, needs = f"{type(sampler).__name__}.needs", getattr(sampler, "needs", None)
    if not isinstance(needs, Needs):
        raise ValueError(f"{name} must be a Needs, got {needs!r}; make it a field or a property")
    whole(f"{name}: top_k", needs.top_k, 1)
    whole(f"{name}: lookback", needs.lookback, 0)
    for field_name in ("logits", "recall", "span", "noise", "revoke"):
        flag(f"{name}: {field_name}", getattr(needs, field_name))


def check_decision(decision: object, sampler: Sampler, window: torch.Size) -> None:
    """Refuse a decision that does not fit its window; looks at shapes and dtypes, never at values."""
    if not isinstance(decision, Decision):
        raise ValueError(f"{type(sampler).__name__}.decide must return a Decision, got {decision!r}")
    _check_part(sampler, "commit", decision.commit, window, torch.bool)
    _check_part(sampler, "eligible", decision.eligible, window, torch.bool)
    _check_part(sampler, "forced", decision.forced, window[:1], torch.bool)
    if decision.tokens is not None:
        _check_part(sampler, "tokens", decision.tokens, window, torch.int64)
    for name in ("revoke", "rewrite"):
        part = getattr(decision, name)
        if part is not None:
            if not sampler.needs.revoke:
                raise ValueError(f"{type(sampler).__name__}.decide: {name} needs Needs(revoke=True)")
            _check_part(sampler, name, part, window, torch.bool)


def _check_part(sampler: Sampler, name: str, part: object, shape: torch.Size, dtype: torch.dtype) -> None:
    if isinstance(part, Tensor):
        if part.shape == shape and part.dtype == dtype:
            return
        got = f"{part.dtype} of shape {list(part.shape)}"
    else:
        got = repr(part)
    raise ValueError(
        f"{type(sampler).__name__}.decide: {name} must be a {dtype} tensor of shape {list(shape)}, got {got}"
    )


def checked_logits(logits: Tensor, rows: int, width: int, info: ModelInfo) -> Tensor:
    """The logits of a model, refused where they cannot be those of the window."""
    if not isinstance(logits, Tensor):
        raise ValueError(f"the model must return a tensor of logits, got {type(logits).__name__}")
    if logits.shape != (rows, width, info.vocab_size):
        raise ValueError(
            f"the model must return logits of shape {[rows, width, info.vocab_size]} "
            f"(rows, window, ModelInfo.vocab_size), got {list(logits.shape)}"
        )
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating-point numbers, got {logits.dtype}; return logits.float()")
    return logits


def check_written(tokens: Tensor, info: ModelInfo) -> None:
    """Refuse a canvas [B, N] with a token that is none; the host must wait for the device."""
    foreign = (tokens < 0) | (tokens >= info.vocab_size)
    token_ids("Decision.tokens", tokens[foreign].tolist(), info.vocab_size)
