"""The options that commands share, a dataclass per theme. One left out keeps its owner's own default.

`show_default` repeats such a default for the help page; a test holds it to the owner's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.fields import parse_fields

if TYPE_CHECKING:
    from unmask.text.config import GenerationConfig
    from unmask.types import Sampler

DEFAULT_MODEL = "mini-llada"
DEFAULT_SAMPLER = "less"
CACHES = ("none", "prefix", "dual")


def _panel(title: str) -> Callable[..., Any]:
    """An option under a title of the help page."""

    def option(*names: str, **settings: Any) -> Any:
        return typer.Option(*names, rich_help_panel=title, **settings)

    return option


_model, _sampler, _decoding = _panel("Model"), _panel("Sampler"), _panel("Decoding")
_text, _output = _panel("Text"), _panel("Output")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and where it runs."""

    model: Annotated[
        str,
        _model(
            "--model",
            "-m",
            help="mini-llada, mini-dream, a checkpoint folder, or a hub id owner/name[@revision].",
        ),
    ] = DEFAULT_MODEL
    device: Annotated[str, _model("--device", help="auto, cpu, cuda, cuda:N or mps.")] = "auto"
    dtype: Annotated[str, _model("--dtype", help="auto, float32, bfloat16, float16 or int8.")] = "auto"


@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """Which rule decides."""

    sampler: Annotated[
        str, _sampler("--sampler", "-s", help="`unmask samplers` lists them; or a preset FILE.json.")
    ] = DEFAULT_SAMPLER
    settings: Annotated[
        list[str] | None,
        _sampler(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a field of the sampler; may be repeated. `unmask samplers NAME` lists the fields.",
        ),
    ] = None

    @property
    def title(self) -> str:
        """What a user calls the sampler: its name, and what is changed of it."""
        return " ".join((self.sampler, *(self.settings or ())))

    def build(self) -> Sampler:
        """The sampler that these options mean."""
        from dataclasses import replace

        from unmask.samplers import check_fields
        from unmask.samplers.presets import find_sampler

        preset: Any = find_sampler(self.sampler)
        changes = parse_fields(preset, self.settings or [])
        check_fields(self.sampler, preset, changes)
        made: Sampler = replace(preset, **changes)
        return made


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How the canvas is decoded."""

    steps: Annotated[
        int | None, _decoding("--steps", show_default="one per new token", help="Reverse steps at most.")
    ] = None
    block_length: Annotated[
        str | None,
        _decoding(
            "--block-length",
            metavar="N|auto|none",
            show_default="auto",
            help="Columns decoded together; auto: the model family's own, none: the full sequence.",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        _decoding("--temperature", "-t", show_default="0.0", help="0 takes the likeliest token."),
    ] = None
    top_p: Annotated[
        float | None, _decoding("--top-p", show_default="1.0", help="Draw from the nucleus of this mass.")
    ] = None
    top_k: Annotated[
        int | None, _decoding("--top-k", show_default="0", help="Draw from so many tokens; 0: all.")
    ] = None
    seed: Annotated[int | None, _decoding("--seed", show_default="0", help="Seed of every prompt.")] = None
    guidance: Annotated[
        float | None,
        _decoding(
            "--guidance", show_default="0.0", help="Classifier-free guidance; 0: off, else 2x the work."
        ),
    ] = None
    end_tokens: Annotated[
        str | None,
        _decoding(
            "--end-tokens",
            metavar="keep|suppress|demote",
            show_default="keep",
            help="suppress: no end-of-text token; demote: positions that would take one rank last (base).",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(StepOptions):
    """How the canvas is decoded, and what is kept between forwards."""

    cache: Annotated[
        str | None,
        _decoding(
            "--cache",
            metavar="|".join(CACHES),
            show_default="none",
            help="Reuse keys and values outside the block: an approximation that saves work.",
        ),
    ] = None
    refresh_every: Annotated[
        int | None,
        _decoding(
            "--refresh-every",
            show_default="once per block",
            help="Forwards of a block between two full ones, with a cache.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """Where a text ends."""

    max_new_tokens: Annotated[
        int | None,
        _text("--max-new-tokens", "-n", show_default="the model's own, mostly 256", help="Tokens to decode."),
    ] = None
    min_new_tokens: Annotated[
        int | None, _text("--min-new-tokens", show_default="0", help="No end token before so many.")
    ] = None
    stop: Annotated[
        list[str] | None,
        _text("--stop", metavar="TEXT", help="End the text before this string; as often as needed."),
    ] = None


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
        """The prompts in the form that `generate` takes: chats where the model has a template."""
        templated = getattr(model.tokenizer, "has_chat_template", False)
        if self.system is not None and (self.raw or not templated):
            raise ValueError(
                "--system goes through a chat template, but "
                + ("--raw asks for none" if self.raw else "this checkpoint has none")
            )
        return [self.messages(text) if templated and not self.raw else text for text in texts]

    def messages(self, text: str) -> list[dict[str, str]]:
        """A conversation with one question."""
        given = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*given, {"role": "user", "content": text}]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is shown, and what is kept."""

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
            raise ValueError("--json and --live both want standard output; choose one")


def build_config(*groups: object) -> GenerationConfig:
    """The settings that were given, over the defaults of GenerationConfig."""
    from unmask.errors import one_of
    from unmask.text.config import GenerationConfig

    given = {item.name: getattr(group, item.name) for group in groups for item in fields(group)}  # type: ignore[arg-type]
    settings = {name: value for name, value in given.items() if value is not None}
    if "block_length" in settings:
        settings["block_length"] = parse_block_length(settings["block_length"])
    if "cache" in settings:
        one_of("--cache", settings["cache"], CACHES)
        settings["cache"] = None if settings["cache"] == "none" else settings["cache"]
    return GenerationConfig(**settings)


def parse_block_length(text: str) -> int | str | None:
    """Columns per block: a number, "auto", or None for "none"."""
    if text in ("auto", "none"):
        return "auto" if text == "auto" else None
    if not text.isdecimal():
        raise ValueError(f"--block-length must be a whole number, auto or none, got {text!r}")
    return int(text)


def read_text(text: str) -> str:
    """The text of an argument; "-" stands for standard input."""
    return sys.stdin.read().removesuffix("\n") if text == "-" else text
