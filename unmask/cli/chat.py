"""`unmask chat`: a conversation in the terminal."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.errors import FAILED, is_out_of_memory, print_error, sentence
from unmask.cli.generate import decode, make_batch, print_stream, set_up
from unmask.cli.live import can_show
from unmask.cli.options import (
    DecodingOptions,
    LengthOptions,
    ModelOptions,
    OutputOptions,
    SamplerOptions,
    check_standard_input,
)
from unmask.cli.output import print_cost, print_text
from unmask.cli.runs import compile_now, say_dimly
from unmask.errors import FieldError

if TYPE_CHECKING:
    from unmask.cli.runs import Setup
    from unmask.text.generate import Generation

Messages = list[dict[str, str]]
PROMPT = "> "
COMMANDS = {
    "/help": "list the commands",
    "/reset": "forget the conversation",
    "/exit": "leave; Ctrl-D does too",
}
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
    """Talk with a model: /help lists the commands, Ctrl-C stops an answer."""
    from unmask.fast.warm_up import warm_up
    from unmask.models.checkpoint.config import chat_turns

    check_standard_input()
    setup = set_up(model, choice, decoding, length)
    if setup.model.tokenizer is None or not setup.model.tokenizer.has_chat_template:
        raise ValueError(f"{model.model} has no chat template; use `unmask generate` for plain prompts")
    compile_now(setup.model, model.model, lambda: warm_up(setup.model, setup.sampler, setup.config))
    turns = None if setup.model.folder is None else chat_turns(setup.model.folder)
    opening = [] if system is None else [{"role": "system", "content": system}]
    conversation = Conversation(setup, opening, turns, can_show(live))
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401  `input` then edits lines of any length
        say_dimly(f"{model.model} · {choice.title} · /help lists the commands")
    if turns is not None:
        known = "single questions" if turns == 1 else f"chats of {turns} questions"
        say_dimly(f"{model.model} knows {known} only: earlier ones are forgotten")
    _talk(conversation)


@dataclass(slots=True)
class Conversation:
    """The questions and answers so far."""

    setup: Setup
    opening: Messages
    turns: int | None  # questions that the model can read; None: any number
    live: bool
    told: list[Messages] = field(default_factory=list)  # questions, each with its answer

    def take(self, line: str) -> None:
        """Follow a command, or answer a question."""
        if line == "/help":
            say_dimly("\n".join(f"{name:8}{about}" for name, about in COMMANDS.items()))
        elif line == "/reset":
            self.told = []
        elif re.match(r"/\w*(\s|$)", line):
            raise FieldError("the command", line, f"must be one of {', '.join(COMMANDS)}")
        elif line:
            self.answer(line)

    def answer(self, line: str) -> None:
        """Answer a question and remember both."""
        kept = self.told if self.turns is None else self.told[max(0, len(self.told) - self.turns + 1) :]
        earlier = [message for turn in kept for message in turn]
        question = {"role": "user", "content": line}
        answer = self.decode([*self.opening, *earlier, question])
        print_cost(answer, answer.finish, self.setup.shown_seed)
        self.told = [*kept, [question, {"role": "assistant", "content": answer.text}]]

    def decode(self, messages: Messages) -> Generation:
        """Show the answer while it is decoded, and return it."""
        batch = make_batch(self.setup, [messages])
        if not self.live:
            return print_stream(self.setup, batch, OutputOptions())
        [answer] = decode(self.setup, batch, OutputOptions(live=True))
        print_text(answer.text)
        return answer


def _talk(conversation: Conversation) -> None:
    """Take lines until the user leaves. Input that is refused shows an error, and the chat goes on."""
    refused = False
    while True:
        try:
            line = _read()
            if line in (None, "/exit"):
                break
            conversation.take(str(line))
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            say_dimly("stopped; the question is forgotten")
        except (ValueError, MemoryError, RuntimeError) as error:
            if not isinstance(error, ValueError) and not is_out_of_memory(error):
                raise
            if isinstance(error, UnicodeDecodeError) and not sys.stdin.isatty():
                raise  # the next read would meet the same bytes
            refused = True
            history = conversation.told and conversation.turns != 1
            print_error(sentence(error) + (" (/reset starts over)" if history else ""))
    if refused and not sys.stdin.isatty():
        raise typer.Exit(FAILED)


def _read() -> str | None:
    """Read the next line of the user; return None if there is none, or after Ctrl-C at an empty prompt."""
    try:
        return input(PROMPT if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        typer.echo(err=True)
        readline = sys.modules.get("readline")
        return "" if readline is not None and readline.get_line_buffer() else None
