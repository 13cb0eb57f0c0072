"""`unmask compare`: answers of several samplers side by side, as in the paper's qualitative tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.generate import make_batch, set_up, warm_up_on
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
from unmask.progress import progress

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from unmask.cli.runs import Setup
    from unmask.text.generate import Generation
    from unmask.types import Sampler, Step

NAMES = "base,threshold,klass,prophet,less-paper,less-released,less"

PromptText = Annotated[
    str | None,
    typer.Argument(
        metavar="[PROMPT]", show_default=False, help="The text to answer; - reads standard input."
    ),
]
Tasks = Annotated[
    str | None,
    typer.Option(
        "--task",
        "--tasks",
        metavar="NAME,...",
        help="Ask an item of these tasks instead, and judge the answers.",
    ),
]
Place = Annotated[int, typer.Option("--item", min=0, help="Which item of each task.")]
Names = Annotated[
    str,
    typer.Option(
        "--samplers", "-s", metavar="NAME,...", help="Which, in this order.", rich_help_panel="Sampler"
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per answer.", rich_help_panel="Output")
]


@dataclass(frozen=True, slots=True)
class JudgedPrompt:
    """A prompt, and a judge of its answers if it is an item of a task."""

    text: str
    prompt: object  # as `generate` takes it
    judge: Callable[[str], bool] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one sampler, and whether it is right."""

    generation: Generation
    correct: bool | None  # None: not judged


def compare(
    model: ModelOptions,
    decoding: DecodingOptions,
    length: LengthOptions,
    prompting: PromptOptions,
    prompt: PromptText = None,
    task: Tasks = None,
    item: Place = 0,
    samplers: Names = NAMES,
    json: AsJson = False,
) -> None:
    """Answer a prompt, or an item of some tasks, with several samplers, side by side."""
    from unmask.samplers import make_sampler

    if (prompt is None) == (task is None):
        raise ValueError("give either a PROMPT or --task, such as --task mini-gsm8k,mini-math")
    chosen = {name: make_sampler(name) for name in _names(samplers, "--samplers", NAMES)}
    prompts = [] if task is None else [_item(name, item) for name in _names(task, "--task", "mini-gsm8k")]
    setup = set_up(model, SamplerOptions(sampler=next(iter(chosen))), decoding, length)
    if prompt is not None:
        text = read_text(prompt)
        prompts = [JudgedPrompt(text, prompting.apply(setup.model, [text])[0])]
    warm_up_on(setup, lambda: _runs(setup, chosen, prompts[0]))
    all_answers = []
    for question in prompts:
        answers = _answers(setup, chosen, question)
        all_answers.append(answers)
        if json:
            _print_json(question, answers, model.model)
        else:
            _print(question.text, answers)
    if not json and "less" in chosen and len(chosen) > 1:
        typer.echo(_saved(all_answers))


def _item(task: str, place: int) -> JudgedPrompt:
    """Return an item of a task, with its judge."""
    from unmask.evals import get_task

    benchmark = get_task(task)
    samples = benchmark.load(None)
    if place >= len(samples):
        raise ValueError(f"--item must be below {len(samples)}, the size of {task}; got {place}")
    sample = samples[place]
    shown = sample.prompt if isinstance(sample.prompt, str) else sample.prompt[-1]["content"]  # type: ignore[index]
    return JudgedPrompt(shown, sample.prompt, lambda text: benchmark.score([sample], [text])[0].correct)


def _names(text: str, option: str, example: str) -> list[str]:
    """Split a comma-separated list of at least one name, each given once."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"{option} names none; give some, such as {example}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{option} names {twice!r} twice; give each name once")
    return names


def _runs(setup: Setup, samplers: dict[str, Sampler], question: JudgedPrompt) -> Iterator[Iterator[Step]]:
    """Yield the steps of every sampler."""
    for sampler in samplers.values():
        yield make_batch(replace(setup, sampler=sampler), [question.prompt]).steps


def _answers(setup: Setup, samplers: dict[str, Sampler], question: JudgedPrompt) -> dict[str, Answer]:
    """Return the answer of every sampler, timed after a forward that warms the model up."""
    # prepare all first: an error of one sampler comes before the first one runs
    batches = {
        name: make_batch(replace(setup, sampler=sampler), [question.prompt])
        for name, sampler in samplers.items()
    }
    next(make_batch(setup, [question.prompt]).steps)
    answers = {}
    with progress("comparing", len(batches)) as update:
        for done, (name, batch) in enumerate(batches.items()):
            update(done)
            [generation] = batch.read(batch.steps, since=perf_counter())
            correct = None if question.judge is None else question.judge(generation.text)
            answers[name] = Answer(generation, correct)
    return answers


def _print_json(question: JudgedPrompt, answers: dict[str, Answer], model: str) -> None:
    first = next(iter(answers.values())).generation
    for name, answer in answers.items():
        verdict = {} if answer.correct is None else {"correct": answer.correct}
        speedup = first.seconds / answer.generation.seconds
        more = {"prompt": question.text, "model": model, "sampler": name, "speedup": speedup}
        print_json(answer.generation, **more, **verdict)


def _print(prompt: str, answers: dict[str, Answer]) -> None:
    from rich.console import Console
    from rich.text import Text

    first = next(iter(answers.values())).generation
    table = _table(prompt)
    for name, answer in answers.items():
        speedup = first.seconds / answer.generation.seconds
        table.add_row(_facts(name, answer, speedup), Text(printable(answer.generation.text)))
    Console().print(table)


def _saved(all_answers: list[dict[str, Answer]]) -> str:
    """Return a sentence: the steps and time that LESS saved over the first sampler, on all questions."""
    name = next(iter(all_answers[0]))
    less, first = ([answers[key].generation for answers in all_answers] for key in ("less", name))
    steps, before = sum(one.steps for one in less), sum(one.steps for one in first)
    faster = sum(one.seconds for one in first) / sum(one.seconds for one in less)
    fewer = f"{1 - steps / before:.0%} fewer, {faster:.1f}x as fast"
    saved = f"less took {steps} steps where {name} took {before}: {fewer}"
    if all_answers[0]["less"].correct is None:
        return f"{saved}."
    right = {key: sum(bool(answers[key].correct) for answers in all_answers) for key in ("less", name)}
    return f"{saved}; right answers: less {right['less']}, {name} {right[name]} of {len(all_answers)}."


def _table(prompt: str) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ROUNDED, show_lines=True, border_style="grey50", expand=True)
    table.add_column(Text("Question", style="bold"), no_wrap=True)
    table.add_column(Text(printable(prompt), style="italic"), ratio=1, overflow="fold")
    return table


def _facts(name: str, answer: Answer, speedup: float) -> Text:
    """Return the sampler's name, the cost of its answer, and whether it is right."""
    from rich.text import Text

    cost = answer.generation
    text = Text(name, style="bold")
    text.append(f"\n{cost.steps} steps\n{cost.forwards} forwards\n{cost.seconds:.2f} s", "not bold dim")
    text.append(f"\n{speedup:.2f}x", "not bold cyan")
    if answer.correct is not None:
        text.append(*("\ncorrect", "not bold green") if answer.correct else ("\nwrong", "not bold red"))
    return text
