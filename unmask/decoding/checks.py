"""What a model and a sampler must give, yours too; looks at types, shapes and dtypes, hardly at values."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from unmask.decoding.turns import View
from unmask.errors import flag, token_ids, whole
from unmask.types import Decision, ModelInfo, Needs, Sampler


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
    whole(f"{name}: min_length", needs.min_length, 1)
    for field_name in ("logits", "gather_logits", "span", "noise"):
        flag(f"{name}: {field_name}", getattr(needs, field_name))


def check_length(sampler: Sampler, columns: slice) -> None:
    """Raise if the generation, the given columns, is shorter than the sampler needs."""
    least, length = sampler.needs.min_length, columns.stop - columns.start
    if length < least:
        raise ValueError(
            f"{sampler} needs a generation of at least {least} tokens, got {length}; "
            "generate more tokens, or change the sampler"
        )


def check_decision(decision: object, sampler: Sampler, view: View) -> None:
    """Refuse a decision that does not fit its window; looks at shapes and dtypes, never at values."""
    if not isinstance(decision, Decision):
        raise ValueError(f"{type(sampler).__name__}.decide must return a Decision, got {decision!r}")
    window = view.masked.shape
    _check_part(sampler, "commit", decision.commit, window, torch.bool)
    _check_part(sampler, "eligible", decision.eligible, window, torch.bool)
    _check_part(sampler, "forced", decision.forced, view.running.shape, torch.bool)
    if decision.tokens is not None:
        _check_part(sampler, "tokens", decision.tokens, window, torch.int64)


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
