"""`unmask train`: train a model from a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli import complete

Recipe = Annotated[
    str,
    typer.Argument(
        help="A recipe file (.toml or .json), or a shipped one: mini-llada, mini-dream.",
        autocompletion=complete.recipes,
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the weights, the tokenizer and the log.")]
Device = Annotated[
    str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.", autocompletion=complete.devices)
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the folder's checkpoint.")]


def train(recipe: Recipe, out: Out, device: Device = "auto", resume: Resume = False) -> None:
    """Train a model, or fine-tune one on prompt/answer pairs, from a recipe."""
    from unmask.training.progress import show_progress
    from unmask.training.recipe import find_recipe
    from unmask.training.trainer import train as run

    with show_progress() as watch:
        run(find_recipe(recipe), out, device=device, resume=resume, watch=watch)
    typer.echo(str(out))
