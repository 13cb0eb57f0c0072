"""`unmask chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.errors import print_error, sentence
from unmask.cli.generate import decode, make_batch, print_stream, set_up
from unmask.cli.live import can_show
from unmask.cli.options import DecodingOptions, LengthOptions, ModelOptions, OutputOptions, SamplerOptions
from unmask.cli.output import print_cost, print_text
from unmask.cli.runs import compile_now

if TYPE_CHECKING:
    from unmask.cli.runs import Setup
    from unmask.text.generate import Generation

Messages = list[dict[str, str]]
PROMPT = "> "
System = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", help="System message.", rich_help_panel="Text"),
]
ShowLive = Annotated[
    bool, typer.Option("--live", help="Show the canvas as it fills.", rich_help_panel="Output")
]


def chat(
    model: ModelOptions,
    choice: SamplerOptions,
    decoding: DecodingOptions,
    length: LengthOptions,
    system: System = None,
    live: ShowLive = False,
) -> None:
    """Talk with a model: /reset starts over, /exit ends."""
    from unmask.fast.warm_up import warm_up

    setup = set_up(model, choice, decoding, length)
    if setup.model.tokenizer is None or not setup.model.tokenizer.has_chat_template:
        raise ValueError(f"{model.model} has no chat template; use `unmask generate` for plain prompts")
    compile_now(setup.model, model.model, lambda: warm_up(setup.model, setup.sampler, setup.config))
    opening: Messages = [] if system is None else [{"role": "system", "content": system}]
    messages = list(opening)
    live = can_show(live)
    if sys.stdin.isatty():
        typer.secho("/reset starts over, /exit ends", dim=True, err=True)
    while (text := _read()) not in (None, "/exit"):
        if text == "/reset":
            messages = list(opening)
        elif text:
            messages = _turn(setup, messages, text, live)


def _read() -> str | None:
    """Read the next line of the user; return None at the end of the input."""
    try:
        return input(PROMPT if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


def _turn(setup: Setup, messages: Messages, text: str | None, live: bool) -> Messages:
    """Return the conversation with one more question and its answer."""
    question = [*messages, {"role": "user", "content": str(text)}]
    try:
        answer = _answer(setup, question, live)
    except ValueError as error:
        if not sys.stdin.isatty():
            raise
        print_error(f"{sentence(error)} (/reset starts over)")
        return messages
    print_cost(answer, answer.finish, setup.shown_seed)
    return [*question, {"role": "assistant", "content": answer.text}]


def _answer(setup: Setup, messages: Messages, live: bool) -> Generation:
    batch = make_batch(setup, [messages])
    if not live:
        return print_stream(setup, batch, OutputOptions())
    [answer] = decode(setup, batch, OutputOptions(live=True))
    print_text(answer.text)
    return answer
