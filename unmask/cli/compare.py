"""`unmask compare`: one prompt under several samplers, side by side as in the paper's qualitative tables."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.generate import make_batch, set_up
from unmask.cli.options import (
    DecodingOptions,
    LengthOptions,
    ModelOptions,
    PromptOptions,
    SamplerOptions,
    read_text,
)
from unmask.cli.output import print_json
from unmask.cli.printable import printable
from unmask.cli.progress import progress

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from unmask.cli.runs import Setup
    from unmask.generate import Generation
    from unmask.types import Sampler

NAMES = "base,threshold,klass,prophet,less-paper,less-released,less"

PromptText = Annotated[
    str, typer.Argument(metavar="PROMPT", help="The text to answer; - reads standard input.")
]
Names = Annotated[
    str,
    typer.Option(
        "--samplers", "-s", metavar="NAME,...", help="Which, in this order.", rich_help_panel="Sampler"
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per sampler.", rich_help_panel="Output")
]


def compare(
    prompt: PromptText,
    model: ModelOptions,
    decoding: DecodingOptions,
    length: LengthOptions,
    prompting: PromptOptions,
    samplers: Names = NAMES,
    json: AsJson = False,
) -> None:
    """Answer one prompt with several samplers: text, steps, forwards and seconds side by side."""
    from unmask.samplers import make_sampler

    text = read_text(prompt)
    chosen = {name: make_sampler(name) for name in _names(samplers)}
    setup = set_up(model, SamplerOptions(sampler=next(iter(chosen))), decoding, length)
    answers = _answers(setup, chosen, prompting.apply(setup.model, [text]))
    first = next(iter(answers.values()))
    if not json:
        _print(text, answers)
        return
    for name, answer in answers.items():
        print_json(
            answer, prompt=text, model=model.model, sampler=name, speedup=first.seconds / answer.seconds
        )


def _names(samplers: str) -> list[str]:
    """The names in a comma-separated list, at least one, each once."""
    names = [name.strip() for name in samplers.split(",") if name.strip()]
    if not names:
        raise ValueError(f"--samplers names none; give some, such as {NAMES}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"--samplers names {twice!r} twice; name each sampler once")
    return names


def _answers(setup: Setup, samplers: dict[str, Sampler], prompts: list[object]) -> dict[str, Generation]:
    """The answer of every sampler, timed after a forward that warms the model up."""
    # all at once: what one sampler refuses is refused before the first one runs
    batches = {
        name: make_batch(replace(setup, sampler=sampler), prompts) for name, sampler in samplers.items()
    }
    next(make_batch(setup, prompts).steps)
    answers = {}
    with progress("comparing", len(batches)) as update:
        for done, (name, batch) in enumerate(batches.items()):
            update(done)
            [answers[name]] = batch.read(batch.steps, since=perf_counter())
    return answers


def _print(prompt: str, answers: dict[str, Generation]) -> None:
    from rich.console import Console
    from rich.text import Text

    first = next(iter(answers.values()))
    table = _table(prompt)
    for name, answer in answers.items():
        table.add_row(_facts(name, answer, first.seconds / answer.seconds), Text(printable(answer.text)))
    Console().print(table)


def _table(prompt: str) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ROUNDED, show_lines=True, border_style="grey50", expand=True)
    table.add_column(Text("Question", style="bold"), no_wrap=True)
    table.add_column(Text(printable(prompt), style="italic"), ratio=1, overflow="fold")
    return table


def _facts(name: str, answer: Generation, speedup: float) -> Text:
    """The name of a sampler over what its answer took."""
    from rich.text import Text

    facts = f"\n{answer.steps} steps\n{answer.forwards} forwards\n{answer.seconds:.2f} s"
    return (
        Text(name, style="bold").append(facts, "not bold dim").append(f"\n{speedup:.2f}x", "not bold green")
    )
