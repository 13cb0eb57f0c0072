"""From prompts to token ids. Text and chats need the model's tokenizer; token ids do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Protocol, TypeAlias, cast

import torch
from torch import nn

from unmask.types import MaskedLM, ModelInfo

Message: TypeAlias = Mapping[str, str]  # {"role": ..., "content": ...}
Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]  # raw text, a chat, or token ids


class SpecialTokens(Protocol):
    """The special ids that text needs; None: the tokenizer has none."""

    @property
    def bos(self) -> int | None: ...

    @property
    def pad(self) -> int | None: ...


class TextTokenizer(Protocol):
    """What the text layer asks of a tokenizer; decoding more tokens must only lengthen the text."""

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
    """The model's tokenizer; None if it has none."""
    tokenizer: TextTokenizer | None = getattr(model, "tokenizer", None)
    return tokenizer


def tokenizer_of(model: MaskedLM) -> TextTokenizer:
    """The model's tokenizer. Raise if it has none."""
    tokenizer = find_tokenizer(model)
    if tokenizer is None:
        raise ValueError(
            "the model has no tokenizer; load a checkpoint with tokenizer files, set model.tokenizer, "
            "or give prompts as token ids"
        )
    return tokenizer


def device_of(model: MaskedLM) -> torch.device:
    """Where the model's weights are; the CPU for a model without any."""
    weights = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if weights is None else weights.device


def encode_prompts(model: MaskedLM, prompts: Sequence[Prompt], new_tokens: int) -> list[list[int]]:
    """Token ids of every prompt, checked to fit the model together with `new_tokens`."""
    _check_list(prompts)
    encoded = [_encode(model, prompt, f"prompt {i}") for i, prompt in enumerate(prompts)]
    for index, ids in enumerate(encoded):
        check_ids(ids, model.info, f"prompt {index}")
        if not ids:
            raise ValueError(
                f"prompt {index} is empty; give at least one token (a beginning-of-text token will do)"
            )
        total = len(ids) + new_tokens
        if total > model.info.max_length:
            raise ValueError(
                f"prompt {index} has {len(ids)} tokens and max_new_tokens is {new_tokens}, together {total}, "
                f"but the model reads at most {model.info.max_length}; "
                "shorten the prompt or lower max_new_tokens"
            )
    return encoded


def check_ids(ids: Sequence[int], info: ModelInfo, where: str) -> None:
    """Refuse ids outside the vocabulary and the mask token."""
    outside = next((token for token in ids if not 0 <= token < info.vocab_size), None)
    if outside is not None:
        raise ValueError(
            f"{where} holds the token id {outside}, but the model's ids run from 0 to {info.vocab_size - 1}"
        )
    if info.mask_id in ids:
        raise ValueError(
            f"{where} contains the mask token {info.mask_id}; remove it, or use infill to fill gaps"
        )


def _check_list(prompts: object) -> None:
    single = isinstance(prompts, (str, Mapping))
    if not single and not isinstance(prompts, (list, tuple)):
        raise ValueError(f"prompts must be a list of prompts, got {type(prompts).__name__}")
    if isinstance(prompts, (list, tuple)):
        if not prompts:
            raise ValueError("prompts is empty; give at least one prompt")
        single = isinstance(prompts[0], (Mapping, Integral))
    if single:
        raise ValueError("prompts must be a list of prompts, got a single one; wrap it in a list: [prompt]")


def _encode(model: MaskedLM, prompt: Prompt, where: str) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer_of(model).encode(prompt)
    if isinstance(prompt, (list, tuple)):
        if prompt and all(isinstance(part, Mapping) for part in prompt):
            return tokenizer_of(model).chat(cast("Sequence[Message]", prompt))
        if all(isinstance(part, Integral) and not isinstance(part, bool) for part in prompt):
            return [int(token) for token in cast("Sequence[int]", prompt)]
    raise ValueError(
        f"{where} must be a string, a chat (a list of {{'role': ..., 'content': ...}}) or a list of token "
        f"ids, got {type(prompt).__name__}"
    )
