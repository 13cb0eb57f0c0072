"""The languages that a text can be held to. They are hashable values, and cheap to make."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.constraints.schema import check_schema, closed, refers
from unmask.errors import FieldError, flag

MAX_PATTERN = 20_000  # characters of a pattern or of a schema
MAX_CHOICES = 1000
MAX_RECURSIVE_PARTS = 100  # parts of a schema that refers to itself
OTHER = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # escapes and sets of characters
ESCAPE = re.compile(r"\\.", re.DOTALL)
ANCHOR = re.compile(r"[\^$]")


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that a text must belong to: a Regex, a JSONSchema, a Choice or a Grammar."""

    @property
    def raw(self) -> bool:
        """Whether the sampler sees the distribution without the constraint."""
        raise NotImplementedError

    @property
    def request(self) -> dict[str, Any]:
        """The language as the compiler reads it."""
        raise NotImplementedError

    @property
    def recursive(self) -> bool:
        """Whether the language is not regular, so that texts are written from left to right."""
        return False


@dataclass(frozen=True, slots=True)
class Regex(Constraint):
    r"""Hold a text to a regular expression: the whole text matches, as with `re.fullmatch`.

    Use it as `GenerationConfig(constraint=Regex(r"\d{3}-\d{4}"))`. Lookaround, backreferences and word
    boundaries are rejected. `\d` stands for 0 to 9.

    Attributes:
        pattern: The regular expression.
        raw: Let the sampler see the distribution without the constraint. Only tokens that fit are written.
    """

    pattern: str
    raw: bool = False

    def __post_init__(self) -> None:
        flag("raw", self.raw)
        if not isinstance(self.pattern, str):
            raise FieldError("regex", self.pattern, "must be a string")
        _check_size("regex", len(self.pattern))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # sets in sets, which the compiler reads differently
                re.compile(self.pattern)
        except (re.error, RecursionError, OverflowError, Warning) as error:
            raise FieldError("regex", self.pattern, f"must be a regular expression ({error})") from None
        if ANCHOR.search(OTHER.sub("", _without_anchors(self.pattern))):
            problem = "must have ^ and $ at its ends only; the whole text matches anyway"
            raise FieldError("regex", self.pattern, problem, "leave them out")

    @property
    def request(self) -> dict[str, Any]:
        pattern = _without_anchors(self.pattern)
        # the compiler's \d matches the digits of all scripts
        return {"regex": ESCAPE.sub(lambda found: "[0-9]" if found[0] == r"\d" else found[0], pattern)}


@dataclass(frozen=True, slots=True)
class JSONSchema(Constraint):
    """Hold a text to JSON that fits a schema, with its properties in the order of the schema.

    Use it as `GenerationConfig(constraint=JSONSchema({"type": "object", ...}))`. A keyword that cannot be
    enforced exactly is rejected. A schema that refers to itself needs a sampler that writes from left to
    right.

    Attributes:
        schema: The schema as a dict or as JSON text. It is stored as text.
        raw: Let the sampler see the distribution without the constraint. Only tokens that fit are written.
    """

    schema: str | Mapping[str, Any]
    raw: bool = False

    def __post_init__(self) -> None:
        flag("raw", self.raw)
        try:
            text = self.schema if isinstance(self.schema, str) else json.dumps(self.schema)
            _check_size("json_schema", len(text))
            schema = json.loads(text)
        except (TypeError, RecursionError, json.JSONDecodeError) as error:
            raise FieldError("json_schema", self.schema, f"must be a JSON schema ({error})") from None
        try:
            checked = check_schema(schema)
        except RecursionError:
            raise FieldError("json_schema", text, "is nested too deeply") from None
        if checked is None:  # it refers to itself
            checked = closed(schema)
            if text.count("{") > MAX_RECURSIVE_PARTS:
                problem = f"refers to itself and has more than {MAX_RECURSIVE_PARTS} parts"
                raise FieldError("json_schema", text, problem, "make it simpler")
        object.__setattr__(self, "schema", json.dumps(checked))

    @property
    def request(self) -> dict[str, Any]:
        return {"json_schema": self.schema}

    @property
    def recursive(self) -> bool:
        return refers(json.loads(str(self.schema)))


@dataclass(frozen=True, slots=True)
class Choice(Constraint):
    """Hold a text to one of several texts.

    Use it as `GenerationConfig(constraint=Choice(("yes", "no")))`.

    Attributes:
        options: The texts.
        raw: Let the sampler see the distribution without the constraint. Only tokens that fit are written.
    """

    options: Sequence[str]
    raw: bool = False

    def __post_init__(self) -> None:
        flag("raw", self.raw)
        if isinstance(self.options, str) or not isinstance(self.options, Sequence) or not self.options:
            raise FieldError("choice", self.options, "must be a list of texts")
        for option in self.options:
            if not isinstance(option, str) or not option:
                raise FieldError("choice", option, "must hold texts of at least one character")
            if any("\ud800" <= letter <= "\udfff" for letter in option):
                raise FieldError("choice", option, "must not hold a lone surrogate")
        if len(self.options) > MAX_CHOICES:
            raise FieldError("choice", len(self.options), f"must hold at most {MAX_CHOICES} texts")
        _check_size("choice", sum(map(len, self.options)))
        object.__setattr__(self, "options", tuple(self.options))

    @property
    def request(self) -> dict[str, Any]:
        letters = ["".join(f"\\x{{{ord(letter):x}}}" for letter in option) for option in self.options]
        return {"regex": "|".join(letters), "field": "choice"}


@dataclass(frozen=True, slots=True)
class Grammar(Constraint):
    """Hold a text to a context-free grammar in Lark's syntax, written from left to right.

    Use it as `GenerationConfig(constraint=Grammar('start: "(" start ")" | /[a-z]+/'))`. It needs a sampler
    that commits from the first mask on. A text that fills its canvas before the grammar is complete ends with
    "length" and is incomplete.

    Attributes:
        lark: The grammar. Its first rule is `start`.
        raw: Let the sampler see the distribution without the constraint. Only tokens that fit are written.
    """

    lark: str
    raw: bool = False

    def __post_init__(self) -> None:
        flag("raw", self.raw)
        if not isinstance(self.lark, str):
            raise FieldError("grammar", self.lark, "must be a string")
        _check_size("grammar", len(self.lark))

    @property
    def request(self) -> dict[str, Any]:
        return {"lark": self.lark}

    @property
    def recursive(self) -> bool:
        return True


def _without_anchors(pattern: str) -> str:
    """Return a pattern without ^ and $ at its ends, which mean nothing if the whole text must match."""
    slashes = len(pattern) - len(pattern.removesuffix("$").rstrip("\\")) - 1
    pattern = pattern[:-1] if pattern.endswith("$") and slashes % 2 == 0 else pattern
    return pattern.removeprefix("^")


def _check_size(field: str, characters: int) -> None:
    if characters > MAX_PATTERN:
        raise FieldError(field, characters, f"is too long: it must have at most {MAX_PATTERN} characters")


ANY_OBJECT = JSONSchema({"type": "object"})  # the server's response_format {"type": "json_object"}
