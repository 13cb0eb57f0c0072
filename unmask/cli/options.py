"""The options that commands share, a dataclass per theme.

The options of decoding are the fields of GenerationConfig, with its types, defaults and lines of help.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from unmask.catalog import DEFAULT_SAMPLER_NAME
from unmask.cli import complete
from unmask.cli.fields import parse, parse_fields
from unmask.describe import source_lines
from unmask.errors import FieldError
from unmask.files import read_utf8
from unmask.plugins import short_name
from unmask.text.fields import ConfigFields

if TYPE_CHECKING:
    from unmask.constraints.language import Constraint
    from unmask.text.config import GenerationConfig
    from unmask.types import Sampler

DEFAULT_MODEL = "mini-llada"
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="FOLDER", show_default="UNMASK_DATA, else the hub", help="The benchmark files."
    ),
]
LINES = source_lines("unmask.text", "config.py", "GenerationConfig")
STEPS = (
    "steps",
    "block_length",
    "next_block_at",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "guidance",
    "end_tokens",
    "min_gap",
    "cache",
    "refresh_every",
)
LENGTHS = ("max_new_tokens", "min_new_tokens", "stop")
SHORT = {"temperature": "-t", "max_new_tokens": "-n"}
METAVARS = {"stop": "TEXT", "block_length": "N|auto|none", "min_gap": "N|auto|none"}
# how the help shows a default of None
SHOWN = {
    "steps": "one per new token",
    "next_block_at": "when it is full",
    "cache": "append where possible, or none",
    "refresh_every": "once per block",
    "seed": "a new one if temperature > 0",
    "max_new_tokens": "the model's own, usually 256",
}
Group = TypeVar("Group", bound=type)


def _panel(title: str) -> Callable[..., Any]:
    """Return `typer.Option` for options under this title of the help page."""

    def option(*names: str, **settings: Any) -> Any:
        return typer.Option(*names, rich_help_panel=title, **settings)

    return option


_model, _sampler = _panel("Model"), _panel("Sampler")
_text, _output = _panel("Text"), _panel("Output")


def config_options(
    panel: str, names: Iterable[str], shown: Mapping[str, str] = SHOWN
) -> Callable[[Group], Group]:
    """Make a class a dataclass with an option for each named field of GenerationConfig; None if left out."""
    hints = get_type_hints(ConfigFields)

    def fill(group: Group) -> Group:
        for name in names:
            setattr(group, name, None)
            option = _config_option(name, hints[name], panel, shown)
            group.__annotations__[name] = Annotated[_option_type(hints[name]) | None, option]
        return cast(Group, dataclass(frozen=True, kw_only=True)(group))

    return fill


def _config_option(name: str, hint: Any, panel: str, shown: Mapping[str, str]) -> Any:
    default = getattr(ConfigFields(), name)
    text_default = False if default == () else str(default).lower()  # False: show no default
    flag = f"--{name.replace('_', '-')}"
    return typer.Option(
        *([flag, SHORT[name]] if name in SHORT else [flag]),
        metavar=METAVARS.get(name) or "|".join(_words(hint)) or None,
        show_default=shown.get(name, text_default),
        help=option_help(name, hint),
        autocompletion=complete.one_of(_words(hint)) if _words(hint) else None,
        rich_help_panel=panel,
    )


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _words(hint: Any) -> list[str]:
    """Return the words that a field takes, such as none; empty if it takes only numbers or free text."""
    names = [str(value) for part in _members(hint) if get_origin(part) is Literal for value in get_args(part)]
    none = ["none"] if type(None) in _members(hint) and "none" not in names else []
    return [*names, *none] if names else []


def option_help(name: str, hint: Any) -> str:
    """Return the help of an option: the line about its field of GenerationConfig.

    The option takes "none" for None, or shows its meaning as the default. It takes no sequence.
    """
    line = LINES[name].replace('"', "")
    python_only = re.compile(r"[;.] (None|a sequence): [^.;]*")
    text = line.replace("None:", "none:") if _words(hint) else python_only.sub("", line)
    repeated = " May be repeated." if any(get_origin(part) is tuple for part in _members(hint)) else ""
    return text + repeated


def _option_type(hint: Any) -> Any:
    """Return the type that typer reads: text where the field takes words, which `build_config` parses."""
    if any(get_origin(part) is Literal for part in _members(hint)):
        return str
    first = _members(hint)[0]
    return list[str] if get_origin(first) is tuple else first


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Where and how a model runs."""

    device: Annotated[
        str, _model("--device", help="auto, cpu, cuda, cuda:N or mps.", autocompletion=complete.devices)
    ] = "auto"
    dtype: Annotated[
        str,
        _model(
            "--dtype",
            help="auto, float32, bfloat16, float16, or quantized while loading: fp8, int8 or int4.",
            autocompletion=complete.dtypes,
        ),
    ] = "auto"
    compile: Annotated[
        bool,
        _model("--compile", help="Compile the model first: a slower start, then faster on a GPU."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions(LoadOptions):
    """Which model, and how it runs."""

    model: Annotated[
        str,
        _model(
            "--model",
            "-m",
            help="mini-llada, mini-dream, a checkpoint folder, a hub id owner/name\\[@revision], hf:NAME for "
            "a Hugging Face masked LM, or your own FILE.py:CLASS.",
            autocompletion=complete.models,
        ),
    ] = DEFAULT_MODEL


ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        show_default=DEFAULT_MODEL,
        help="mini-llada, mini-dream, a checkpoint folder, a hub id, hf:NAME or FILE.py:CLASS.",
        autocompletion=complete.models,
    ),
]


