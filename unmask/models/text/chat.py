"""Chat templates, rendered in a Jinja sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from unmask.errors import FieldError
from unmask.models.checkpoint.files import CheckpointFiles, read_text

Message = Mapping[str, str]

MESSAGE_KEYS = ("role", "content", "name")


class ChatTemplate:
    """A checkpoint's chat template, compiled in a sandbox."""

    def __init__(self, source: str, tokens: Mapping[str, str], origin: str) -> None:
        self.source = source
        self._tokens = tokens
        self._origin = origin
        try:
            self._template = _sandbox().from_string(source)
        except TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template of {origin} is not valid, line {error.lineno}: {error}"
            ) from error

    def __reduce__(self) -> tuple[type[ChatTemplate], tuple[str, Mapping[str, str], str]]:
        """Copy and pickle by source: a compiled template supports neither."""
        return ChatTemplate, (self.source, self._tokens, self._origin)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """Render a conversation to text."""
        try:
            return self._template.render(
                **self._tokens,
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except SecurityError as error:
            raise ValueError(
                f"the chat template of {self._origin} tries to leave its sandbox: {error}; "
                "do not trust this checkpoint, or replace its template"
            ) from error
        except (
            TemplateError,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise ValueError(
                f"the chat template of {self._origin} fails on this conversation: {error}"
            ) from error

    def check_nothing_dropped(self, messages: Sequence[Message]) -> None:
        """Raise if the template drops a message, as many do with an unknown role."""
        probes = [{**message, "content": probe(index)} for index, message in enumerate(messages)]
        rendered = self.render(probes, add_generation_prompt=True)
        for index, message in enumerate(messages):
            if probe(index) not in rendered:
                raise FieldError(
                    f"messages[{index}].role",
                    message["role"],
                    f"must be a role that the chat template of {self._origin} knows; it leaves this one out",
                    "put the text into a user message",
                )


def probe(index: int) -> str:
    return f"probe{index}end"


def chat_template(files: CheckpointFiles) -> ChatTemplate | None:
    """Compile the chat template of a checkpoint, or return None if it has none."""
    path = files.folder / "chat_template.jinja"
    source = read_text(path) if path.exists() else files.tokenizer_config.get("chat_template")
    if isinstance(source, list):
        source = _default_template(source, files.folder)
    if source is None:
        return None
    if not isinstance(source, str):
        raise ValueError(
            f"chat_template of {files.folder} must be a string or a list, got {type(source).__name__}"
        )
    return ChatTemplate(source, files.named_tokens(), str(files.folder))


def _default_template(entries: list[Any], folder: Path) -> object:
    """Return the template named 'default', or the only one."""
    named = {e.get("name"): e.get("template") for e in entries if isinstance(e, dict)}
    if "default" not in named and len(named) != 1:
        names = ", ".join(map(str, named)) or "none"
        raise ValueError(f"chat_template of {folder} has no entry named 'default'; available: {names}")
    return named.get("default", next(iter(named.values())))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, but a forbidden attribute raises at once instead of reading as undefined."""

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        raise SecurityError(f"it reads {attribute!r} of a {type(obj).__name__}")


class _GenerationBlock(Extension):
    """`{% generation %}` marks an answer for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _sandbox() -> ImmutableSandboxedEnvironment:
    """Build the Jinja environment that published chat templates expect."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Dump plain JSON; Jinja's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def checked_messages(messages: object) -> list[Message]:
    """Copy a conversation; raise unless every message has a role and a content."""
    if not isinstance(messages, (list, tuple)):
        raise FieldError("messages", messages, "must be a list of {'role': ..., 'content': ...}")
    if not messages:
        raise FieldError("messages", messages, "must have at least one message")
    for index, message in enumerate(messages):
        _check_message(f"messages[{index}]", message)
    return [dict(message) for message in messages]


def _check_message(name: str, message: object) -> None:
    if not isinstance(message, Mapping):
        raise FieldError(name, message, "must be {'role': ..., 'content': ...}")
    unknown = [key for key in message if key not in MESSAGE_KEYS]
    if unknown:
        raise FieldError(name, unknown[0], f"must have no keys but {', '.join(MESSAGE_KEYS)}")
    for key in ("role", "content"):
        if key not in message:
            remedy = "a message is {'role': 'user', 'content': 'Hello'}"
            raise FieldError(name, dict(message), f"must have a {key}", remedy)
    for key, value in message.items():
        if not isinstance(value, str):
            raise FieldError(f"{name}.{key}", value, "must be a string")
    if not message["role"].strip():
        raise FieldError(
            f"{name}.role", message["role"], "must not be empty", "use user, assistant or system"
        )
