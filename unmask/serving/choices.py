"""Make the sampler and the configuration of a checked request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from types import NoneType
from typing import Any, NamedTuple, get_args

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from unmask.errors import FieldError, known_field
from unmask.samplers.registry import check_name
from unmask.samplers.wrapper import change, kind
from unmask.samplers.wrapper import settings as settings_of
from unmask.serving.api_error import ApiError, as_api_error
from unmask.serving.errors import RequestFailed
from unmask.serving.protocol import Common
from unmask.serving.request import unservable
from unmask.serving.sentences import is_json, refuse, refuse_invalid, sent_at
from unmask.serving.settings import Settings
from unmask.text.config import GenerationConfig
from unmask.types import Sampler


class Choice(NamedTuple):
    """The sampler and the settings of a request."""

    sampler: Sampler
    sampler_name: str
    config: GenerationConfig


def choose(request: Common, settings: Settings) -> Choice:
    """Return the server's defaults, overridden by the fields of the request."""
    if request.model is not None and request.model != settings.model_name:
        raise ApiError(
            404,
            f"the model {request.model!r} was not found; this server has {settings.model_name!r}",
            param="model",
            code="model_not_found",
        )
    name = settings.sampler_name if request.sampler is None else request.sampler
    return Choice(_sampler(request, settings), name, _config(request, settings.config))


def explain(error: Exception, request: Common, sampler: Sampler | None = None) -> ApiError:
    """Return the error response to a request; name a bad field as the request does."""
    cause = error.__cause__ if isinstance(error, RequestFailed) else error
    if isinstance(cause, FieldError):
        name = _request_name(cause.root, request, sampler)
        if name is not None:
            return refuse(_as_sent(cause.renamed(name), request))
    return as_api_error(error)


def _as_sent(error: FieldError, request: Common) -> FieldError:
    """Return the error with the value that the client sent, if the library has converted it."""
    sent = request.model_dump(by_alias=True, exclude_unset=True)
    value = error.value
    if error.field == "sampler" and value != request.sampler:
        chosen = {name: sent[name] for name in ("sampler", "sampler_fields") if sent.get(name)}
        value = chosen if request.sampler_fields else chosen.get("sampler", value)
    elif error.root in sent and (isinstance(value, tuple) or not is_json(value)):
        value = sent_at(error.field, sent)
    return FieldError(error.field, value, error.problem, error.remedy, error.where)


def _request_name(field: str, request: Common, sampler: Sampler | None) -> str | None:
    """Return the request's name for a library field, or None if a request cannot set it."""
    name = request.names.get(field, field)
    if name.partition(".")[0] in type(request).model_fields:
        return name
    own = {} if sampler is None else settings_of(sampler)
    return f"sampler_fields.{field}" if field in own else None


def _sampler(request: Common, settings: Settings) -> Sampler:
    changes = request.sampler_fields or {}
    if request.sampler is None and not changes:
        return settings.sampler
    name = settings.sampler_name if request.sampler is None else request.sampler
    base = _named(name, settings.samplers)
    try:
        return change(base, read_fields(base, changes, settings.samplers))
    except FieldError as error:
        raise error.renamed(f"sampler_fields.{error.root}") from None


def _named(name: str, samplers: Mapping[str, Sampler]) -> Sampler:
    """Return the sampler of a known name; a request never makes the server open a file."""
    if name not in samplers:
        check_name(name, (known for known, one in samplers.items() if unservable(one) is None))
    return samplers[name]


def read_fields(sampler: Any, changes: dict[str, Any], samplers: Mapping[str, Sampler]) -> dict[str, Any]:
    """Convert JSON values to the types of the sampler's fields."""
    kinds = settings_of(sampler)
    values = {}
    for name, value in changes.items():
        known_field(name, value, kinds, f"the sampler {kind(sampler)}")
        values[name] = _read_field(name, kinds[name], value, samplers)
    return values


def _read_field(name: str, kind: Any, value: Any, samplers: Mapping[str, Sampler]) -> Any:
    try:
        if is_dataclass(kind) and isinstance(value, str):  # a sampler inside a sampler, by name
            return _named(value, samplers)
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except PydanticSchemaGenerationError:  # JSON has only null for it; the sampler refuses other values
        return value
    except ValidationError as error:
        path, nullable = ("sampler_fields", name), NoneType in get_args(kind)
        raise refuse_invalid(error, {path[0]: {name: value}}, path, nullable=nullable) from None
    except FieldError as error:
        raise error.renamed(name) from None


def _config(request: Common, default: GenerationConfig) -> GenerationConfig:
    """Return the server's settings, overridden by the fields of the request; "none" means None."""
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
        changes.setdefault("refresh_every", None)  # the server's refresh_every needs its cache
    return replace(default, **changes)