@dataclass(frozen=True, kw_only=True)
class ModelArgumentOptions(LoadOptions):
    """How the model of a command runs that takes it as an argument, or by the option of other commands."""

    named: Annotated[
        str | None,
        _model(
            "--model",
            "-m",
            metavar="MODEL",
            help="The same as the argument MODEL, as in other commands.",
            autocompletion=complete.models,
        ),
    ] = None

    def model(self, argument: str | None) -> ModelOptions:
        """Return the model that the argument or the option names, and how to load it."""
        if argument is not None and self.named is not None:
            raise ValueError(f"the model must be named once, got {argument!r} and --model {self.named!r}")
        name = argument or self.named or DEFAULT_MODEL
        return ModelOptions(model=name, device=self.device, dtype=self.dtype, compile=self.compile)


@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """The sampler and its settings."""

    sampler: Annotated[
        str,
        _sampler(
            "--sampler",
            "-s",
            help="`unmask samplers` lists them; or a preset FILE.json; or your own class, FILE.py:CLASS.",
            autocompletion=complete.samplers,
        ),
    ] = DEFAULT_SAMPLER_NAME
    settings: Annotated[
        list[str] | None,
        _sampler(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a field of the sampler; may be repeated. `unmask samplers NAME` lists the fields.",
        ),
    ] = None

    @property
    def name(self) -> str:
        """Return the sampler's name without the folder of a file."""
        return short_name(self.sampler)

    @property
    def title(self) -> str:
        """Return the sampler's name and the fields that the user changed."""
        return " ".join((self.name, *(self.settings or ())))

    def build(self) -> Sampler:
        """Return the sampler with the changed fields."""
        from unmask.samplers.registry import check_fields, find_sampler
        from unmask.samplers.wrapper import change

        preset = find_sampler(self.sampler)
        changes = parse_fields(preset, self.settings or [])
        check_fields(self.sampler, preset, changes)
        return change(preset, changes)


@config_options("Decoding", STEPS)
class DecodingOptions:
    """How the canvas is decoded."""


@config_options("Text", LENGTHS)
class LengthOptions:
    """Where a text ends."""


OPTIONS = {  # of constraints, by field
    "regex": "--regex",
    "json_schema": "--json-schema",
    "choices": "--choice",
    "grammar": "--grammar",
}


@dataclass(frozen=True, kw_only=True)
class PatternOptions:
    """The constraint that a text must satisfy, if it may have gaps."""

    regex: Annotated[
        str | None,
        _text("--regex", metavar="PATTERN", help="The whole text matches this regular expression."),
    ] = None
    json_schema: Annotated[
        str | None,
        _text("--json-schema", metavar="FILE", help="The text is JSON that fits the schema in this file."),
    ] = None
    choices: Annotated[
        list[str] | None,
        _text("--choice", metavar="TEXT", help="The text is one of these. May be repeated."),
    ] = None

    def build(self) -> Constraint | None:
        """Return the constraint, or None if there is none."""
        from unmask.constraints.language import Choice, JSONSchema, Regex

        self.check_one()
        if self.json_schema is not None:
            return JSONSchema(read_utf8(Path(self.json_schema)))
        if self.choices:
            return Choice(self.choices)
        return None if self.regex is None else Regex(self.regex)

    def check_one(self) -> None:
        """Raise if there are several constraints."""
        given = [OPTIONS[item.name] for item in fields(self) if getattr(self, item.name) not in (None, [])]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other; give only one")


