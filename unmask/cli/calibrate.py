"""`unmask calibrate`: choose the threshold of `first-mask` for a model, without labels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import complete
from unmask.cli.options import ModelArgument, ModelArgumentOptions
from unmask.cli.runs import load_model
from unmask.errors import FieldError
from unmask.files import read_utf8
from unmask.text.display import plural

if TYPE_CHECKING:
    from unmask.evals.agreement import Agreement
    from unmask.text.prompts import Prompt

TASKS = "mini-gsm8k,mini-math,mini-humaneval,mini-mbpp,mini-mmlu,mini-hellaswag,mini-winogrande"
FAR = 0.2  # a 95 % interval that ends this far above the bound is too wide to support a choice
MARKS = "* is the choice; c is the threshold, min_confidence; brackets hold 95 % intervals."


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(ModelArgumentOptions):
    """Prompts, the bound, and the preset file."""

    tasks: Annotated[
        str,
        typer.Option(
            "--tasks",
            "--task",
            metavar="A,B,...",
            help="Use the prompts of these tasks in turn (dev items of mini tasks); answers are not read.",
            autocompletion=complete.task_list,
        ),
    ] = TASKS
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="Read the prompts from a file instead, one per line."),
    ] = None
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FOLDER", help="Local files of the benchmarks.")
    ] = None
    limit: Annotated[int, typer.Option("--limit", min=1, help="Prompts to decode.")] = 21
    max_changed: Annotated[
        float,
        typer.Option("--max-changed", min=0, max=1, help="Largest share of texts that may change."),
    ] = 0.05
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", min=1, help="Tokens to decode.", show_default="the model's"),
    ] = None
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", min=1, help="Prompts decoded together.")
    ] = 8
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", show_default="first-mask-MODEL.json", help="The preset file."),
    ] = None


def calibrate(options: CalibrateOptions, model: ModelArgument = None) -> None:
    """Choose the threshold of first-mask for a model from its own texts, and write it as a preset.

    The model decodes prompts one token per forward. A threshold on confidence would have committed some
    tokens ahead of their turn. The lowest threshold is chosen for which few of the texts contain such a token
    that turned out wrong.
    """
    from unmask.evals.agreement import choose, measure, preset
    from unmask.samplers.presets import write_preset
    from unmask.text.config import GenerationConfig

    source = options.model(model)
    name = source.model.rstrip("/").rpartition("/")[2].partition("@")[0].rpartition(":")[2]
    path = options.out or Path(f"first-mask-{name}.json")
    if path.suffix != ".json":
        raise FieldError("out", str(path), "must end in .json", f"write {path}.json")
    loaded = load_model(source)
    prompts = _prompts(options)[: options.limit]

    def watch(done: int) -> None:
        typer.secho(f"{done} of {plural(len(prompts), 'prompt')}", dim=True, err=True)

    config = GenerationConfig(max_new_tokens=options.max_new_tokens)
    found = measure(loaded, prompts, config, batch_size=options.batch_size, watch=watch)
    chosen = choose(found, options.max_changed)
    for one in found:
        typer.echo(_line(one, chosen))
    typer.secho(MARKS, dim=True)
    made = preset(chosen, name, options.max_changed)
    write_preset(path, made)
    if chosen.rate > options.max_changed:
        _warn("no threshold meets the bound; this is the highest")
    elif (high := chosen.interval[1]) > options.max_changed + FAR:
        _warn(
            f"with only {plural(chosen.texts, 'text')}, up to {high:.0%} of all texts may change; "
            "give more prompts, or raise --limit"
        )
    typer.echo(f"min_confidence = {chosen.bar:g}: {made.about}")
    typer.echo(f"preset: {path}; use it with --sampler {path}")


def _warn(sentence: str) -> None:
    typer.secho(sentence, fg=typer.colors.YELLOW, err=True)


def _line(one: Agreement, chosen: Agreement) -> str:
    low, high = one.interval
    return (
        f"{'*' if one == chosen else ' '} c = {one.bar:<5g}  texts changed {100 * one.rate:5.1f} % "
        f"[{100 * low:.1f}, {100 * high:.1f}]  tokens ahead of their turn {100 * one.early:5.1f} %, "
        f"{100 * one.wrong:.2f} % of them wrong"
    )


def _prompts(options: CalibrateOptions) -> list[Prompt]:
    """Return the prompts of the file, or those of the tasks in turn."""
    if options.prompts is not None:
        lines = read_utf8(options.prompts).splitlines()
        found: list[Prompt] = [[{"role": "user", "content": line}] for line in lines if line.strip()]
        if not found:
            raise FieldError("prompts", str(options.prompts), "must hold at least one line")
        return found
    from unmask.catalog import TASKS as ENTRIES
    from unmask.evals import get_task
    from unmask.evals.run import load_samples

    groups = []
    for name in options.tasks.split(","):
        dev = "dev" if name in ENTRIES and "dev" in ENTRIES[name].protocols else None
        groups.append([sample.prompt for sample in load_samples(get_task(name, dev), options.data)])
    return [prompt for prompt in chain.from_iterable(zip_longest(*groups)) if prompt is not None]
