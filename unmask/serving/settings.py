"""Settings of the HTTP server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from unmask.catalog import DEFAULT_SAMPLER_NAME
from unmask.errors import FieldError, positive, whole
from unmask.samplers.registry import all_samplers
from unmask.serving.limits import Limits
from unmask.serving.request import unservable
from unmask.text.config import GenerationConfig
from unmask.text.generate import DEFAULT_SAMPLER
from unmask.types import ModelInfo, Sampler

ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.\-]*://[^/\s]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The server's name, access rules, and defaults for requests.

    Attributes:
        model_name: Name of the model in requests and answers.
        sampler: Sampler of requests that name none.
        sampler_name: Name of that sampler in answers.
        samplers: Samplers that a request may name: all registered ones, and the server's own.
        config: Default settings of requests.
        api_key: Key that requests must send. None means everybody may call.
        host: Address that the server listens on; requests with another Host header are refused.
        allowed_hosts: Further names allowed in Host headers; "*" allows all.
        cors: Origins allowed to call from a browser; "*" allows all.
        max_body: Largest body of a request, in bytes.
        body_seconds: Time for a body to arrive.
        max_streams: Concurrent streams.
        max_connections: Open connections; fewer if the process may open fewer files.
        header_seconds: Time for the headers of a request to arrive.
        stall_seconds: Time for a client to read the bytes that were sent.
        heartbeat: Seconds of silence after which a stream sends a comment.
        log_prompts: Whether prompts appear in the log.
        special_tokens: Whether texts and messages may spell special tokens.
    """

    model_name: str = "unmask"
    sampler: Sampler = DEFAULT_SAMPLER
    sampler_name: str = DEFAULT_SAMPLER_NAME
    samplers: Mapping[str, Sampler] = field(default_factory=all_samplers, repr=False)
    config: GenerationConfig = field(default_factory=GenerationConfig)
    api_key: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    allowed_hosts: tuple[str, ...] = ()
    cors: tuple[str, ...] = ()
    max_body: int = 1 << 20
    body_seconds: float = 30.0
    max_streams: int = 512
    max_connections: int = 1024
    header_seconds: float = 10.0
    stall_seconds: float = 60.0
    heartbeat: float = 15.0
    log_prompts: bool = False
    special_tokens: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "samplers", {**self.samplers, self.sampler_name: self.sampler})
        whole("max_body", self.max_body, 1)
        whole("max_streams", self.max_streams, 1)
        whole("max_connections", self.max_connections, 1)
        if self.api_key is not None and not self.api_key:
            remedy = "leave it out to let everybody in"
            raise FieldError("api_key", self.api_key, "must not be empty", remedy)
        if (extra := unservable(self.sampler)) is not None:
            problem = f"needs {extra}, which the server does not compute"
            raise FieldError("sampler", self.sampler_name, problem, "choose another one")
        for origin in self.cors:
            if not ORIGIN.fullmatch(origin):
                raise FieldError("cors", origin, "must be an origin such as https://example.org, or *")
        for name in ("body_seconds", "header_seconds", "stall_seconds", "heartbeat"):
            positive(name, getattr(self, name))

    @property
    def servable(self) -> dict[str, Sampler]:
        """The samplers whose rows can share forwards, by name."""
        return {name: one for name, one in self.samplers.items() if unservable(one) is None}

    def within(self, info: ModelInfo, limits: Limits) -> Settings:
        """Return the settings for a model, with its default number of new tokens capped by the limits."""
        length = min(self.config.new_tokens(info), limits.max_new_tokens)
        return replace(self, config=replace(self.config, max_new_tokens=length))
