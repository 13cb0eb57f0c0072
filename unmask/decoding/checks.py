"""Checks on a run and on what models and samplers return: types, shapes, dtypes and a few values."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path

import torch
from torch import Tensor

from unmask.decoding.bans import Bans
from unmask.decoding.canvas import Canvas
from unmask.decoding.options import Options
from unmask.decoding.plan import Plan
from unmask.errors import FieldError, flag, token_ids, whole
from unmask.types import Cache, MaskedLM, ModelInfo, Needs, Sampler, Speculation


def check_run(
    model: MaskedLM, canvas: Canvas, sampler: Sampler, plan: Plan, options: Options, bans: Bans
) -> None:
    """Raise before the first forward if a run cannot work. Synchronises with the device once."""
    is_sampler(sampler)
    check_needs(sampler)
    check_length(sampler, plan.columns)
    check_offers(model, sampler)
    info = model.info
    if sampler.needs.speculation is not None and not (
        info.separable and info.deterministic and options.reuse
    ):
        problem = "is speculative, which needs independent rows and predictions that may be kept"
        remedy = "use its inner sampler, or leave out guidance, refresh_every and reuse=False"
        raise FieldError("sampler", sampler, problem, remedy)
    check_token_fields(sampler, info)
    generation, length = plan.columns, canvas.tokens.shape[1]
    room = length - canvas.start
    whole("vocab_size", info.vocab_size, 2)
    if canvas.mask_id != info.mask_id:
        raise FieldError("mask_id", canvas.mask_id, f"of the canvas must be the model's, {info.mask_id}")
    if options.min_new_tokens > room:
        problem = f"must be at most the {room} tokens of the generation"
        raise FieldError("min_new_tokens", options.min_new_tokens, problem)
    token_ids("eos_ids", info.eos_ids, info.vocab_size)
    token_ids("banned_ids", bans.ids, info.vocab_size)
    if len(set(bans.ids)) == info.vocab_size:
        raise FieldError("banned_ids", bans.ids, "must not ban every token", "leave at least one")
    behind = canvas.masked(slice(generation.stop, length)).any()
    unknown = ((canvas.tokens < 0) | (canvas.tokens >= info.vocab_size)).any()
    unplanned, foreign = torch.stack([behind, unknown]).tolist()
    if generation.start < canvas.start or generation.stop > length or unplanned:
        problem = f"must cover every mask of the generation, columns {canvas.start} to {length}"
        raise FieldError("plan", f"columns {generation.start} to {generation.stop}", problem)
    if foreign:
        token_ids("canvas", canvas.tokens.flatten().tolist(), info.vocab_size)


def is_model(model: object) -> None:
    """Raise unless the argument is a model; a name is not one."""
    if isinstance(model, (str, Path)):
        remedy = f"load it with unmask.load({str(model)!r})"
        raise FieldError("model", model, "must be a loaded model", remedy)
    if isinstance(model, type) or not callable(model) or not hasattr(model, "info"):
        remedy = "use unmask.load, or give your model `info` and `__call__`"
        raise FieldError("model", model, "must be a loaded model", remedy)


def is_sampler(sampler: object) -> None:
    """Raise unless the argument is a sampler; a name is not one."""
    if isinstance(sampler, type) or not hasattr(sampler, "decide"):
        raise FieldError("sampler", sampler, "must be a sampler such as LESS() or make_sampler('less')")


def check_needs(sampler: Sampler) -> None:
    """Raise if the loop cannot meet the sampler's needs."""
    name, needs = f"{type(sampler).__name__}.needs", getattr(sampler, "needs", None)
    if not isinstance(needs, Needs):
        raise FieldError(name, needs, "must be a Needs", "make it a field or a property")
    whole(f"{name}.top_k", needs.top_k, 1)
    whole(f"{name}.lookback", needs.lookback, 0)
    whole(f"{name}.min_length", needs.min_length, 1)
    if needs.speculation is not None and not isinstance(needs.speculation, Speculation):
        raise FieldError(f"{name}.speculation", needs.speculation, "must be Speculation or None")
    whole(f"{name}.carry", needs.carry, 0)
    whole(f"{name}.extra_steps", needs.extra_steps, 0)
    whole(f"{name}.attention", needs.attention, 0)
    for field_name in (
        "logits",
        "gather_logits",
        "span",
        "noise",
        "revoke",
        "shadow",
        "whole_blocks",
        "ends_last",
    ):
        flag(f"{name}.{field_name}", getattr(needs, field_name))
    if needs.shadow and needs.attention:
        raise FieldError(f"{name}.attention", needs.attention, "must be 0 where shadow is True")


def extra_needs(sampler: Sampler) -> str | None:
    """Return what a sampler needs besides the usual forward, or None if nothing."""
    if sampler.needs.shadow:
        return "shadow columns"
    return "attention maps" if sampler.needs.attention else None


def check_offers(model: MaskedLM, sampler: Sampler) -> None:
    """Raise if the sampler needs shadow columns or attention maps that the model does not offer."""
    extra, kind = extra_needs(sampler), type(model)
    method = "shadow_states" if sampler.needs.shadow else "attention_states"
    if extra is not None and not hasattr(kind, method):  # ask the type: see executor.has_head
        problem = f"needs {extra}, which the model {kind.__name__} does not offer"
        raise FieldError("sampler", sampler, problem, f"decode without guidance, or give it {method}")


def check_no_cache(cache: Cache | None, sampler: Sampler) -> None:
    """Raise if a run with a cache needs more than the usual forward."""
    extra = extra_needs(sampler)
    if cache is not None and extra is not None:
        problem = f"must be None: {type(sampler).__name__} needs {extra}, which take the whole canvas"
        raise FieldError("cache", cache, problem, "decode without a cache, or use another sampler")


def check_token_fields(sampler: object, info: ModelInfo, path: str = "") -> None:
    """Raise if a field `..._ids` of the sampler, or of one inside it, has a token outside the vocabulary."""
    for field in fields(sampler) if is_dataclass(sampler) and not isinstance(sampler, type) else ():
        value, name = getattr(sampler, field.name), f"{path}{field.name}"
        if field.name.endswith("_ids"):
            token_ids(name, value, info.vocab_size)
        else:
            check_token_fields(value, info, f"{name}.")


def check_length(sampler: Sampler, columns: slice) -> None:
    """Raise if these columns are fewer than the sampler needs."""
    least, length = sampler.needs.min_length, columns.stop - columns.start
    if length < least:
        problem = f"needs a generation of at least {least} tokens, this one has {length}"
        raise FieldError("sampler", sampler, problem, "generate more tokens, or change the sampler")


def checked_logits(logits: Tensor, rows: int, width: int, info: ModelInfo) -> Tensor:
    """Return the logits of a model; raise if their shape or dtype is wrong."""
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
    """Raise if the canvas [B, N] holds an id outside the vocabulary. Synchronises with the device."""
    unknown = (tokens < 0) | (tokens >= info.vocab_size)
    token_ids("Decision.tokens", tokens[unknown].tolist(), info.vocab_size)
