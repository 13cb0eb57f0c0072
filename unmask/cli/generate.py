"""`unmask generate`: texts from prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import (
    ConstraintOptions,
    DecodingOptions,
    LengthOptions,
    ModelOptions,
    OutputOptions,
    PatternOptions,
    PromptOptions,
    SamplerOptions,
    build_config,
    read_prompt,
)
from unmask.cli.output import print_cost, print_heading, print_json, print_text
from unmask.cli.runs import Setup, compile_now, load_model, token_bar, watched, watching

if TYPE_CHECKING:
    from unmask.text.generate import Generation, Prepared
    from unmask.types import Step

Prompts = Annotated[
    list[str] | None,
    typer.Argument(metavar="PROMPT", show_default=False, help="Texts to answer; - reads standard input."),
]
Stream = Annotated[
    bool,
    typer.Option("--stream", help="Print the text as it becomes final.", rich_help_panel="Output"),
]
NO_CONSTRAINT = PatternOptions()


def generate(
    model: ModelOptions,
    choice: SamplerOptions,
    decoding: DecodingOptions,
    length: LengthOptions,
    constraint: ConstraintOptions,
    prompting: PromptOptions,
    output: OutputOptions,
    prompts: Prompts = None,
    stream: Stream = False,
) -> None:
    """Answer prompts, all in one batch."""
    if not prompts:
        raise ValueError("there is no prompt; give at least one, or - to read it from standard input")
    if stream and (output.json or output.live or len(prompts) > 1):
        raise ValueError("--stream prints one text as it grows; leave out --json, --live and further prompts")
    texts = [read_prompt(prompt) for prompt in prompts]
    setup = set_up(model, choice, decoding, length, constraint)
    chats = prompting.apply(setup.model, texts)
    warm_up_on(setup, lambda: [make_batch(setup, chats).steps])
    batch = make_batch(setup, chats)
    answers = [print_stream(setup, batch, output)] if stream else decode(setup, batch, output)
    for number, (text, answer) in enumerate(zip(texts, answers, strict=True), start=1):
        if output.json:
            print_json(answer, prompt=text, model=model.model, sampler=choice.sampler)
            continue
        if len(texts) > 1:
            print_heading(number, len(texts), text)
        if not stream:
            print_text(answer.text)
        print_cost(answer, answer.finish, setup.shown_seed)
    setup.check_trace()


def set_up(
    model: ModelOptions,
    choice: SamplerOptions,
    decoding: DecodingOptions,
    length: LengthOptions,
    constraint: PatternOptions = NO_CONSTRAINT,
) -> Setup:
    """Load the model, after checking the other settings."""
    sampler, config = choice.build(), build_config(decoding, length, constraint=constraint.build())
    return Setup(
        model=load_model(model),
        model_name=model.model,
        sampler=sampler,
        sampler_name=choice.name,
        config=config,
    )


def warm_up_on(setup: Setup, runs: Callable[[], Iterable[Iterator[Step]]]) -> None:
    """If the model is compiled, take the first steps of these runs, so that everything is compiled now."""
    from unmask.fast.warm_up import take_steps

    compile_now(setup.model, setup.model_name, lambda: take_steps(runs()))


def make_batch(setup: Setup, prompts: list[object]) -> Prepared:
    """Encode the prompts as one batch."""
    from unmask.text.generate import prepare

    return prepare(setup.model, prompts, setup.sampler, setup.config)  # type: ignore[arg-type]


def decode(setup: Setup, batch: Prepared, output: OutputOptions) -> list[Generation]:
    """Return the answers of a batch."""
    since = perf_counter()
    with watching(setup, batch, output, first=batch.canvas.start) as steps:
        return batch.read(steps, since=since)


def print_stream(setup: Setup, batch: Prepared, output: OutputOptions) -> Generation:
    """Print the answer of a batch of one while it grows, and return it; a bar shows until it begins."""
    from unmask.text.stream import chunks

    begun = False
    with watching(setup, batch, output, bar=False) as steps, ExitStack() as waiting:
        watch = waiting.enter_context(token_bar(batch.canvas, patience=0))
        try:
            for chunk in chunks(batch, watched(steps, [watch]), None):
                waiting.close()
                print_text(chunk.text, end="" if chunk.generation is None else "\n")
                begun = True
        except KeyboardInterrupt:
            print_text("", end="\n" if begun else "")
            raise
    assert chunk.generation is not None
    return chunk.generation
