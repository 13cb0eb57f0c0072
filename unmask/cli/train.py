"""`unmask train`: train a model from a recipe, or a grid of models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli import complete
from unmask.errors import FieldError

Recipe = Annotated[
    str | None,
    typer.Argument(
        help="A recipe file (.toml or .json), or a shipped one: mini-llada, mini-dream.",
        autocompletion=complete.recipes,
        show_default=False,
    ),
]
GridName = Annotated[
    str | None,
    typer.Option(
        "--grid",
        metavar="FILE",
        show_default=False,
        help="Train all models of a grid file, or of the shipped grid: evidence. Skip finished ones.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        show_default="none; required without --dry-run",
        help="Folder for the weights, the tokenizer and the log, or for the grid.",
    ),
]
Device = Annotated[
    str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.", autocompletion=complete.devices)
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the folder's checkpoint.")]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        show_default="as the file says",
        help="With --grid: scale all time limits to fit into this.",
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size", metavar="NAME", show_default="all", help="With --grid: only this size. Repeat for more."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --grid: only print the plan.")]


def train(
    out: Out = None,
    recipe: Recipe = None,
    grid: GridName = None,
    device: Device = "auto",
    resume: Resume = False,
    minutes: Minutes = None,
    size: Sizes = None,
    dry_run: DryRun = False,
) -> None:
    """Train a model, or fine-tune one on prompt/answer pairs, from a recipe; or train a grid of models."""
    if (recipe is None) == (grid is None):
        both = recipe is not None
        problem = "must not be given with --grid" if both else "must be given, or --grid"
        raise FieldError("recipe", recipe, problem, "drop one of them" if both else "name a recipe or a grid")
    if out is None and not (grid is not None and dry_run):
        raise FieldError("out", None, "must be given", "name a folder with --out")
    if out is not None and out.exists() and not out.is_dir():
        raise FieldError("out", str(out), "must be a folder, not a file")
    if grid is not None:
        _train_grid(grid, out, device, minutes, size, dry_run=dry_run)
        return
    for option, value in {"--dry-run": dry_run, "--minutes": minutes, "--size": size}.items():
        if value not in (None, False, []):
            raise FieldError(option, value, "needs --grid", "leave it out")
    from unmask.training.progress import show_progress
    from unmask.training.recipe import find_recipe
    from unmask.training.trainer import CHECKPOINT
    from unmask.training.trainer import train as run

    assert recipe is not None
    assert out is not None
    try:
        with show_progress() as watch:
            run(find_recipe(recipe), out, device=device, resume=resume, watch=watch)
    except KeyboardInterrupt:
        if (out / CHECKPOINT).exists():
            typer.echo(f"interrupted; --resume goes on from the last checkpoint in {out}", err=True)
        raise
    typer.echo(str(out))


def _train_grid(
    name: str,
    out: Path | None,
    device: str,
    minutes: float | None,
    sizes: list[str] | None,
    *,
    dry_run: bool,
) -> None:
    """Print the plan of a grid, and train what is missing."""
    from unmask.models.checkpoint.load import pick_device
    from unmask.training.grid import estimate, find_grid, members, read_grid, train_grid

    grid = read_grid(find_grid(name))
    grid = grid if sizes is None else grid.only(sizes)
    grid = grid if minutes is None else grid.within(minutes)
    everyone = members(grid)
    states = {one.name: "new" if out is None else one.state(out) for one in everyone}
    for one in everyone:
        millions = one.parameters / 1e6
        typer.echo(f"{one.name}: {millions:.1f} M parameters, {one.seconds:.0f} s, {states[one.name]}")
    missing = [one for one in everyone if states[one.name] != "done"]
    seconds, jobs = estimate(missing, grid.jobs), min(grid.jobs, len(missing))
    total = f"{len(missing)} of {len(everyone)} models to train, {jobs} at a time"
    typer.echo(f"estimate: about {seconds / 60:.1f} minutes for {total}")
    if missing and pick_device(device).type == "cpu":
        words = "a CPU takes few steps in these times, so the models will hardly learn; raise --minutes"
        typer.secho(words, fg=typer.colors.YELLOW, err=True)
    if not dry_run:
        assert out is not None
        train_grid(grid, out, device=device, watch=typer.echo)
        typer.echo(str(out))