@dataclass(frozen=True, kw_only=True)
class ConstraintOptions(PatternOptions):
    """The constraint that a text must satisfy."""

    grammar: Annotated[
        str | None,
        _text(
            "--grammar",
            metavar="FILE",
            help="The text follows the Lark grammar in this file, written from left to right.",
        ),
    ] = None

    def build(self) -> Constraint | None:
        """Return the constraint, or None if there is none."""
        from unmask.constraints.language import Grammar

        self.check_one()
        return super().build() if self.grammar is None else Grammar(read_utf8(Path(self.grammar)))


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """How a prompt reaches the model."""

    system: Annotated[
        str | None, _text("--system", metavar="TEXT", help="System message of the chat template.")
    ] = None
    raw: Annotated[
        bool, _text("--raw", help="Send the prompt as it is, without the checkpoint's chat template.")
    ] = False

    def apply(self, model: Any, texts: list[str]) -> list[Any]:
        """Return the prompts as `generate` takes them: chats if the model has a template."""
        templated = getattr(model.tokenizer, "has_chat_template", False)
        if self.system is not None and (self.raw or not templated):
            raise ValueError(
                "--system goes through a chat template, but "
                + ("--raw asks for none" if self.raw else "this checkpoint has none")
            )
        return [self.messages(text) if templated and not self.raw else text for text in texts]

    def messages(self, text: str) -> list[dict[str, str]]:
        """Return a conversation with one question."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": text}]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Output: JSON, a live view, a trace file."""

    json: Annotated[
        bool, _output("--json", help="Print one JSON object per text on standard output, nothing else.")
    ] = False
    live: Annotated[bool, _output("--live", help="Show the canvas as it fills.")] = False
    trace: Annotated[
        str | None,
        _output("--trace", metavar="FILE", help="Write every step to a file, compressed if it ends in .gz."),
    ] = None

    def __post_init__(self) -> None:
        if self.json and self.live:
            raise ValueError("--json and --live both write to standard output; choose one")
        if self.trace is not None and Path(self.trace).is_dir():
            raise FieldError("--trace", self.trace, "must be a file, not a folder")
        if self.trace is not None and not Path(self.trace).parent.is_dir():
            raise FieldError("--trace", self.trace, "must be in a folder that exists", "create it first")


def build_config(*groups: Any, **defaults: Any) -> GenerationConfig:
    """Return the settings of these option groups; `defaults` fill in those that the user left out."""
    from unmask.text.config import GenerationConfig

    hints = get_type_hints(ConfigFields)
    values = {item.name: getattr(group, item.name) for group in groups for item in fields(group)}
    settings = {
        name: parse(f"--{name.replace('_', '-')}", hints[name], value) if isinstance(value, str) else value
        for name, value in values.items()
        if value not in (None, [])
    }
    return GenerationConfig(**{**defaults, **settings})


def read_text(text: str) -> str:
    """Return the text of an argument; "-" reads standard input."""
    return standard_input().removesuffix("\n") if text == "-" else text


def standard_input() -> str:
    """Return all of standard input. Raise if it is closed or not UTF-8."""
    check_standard_input()
    try:
        text = sys.stdin.read()
        text.encode()
    except UnicodeError:
        raise ValueError("standard input must be UTF-8 text") from None
    return text


def check_standard_input() -> None:
    """Raise if standard input is closed."""
    if sys.stdin is None:
        raise ValueError("standard input is closed; give the text as an argument, or redirect a file")


def read_prompt(text: str) -> str:
    """Return the prompt of an argument; raise if it is empty."""
    prompt = read_text(text)
    if not prompt.strip():
        raise FieldError("PROMPT", prompt, "must not be empty", "write a text to answer")
    return prompt
