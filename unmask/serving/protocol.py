"""Request bodies: OpenAI's fields and our own, checked by type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from unmask.constraints.language import ANY_OBJECT, Constraint, JSONSchema, Regex
from unmask.constraints.language import Choice as OneOf
from unmask.errors import LONGEST, FieldError, known_field, shown
from unmask.serving.api_error import ApiError
from unmask.serving.sentences import NESTED, Sent, refuse, refuse_invalid, spelled
from unmask.text.fields import CacheName, EndTokens

# OpenAI fields that we do not support, with the values that turn them off
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "echo": (None, False),
    "suffix": (None, ""),
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
}
# fields about the sender, without effect on the answer
IGNORED = ("user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier")
MOST_CANDIDATES = 16
MOST_ITEMS = 1024  # in a list, such as the messages
MOST_LETTERS = 64  # in a role
SURROGATE = rb"\ud"  # start of every escaped surrogate
Nothing = Annotated[list[JsonValue], Field(max_length=0)] | None
# bounds for /openapi.json; the code that uses a value checks it
AT_LEAST_0: dict[str, JsonValue] = {"minimum": 0}
AT_LEAST_1: dict[str, JsonValue] = {"minimum": 1}
ABOVE_0: dict[str, JsonValue] = {"exclusiveMinimum": 0}
A_TEXT: dict[str, JsonValue] = {"type": "string", "minLength": 1}
TOKEN_IDS: dict[str, JsonValue] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0},
    "minItems": 1,
}
ONE_PROMPT: dict[str, JsonValue] = {
    "anyOf": [
        A_TEXT,
        TOKEN_IDS,
        {"type": "array", "items": {"anyOf": [A_TEXT, TOKEN_IDS]}, "minItems": 1, "maxItems": 1},
    ]
}
AnyRequest = TypeVar("AnyRequest", bound="Common")


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class AnswerSchema(BaseModel):
    """A JSON schema, as OpenAI's clients send it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    json_schema: dict[str, Any] = Field(alias="schema")
    name: str | None = None
    description: str | None = None
    strict: bool | None = Field(None, description="Answers always fit; without effect.")


class ResponseFormat(BaseModel):
    """The form of an answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: AnswerSchema | None = None


class Common(BaseModel):
    """The fields of both kinds of requests; a missing field means the server's default."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    max_tokens: int | None = Field(None, json_schema_extra=AT_LEAST_1)
    temperature: float | None = Field(None, json_schema_extra=AT_LEAST_0)
    top_p: float | None = Field(None, json_schema_extra={**ABOVE_0, "maximum": 1})
    stop: str | list[str] | None = None
    seed: int | None = Field(None, json_schema_extra={**AT_LEAST_0, "maximum": 2**63 - 1})
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: int | None = Field(None, json_schema_extra=AT_LEAST_0)
    min_tokens: int | None = Field(None, json_schema_extra=AT_LEAST_0)
    sampler: str | None = Field(None, description="A sampler by name.")
    sampler_fields: dict[str, Any] | None = Field(None, description="Fields of the sampler to change.")
    steps: int | None = Field(
        None, description="Reverse steps at most; one per token by default.", json_schema_extra=AT_LEAST_1
    )
    block_length: int | Literal["auto", "none"] | None = Field(None, json_schema_extra=AT_LEAST_1)
    next_block_at: float | None = Field(
        None, description="Open the next block when this share of the last one is filled."
    )
    guidance: float | None = None
    end_tokens: EndTokens | None = None
    min_gap: int | Literal["auto", "none"] | None = Field(
        None, description="Columns between tokens committed in one step.", json_schema_extra=AT_LEAST_1
    )
    cache: CacheName | None = Field(
        None, description="Reuse keys and values outside the block; an approximation."
    )
    refresh_every: int | None = Field(
        None,
        description="With a cache: forwards of a block between two full ones.",
        json_schema_extra=AT_LEAST_1,
    )
    deadline: float | None = Field(
        None, description="Seconds from now to the answer.", json_schema_extra=ABOVE_0
    )
    response_format: ResponseFormat | None = Field(
        None, description="Text, any JSON object, or a JSON schema."
    )
    regex: str | None = Field(None, description="A regular expression that the whole answer matches.")
    choice: list[str] | None = Field(None, description="Texts, one of which is the answer.")
    drafts: bool | None = Field(None, description="Stream the provisional canvas as `event: draft` too.")
    draft_candidates: int | None = Field(
        None, ge=1, le=MOST_CANDIDATES, description="Candidates per position of a draft, and its signals."
    )

    @property
    def new_tokens(self) -> int | None:
        """The requested number of new tokens, or None for the server's default."""
        return self.max_tokens

    @property
    def constraint(self) -> Constraint | None:
        """The language that the answer must fit, or None if it may be any text."""
        if self.regex is not None:
            return Regex(self.regex)
        if self.choice is not None:
            return OneOf(self.choice)
        if self.response_format is None or self.response_format.type == "text":
            return None
        asked = self.response_format.json_schema
        return ANY_OBJECT if asked is None else JSONSchema(asked.json_schema)

    @property
    def names(self) -> dict[str, str]:
        """The request's names for library fields, where they differ."""
        sent = [name for name in ("regex", "choice") if getattr(self, name) is not None]
        form = self.response_format
        return {
            "json_schema": "response_format" + (".json_schema.schema" if form and form.json_schema else ""),
            "constraint": sent[0] if sent else "response_format",
            "max_new_tokens": "max_tokens",
            "min_new_tokens": "min_tokens",
            "candidates": "draft_candidates",
        }


