"""`python -m unmask.training RECIPE --out DIR`: train a model from a recipe."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from unmask.training.progress import show_progress
from unmask.training.recipe import find_recipe
from unmask.training.trainer import train


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m unmask.training", description=__doc__)
    parser.add_argument("recipe", help="recipe file, or the name of a shipped one (mini-llada)")
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, tokenizer and log")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--resume", action="store_true", help="resume from the folder's checkpoint")
    arguments = parser.parse_args()
    # background jobs of a shell ignore interrupts, but a grid ends its trainings with one
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with show_progress() as watch:
        train(
            find_recipe(arguments.recipe),
            arguments.out,
            device=arguments.device,
            resume=arguments.resume,
            watch=watch,
        )


if __name__ == "__main__":
    main()
