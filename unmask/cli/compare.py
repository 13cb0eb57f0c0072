"""`unmask compare`: answers of several samplers side by side, as in the paper's qualitative tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import complete
from unmask.cli.generate import make_batch, set_up, warm_up_on
from unmask.cli.options import (
    DecodingOptions,
    LengthOptions,
    ModelOptions,
    PromptOptions,
    SamplerOptions,
    read_prompt,
)
from unmask.cli.output import print_json, print_table
from unmask.cli.printable import printable
from unmask.progress import progress
from unmask.text.display import plural

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from unmask.cli.runs import Setup
    from unmask.text.generate import Generation
    from unmask.types import Sampler, Step

NAMES = "base,threshold,entropy-bound,klass,prophet,less,first-mask"
HIGHLIGHTED = ("first-mask", "less")  # the last line reports the first of these that ran
BASELINE = "base"  # wherever it is in the list
RUNS, PATIENCE = 3, 20.0  # default number of timed runs, and the seconds that they should fit into

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
        help="Use an item of each of these tasks as the prompt, and judge the answers.",
        autocompletion=complete.task_list,
    ),
]
Place = Annotated[int, typer.Option("--item", min=0, help="Index of the item in each task.")]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--samplers",
        "-s",
        metavar="NAME,...",
        show_default=NAMES,
        help="Samplers, in this order; may be repeated. The baseline is base, or else the first.",
        rich_help_panel="Sampler",
        autocompletion=complete.sampler_list,
    ),
]
Repeat = Annotated[
    int | None,
    typer.Option(
        "--repeat",
        min=1,
        show_default=f"{RUNS}, or fewer if they take long",
        help="Timed runs of each sampler.",
        rich_help_panel="Output",
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
    """The answer of one sampler, whether it is right, and the seconds of every timed run."""

    generation: Generation  # its seconds are the median
    correct: bool | None  # None: not judged
    seconds: tuple[float, ...]


def compare(
    model: ModelOptions,
    decoding: DecodingOptions,
    length: LengthOptions,
    prompting: PromptOptions,
    prompt: PromptText = None,
    task: Tasks = None,
    item: Place = 0,
    samplers: Names = None,
    repeat: Repeat = None,
    json: AsJson = False,
) -> None:
    """Answer a prompt, or an item of some tasks, with several samplers, side by side."""
    from unmask.samplers import make_sampler

    if (prompt is None) == (task is None):
        raise ValueError("give either a PROMPT or --task, such as --task mini-gsm8k,mini-math")
    chosen = {name: make_sampler(name) for name in _names(",".join(samplers or [NAMES]), "--samplers", NAMES)}
    prompts = [] if task is None else [_item(name, item) for name in _names(task, "--task", "mini-gsm8k")]
    text = None if prompt is None else read_prompt(prompt)
    setup = set_up(model, SamplerOptions(sampler=next(iter(chosen))), decoding, length)
    if text is not None:
        prompts = [JudgedPrompt(text, prompting.apply(setup.model, [text])[0])]
    warm_up_on(setup, lambda: _runs(setup, chosen, prompts[0]))
    baseline = BASELINE if BASELINE in chosen else next(iter(chosen))
    all_answers = []
    for question in prompts:
        answers = _answers(setup, chosen, question, repeat)
        all_answers.append(answers)
        if json:
            _print_json(question, answers, baseline, model.model)
        else:
            _print(question.text, answers, baseline)
    if not json and len(chosen) > 1:
        typer.echo(_saved(all_answers, baseline))


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


def _answers(
    setup: Setup, samplers: dict[str, Sampler], question: JudgedPrompt, repeat: int | None
) -> dict[str, Answer]:
    """Return the answer of every sampler, timed after a forward that warms the model up.

    The samplers take turns, so that a busy moment of the machine does not slow down only one of them.
    """
    # prepare all first, so that an error in one sampler comes before any of them runs
    batches = {
        name: make_batch(replace(setup, sampler=sampler), [question.prompt])
        for name, sampler in samplers.items()
    }
    next(make_batch(setup, [question.prompt]).steps)
    rounds: list[dict[str, Generation]] = []
    began = perf_counter()
    with progress("comparing", len(batches) * (repeat or RUNS)) as update:
        while not rounds or _another(len(rounds), repeat, perf_counter() - began):
            rounds.append({})
            for name, batch in batches.items():
                update(len(batches) * (len(rounds) - 1) + len(rounds[-1]))
                [rounds[-1][name]] = batch.read(batch.steps, since=perf_counter())
    answers = {}
    for name, generation in rounds[0].items():
        seconds = tuple(one[name].seconds for one in rounds)
        correct = None if question.judge is None else question.judge(generation.text)
        answers[name] = Answer(replace(generation, seconds=median(seconds)), correct, seconds)
    return answers


def _another(done: int, repeat: int | None, spent: float) -> bool:
    """Return whether to time another run; by default only if it will probably fit into the time."""
    if repeat is not None:
        return done < repeat
    return done < RUNS and spent * (done + 1) / done <= PATIENCE


def _print_json(question: JudgedPrompt, answers: dict[str, Answer], baseline: str, model: str) -> None:
    base = answers[baseline].generation
    for name, answer in answers.items():
        verdict = {} if answer.correct is None else {"correct": answer.correct}
        more = {
            "prompt": question.text,
            "model": model,
            "sampler": name,
            "baseline": baseline,
            "fewer_forwards": base.forwards / answer.generation.forwards,
            "speedup": base.seconds / answer.generation.seconds,
            "runs": answer.seconds,
        }
        print_json(answer.generation, **more, **verdict)


def _print(prompt: str, answers: dict[str, Answer], baseline: str) -> None:
    from rich.text import Text

    table = _table(prompt)
    for name, answer in answers.items():
        compared = "" if name == baseline else f"{_fewer([answers[baseline]], [answer])} forwards"
        table.add_row(_facts(name, answer, compared), Text(printable(answer.generation.text)))
    print_table(table)


def _saved(all_answers: list[dict[str, Answer]], baseline: str) -> str:
    """Compare the forwards and seconds of one sampler with those of the baseline."""
    others = [name for name in all_answers[0] if name != baseline]
    name = next((name for name in HIGHLIGHTED if name in others), others[-1])
    ours, theirs = ([answers[key] for answers in all_answers] for key in (name, baseline))
    forwards, before = (sum(one.generation.forwards for one in each) for each in (ours, theirs))
    saved = (
        f"{name} took {plural(forwards, 'forward')} where {baseline} took {before}: {_fewer(theirs, ours)}"
    )
    if forwards == before:
        saved = f"{name} and {baseline} took {plural(before, 'forward')} each"
    runs = len(_totals(ours))
    timed = f"{_seconds(_totals(ours))} against {_seconds(_totals(theirs))}"
    parts = [saved, timed + (f", median and range of {runs} runs" if runs > 1 else ", one run each")]
    if ours[0].correct is not None:
        right = [sum(bool(one.correct) for one in each) for each in (ours, theirs)]
        total = len(all_answers)
        parts.append(f"right answers: {name} {right[0]} of {total}, {baseline} {right[1]} of {total}")
    note = (
        f"\nThe first is the baseline, because {BASELINE} is not in the list." if baseline != BASELINE else ""
    )
    return f"{'; '.join(parts)}.{note}"


def _fewer(theirs: Sequence[Answer], ours: Sequence[Answer]) -> str:
    """Compare the forwards of two samplers in words."""
    before, forwards = (sum(one.generation.forwards for one in each) for each in (theirs, ours))
    if before == forwards:
        return "as many"
    ratio, word = (before / forwards, "fewer") if before > forwards else (forwards / before, "more")
    return f"{ratio:.1f} times {word}"


def _totals(answers: Sequence[Answer]) -> list[float]:
    """Return the seconds of every run, summed over the questions."""
    return [sum(run) for run in zip(*(answer.seconds for answer in answers), strict=False)]


def _seconds(runs: Sequence[float]) -> str:
    """Return the median and the range of several runs, or the seconds of a single one."""
    spread = f" ({min(runs):.2f} to {max(runs):.2f})" if len(runs) > 1 else ""
    return f"{median(runs):.2f} s{spread}"


def _table(prompt: str) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ROUNDED, show_lines=True, border_style="grey50", expand=True)
    table.add_column(Text("Question", style="bold"), no_wrap=True)
    table.add_column(Text(printable(prompt), style="italic"), ratio=1, overflow="fold")
    return table


def _facts(name: str, answer: Answer, compared: str) -> Text:
    """Return the sampler's name, the cost of its answer, and whether it is right."""
    from rich.text import Text

    cost = answer.generation
    text = Text(name, style="bold")
    facts = plural(cost.steps, "step"), plural(cost.forwards, "forward"), _seconds(answer.seconds)
    text.append("".join(f"\n{fact}" for fact in facts), "not bold dim")
    if compared:
        text.append(f"\n{compared}", "not bold cyan")
    if answer.correct is not None:
        text.append(*("\ncorrect", "not bold green") if answer.correct else ("\nwrong", "not bold red"))
    return text
