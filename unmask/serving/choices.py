"""From a checked request to a sampler and a configuration."""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, get_type_hints

from pydantic import TypeAdapter, ValidationError

from unmask.samplers import make_sampler
from unmask.serving.api_error import ApiError
from unmask.serving.protocol import ChatRequest, Common
from unmask.serving.settings import Settings
from unmask.text.config import GenerationConfig
from unmask.types import Sampler

WORD = re.compile(r"[a-z]\w*")


class Choice(NamedTuple):
    """How a request is to be decoded."""

    sampler: Sampler
    sampler_name: str
    config: GenerationConfig


def choose(asked: Common, settings: Settings) -> Choice:
    """The server's defaults, with what the request asks for."""
    if asked.model is not None and asked.model != settings.model_name:
        raise ApiError(
            404,
            f"the model {asked.model!r} is not here; this server has {settings.model_name!r}",
            param="model",
            code="model_not_found",
        )
    name = settings.sampler_name if asked.sampler is None else asked.sampler
    return Choice(_sampler(asked, settings), name, _config(asked, settings.config))


def refusal(error: ValueError, asked: Common) -> ApiError:
    """What the library says of a setting, in the names of the request, and which field it speaks of."""
    sentence = WORD.sub(lambda word: asked.names.get(word[0], word[0]), str(error))
    return ApiError(400, sentence, param=_named(sentence, asked))


def _named(sentence: str, asked: Common) -> str | None:
    """The first field of the request in a sentence; the prompt of a chat is its messages."""
    for word in WORD.findall(sentence):
        name = "messages" if word == "prompt" and isinstance(asked, ChatRequest) else word
        if name in asked.model_fields_set and name != "model":  # of which sentences speak as of a thing
            return name
    return None


def _sampler(asked: Common, settings: Settings) -> Sampler:
    changes = asked.sampler_fields or {}
    if asked.sampler is None and not changes:
        return settings.sampler
    base = settings.sampler if asked.sampler is None else make_sampler(asked.sampler)
    values = read_fields(base, changes)
    try:
        made: Sampler = replace(base, **values)  # type: ignore[type-var]
    except ValueError as error:
        raise ApiError(400, str(error), param="sampler_fields") from None
    return made


def read_fields(sampler: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Values that came as JSON, by the types of the sampler's fields."""
    hints = get_type_hints(type(sampler))
    known = [item.name for item in fields(sampler)]
    values = {}
    for name, value in changes.items():
        if name not in known:
            raise ApiError(
                400,
                f"unknown field {name!r} of sampler {type(sampler).__name__}; known: {', '.join(known)}",
                param="sampler_fields",
            )
        values[name] = _read_field(name, hints[name], value)
    return values


def _read_field(name: str, kind: Any, value: Any) -> Any:
    if is_dataclass(kind) and isinstance(value, str):  # a sampler inside a sampler, by name
        return make_sampler(value)
    try:
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"]
        raise ApiError(
            400, f"sampler_fields.{name}: {message}, got {value!r}", param="sampler_fields"
        ) from None


def _config(request: Common, default: GenerationConfig) -> GenerationConfig:
    """Return the server's settings with the fields of the request over them; "none" stands for None."""
    sent = {item.name: getattr(request, item.name, None) for item in fields(GenerationConfig)}
    sent |= {
        "max_new_tokens": request.new_tokens,
        "min_new_tokens": request.min_tokens,
        "stop": (request.stop,) if isinstance(request.stop, str) else request.stop and tuple(request.stop),
    }
    changes: dict[str, Any] = {
        name: None if value == "none" else value for name, value in sent.items() if value is not None
    }
    if "cache" in changes and changes["cache"] is None:
        changes.setdefault("refresh_every", None)  # the server's own goes with its cache
    return replace(default, **changes)
