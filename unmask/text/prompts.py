"""Encode prompts. Text and chats need the model's tokenizer; token ids do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Protocol, TypeAlias, cast

import torch
from torch import nn

from unmask.errors import FieldError, token_ids
from unmask.types import MaskedLM, ModelInfo

Message: TypeAlias = Mapping[str, str]  # {"role": ..., "content": ...}
Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]  # raw text, a chat, or token ids


class SpecialTokens(Protocol):
    """Special token ids; None if the tokenizer lacks one."""

    @property
    def bos(self) -> int | None: ...

    @property
    def pad(self) -> int | None: ...


class TextTokenizer(Protocol):
    """The tokenizer that the text functions need; decoding more tokens must only lengthen the text."""

    @property
    def special(self) -> SpecialTokens: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Iterable[int]) -> str: ...

    def chat(self, messages: Sequence[Message]) -> list[int]: ...


class TextModel(MaskedLM, Protocol):
    """A masked language model that comes with a tokenizer."""

    @property
    def tokenizer(self) -> TextTokenizer | None: ...


def find_tokenizer(model: MaskedLM) -> TextTokenizer | None:
    """Return the model's tokenizer, or None if it has none."""
    tokenizer: TextTokenizer | None = getattr(model, "tokenizer", None)
    return tokenizer


def tokenizer_of(model: MaskedLM) -> TextTokenizer:
    """Return the model's tokenizer; raise if it has none."""
    tokenizer = find_tokenizer(model)
    if tokenizer is None:
        raise ValueError(
            "the model has no tokenizer; load a checkpoint with tokenizer files, set model.tokenizer, "
            "or give prompts as token ids"
        )
    return tokenizer


def encode_text(model: MaskedLM, text: str, *, special_tokens: bool) -> list[int]:
    """Return the token ids of a text; without `special_tokens`, a special token in it is plain text."""
    tokenizer = tokenizer_of(model)
    if special_tokens:
        return tokenizer.encode(text)
    encode: Callable[[str], list[int]] = getattr(tokenizer, "encode_text", tokenizer.encode)
    return encode(text)


def device_of(model: MaskedLM) -> torch.device:
    """Return the device of the model's weights, or the CPU if it has none."""
    weights = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if weights is None else weights.device


def encode_prompts(model: MaskedLM, prompts: Sequence[Prompt], new_tokens: int) -> list[list[int]]:
    """Return the token ids of every prompt; raise if one does not fit together with `new_tokens`."""
    _check_list(prompts)
    names = _names(len(prompts))
    encoded = [_encode(model, *named) for named in zip(prompts, names, strict=True)]
    for name, prompt, ids in zip(names, prompts, encoded, strict=True):
        check_ids(name, ids, model.info)
        if not ids:
            remedy = "a beginning-of-text token will do"
            raise FieldError(name, prompt, "must have at least one token", remedy)
        total = len(ids) + new_tokens
        if total > model.info.max_length:
            raise FieldError(
                name,
                total,
                f"must have at most {model.info.max_length} tokens together with the {new_tokens} new ones, "
                "the most that the model can read",
                "shorten the prompt or ask for fewer new tokens",
            )
    return encoded


def _names(count: int) -> list[str]:
    """Return the name of each prompt in errors; a single prompt needs no number."""
    return ["prompts"] if count == 1 else [f"prompts[{index}]" for index in range(count)]


def check_ids(name: str, ids: Sequence[int], info: ModelInfo) -> None:
    """Raise if the ids hold the mask token or an id outside the vocabulary."""
    token_ids(name, ids, info.vocab_size)
    if info.mask_id in ids:
        remedy = "remove it, or use infill to fill gaps"
        raise FieldError(name, info.mask_id, "must not hold the mask token", remedy)


def is_single(prompts: object) -> bool:
    """Return whether this is one prompt: a string, or a list whose first entry is a message or a token id.

    Every other list holds prompts, even if it holds only one.
    """
    if isinstance(prompts, (list, tuple)) and prompts:
        return isinstance(prompts[0], (Mapping, Integral))
    return isinstance(prompts, str)


def _check_list(prompts: object) -> None:
    if isinstance(prompts, Mapping):
        remedy = "a chat is a list of messages: [{'role': ..., 'content': ...}]"
        raise FieldError("prompts", prompts, "must be a prompt or a list of prompts", remedy)
    if hasattr(prompts, "tolist"):
        raise FieldError("prompts", prompts, "must be a list of token ids", "call .tolist()")
    if not isinstance(prompts, (list, tuple)) or is_single(prompts):
        raise FieldError("prompts", prompts, "must be a list of prompts", "wrap a single one: [prompt]")
    if not prompts:
        raise FieldError("prompts", prompts, "must hold at least one prompt")


def _encode(model: MaskedLM, prompt: Prompt, name: str) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer_of(model).encode(prompt)
    if isinstance(prompt, (list, tuple)):
        if prompt and all(isinstance(part, Mapping) for part in prompt):
            return tokenizer_of(model).chat(cast("Sequence[Message]", prompt))
        if all(isinstance(part, Integral) and not isinstance(part, bool) for part in prompt):
            return [int(token) for token in cast("Sequence[int]", prompt)]
    chat = "a chat (a list of {'role': ..., 'content': ...})"
    raise FieldError(name, prompt, f"must be a string, {chat} or a list of token ids")