class Part(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of a conversation, perhaps one that a client copied from an answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: str = Field(min_length=1, max_length=MOST_LETTERS)
    content: str | list[Part]
    name: str | None = Field(None, description="About the sender; without effect on the answer.")
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Nothing = None
    tool_calls: Nothing = None

    def plain(self) -> dict[str, str]:
        """Return the message as a chat template expects it."""
        whole = isinstance(self.content, str)
        text = self.content if whole else "".join(part.text for part in self.content)  # type: ignore[union-attr]
        return {"role": self.role, "content": str(text)}


class ChatRequest(Common):
    """The body of /v1/chat/completions."""

    messages: list[ChatMessage] = Field(json_schema_extra={"minItems": 1})
    max_completion_tokens: int | None = Field(None, json_schema_extra=AT_LEAST_1)

    @property
    def new_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def names(self) -> dict[str, str]:
        sent = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {**super().names, "max_new_tokens": sent, "prompts": "messages", "text": "messages"}


class CompletionRequest(Common):
    """The body of /v1/completions. A prompt with gaps, such as [[gap 8]], is filled."""

    prompt: Any = Field(json_schema_extra=ONE_PROMPT)

    @property
    def names(self) -> dict[str, str]:
        return {**super().names, "prompts": "prompt", "text": "prompt", "gap": "prompt"}

    def single(self) -> str | list[int]:
        """Return the prompt; raise if there are several, or if it is neither text nor token ids."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
            if len(prompt) > 1:
                raise ApiError(
                    400,
                    f"prompt must be one prompt, got {len(prompt)}; send a request for each at "
                    "the same time, and they are decoded together",
                    param="prompt",
                )
            prompt = prompt[0]
        # checked by hand, because pydantic would take seconds to report every wrong item of a long list
        if isinstance(prompt, str) or (
            isinstance(prompt, list) and all(type(item) is int for item in prompt)
        ):
            return prompt
        raise refuse(FieldError("prompt", prompt, "must be a text or a list of token ids"))


def read_body(body: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object; raise on NaN and Infinity, which are not valid JSON."""
    try:
        content = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise ApiError(400, NESTED) from None
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    _check_letters(body, content)
    if not isinstance(content, dict):
        raise ApiError(400, f"the body must be a JSON object, got {shown(Sent(content))}")
    return content


def _check_letters(body: bytes, content: Any) -> None:
    """Raise if a string holds half a surrogate pair, which JSON can express but UTF-8 cannot encode."""
    if SURROGATE not in body.lower():
        return
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except RecursionError:
        raise ApiError(400, NESTED) from None
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        raise ApiError(400, f"the body must be Unicode, got {half} alone; send both of its pair") from None


def parse(kind: type[AnyRequest], body: Mapping[str, Any]) -> AnyRequest:
    """Build a request from a body; raise on a field that we do not support."""
    sent = {name: value for name, value in body.items() if name not in IGNORED}
    for name, neutral in NEUTRAL.items():
        if name in sent:
            _check_neutral(name, sent.pop(name), neutral)
    try:
        for name in sorted(sent):
            known_field(name[:LONGEST], sent[name], kind.model_fields, "a request")
            if name != "prompt":
                _check_lists(name, sent[name])
    except FieldError as error:
        raise refuse(error, param=error.field) from None
    except RecursionError:
        raise ApiError(400, NESTED) from None
    try:
        # as JSON, because pydantic then limits the nesting
        request = kind.model_validate_json(json.dumps(sent))
    except ValidationError as error:
        raise refuse_invalid(error, sent) from None
    _check_together(request)
    return request


def _check_lists(name: str, value: Any) -> None:
    """Raise if the value holds a long list; reporting every mistake in it would take seconds."""
    if isinstance(value, list) and len(value) > MOST_ITEMS:
        raise FieldError(name, len(value), f"must hold lists of at most {MOST_ITEMS} items")
    if isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_lists(name, item)


def _check_together(request: Common) -> None:
    """Raise if fields contradict each other."""
    if request.draft_candidates is not None and not (request.stream and request.drafts):
        sentence = "draft_candidates needs stream and drafts; set both to true, or leave it out"
        raise ApiError(400, sentence, param="draft_candidates")
    if request.drafts and not request.stream:
        raise ApiError(400, "drafts needs stream; set it to true, or leave drafts out", param="drafts")
    _check_format(request)
    if request.stream_options is not None and not request.stream:
        options = request.stream_options.model_dump(exclude_unset=True)
        raise refuse(
            FieldError("stream_options", options, "needs stream", "set stream to true, or leave it out")
        )
    if isinstance(request, ChatRequest):
        _check_chat(request)


def _check_chat(request: ChatRequest) -> None:
    """Raise if there is nothing to answer, or if the two length limits differ."""
    if not request.messages:
        raise refuse(FieldError("messages", [], "must hold at least one message"))
    asked = [index for index, message in enumerate(request.messages) if message.role == "user"]
    if asked and not request.messages[asked[-1]].plain()["content"]:
        field = spelled(("messages", asked[-1], "content"))
        raise refuse(FieldError(field, "", "must not be empty", "write a text to answer"))
    if request.max_tokens not in (None, request.new_tokens):
        raise ApiError(
            400,
            f"max_tokens and max_completion_tokens must be the same, got {request.max_tokens} and "
            f"{request.new_tokens}; leave one of them out",
            param="max_completion_tokens",
        )


def _check_format(request: Common) -> None:
    """Raise if the format of the answer is given twice or incompletely."""
    form = request.response_format
    named = form is not None and form.type == "json_schema"
    if form is not None and named != (form.json_schema is not None):
        sentence = "response_format must have json_schema if its type is json_schema, and only then"
        raise ApiError(400, sentence, param="response_format")
    forms = [request.regex, request.choice, None if form is None or form.type == "text" else form]
    if sum(each is not None for each in forms) > 1:
        sentence = "regex, choice and response_format exclude each other; leave out all but one"
        raise ApiError(400, sentence, param="regex" if request.regex is not None else "choice")


def _check_neutral(name: str, value: Any, neutral: tuple[Any, ...]) -> None:
    if not any(value == allowed and type(value) is type(allowed) for allowed in neutral):
        raise refuse(FieldError(name, value, "is not supported", "leave it out"))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON knows")
