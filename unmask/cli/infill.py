"""`unmask infill`: fill the gaps of a text."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.generate import set_up, warm_up_on
from unmask.cli.options import (
    DecodingOptions,
    LengthOptions,
    ModelOptions,
    OutputOptions,
    PatternOptions,
    SamplerOptions,
    read_text,
)
from unmask.cli.output import print_cost, print_json, print_text
from unmask.cli.printable import printable
from unmask.cli.runs import watching

if TYPE_CHECKING:
    from unmask.text.gaps import Gap

TextWithGaps = Annotated[
    str,
    typer.Argument(
        metavar="TEXT", help=r"A text with gaps: \[\[gap 8]] or \[\[gap 2-8]] tokens; - reads standard input."
    ),
]


def infill(
    text: TextWithGaps,
    model: ModelOptions,
    choice: SamplerOptions,
    decoding: DecodingOptions,
    constraint: PatternOptions,
    output: OutputOptions,
) -> None:
    """Fill the gaps of a text."""
    from unmask.text.gaps import read_gaps
    from unmask.text.infill import prepare_infill

    source = read_text(text)
    parts = read_gaps(source)
    setup = set_up(model, choice, decoding, LengthOptions(), constraint)
    warm_up_on(setup, lambda: [prepare_infill(setup.model, parts, setup.sampler, setup.config).steps])
    since = perf_counter()
    filling = prepare_infill(setup.model, parts, setup.sampler, setup.config)
    with watching(setup, filling, output) as steps:
        answer = filling.read(steps, since=since)
    if output.json:
        print_json(answer, prompt=source, model=model.model, sampler=choice.sampler)
    else:
        _print(parts, answer.gaps)
        print_cost(answer, seed=setup.shown_seed)
    setup.check_trace()


def _print(parts: Sequence[str | Gap], gaps: Sequence[str]) -> None:
    """Print the text, with the filled gaps in colour."""
    filled = iter(gaps)
    for part in parts:
        if isinstance(part, str):
            print_text(part, end="")
        else:
            typer.secho(printable(next(filled)), fg=typer.colors.GREEN, bold=True, nl=False)
    typer.echo()
