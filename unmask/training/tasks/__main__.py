"""`python -m unmask.training.tasks`: write, check or show the test items."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from unmask.training.tasks import TASKS, TEST_TASKS
from unmask.training.tasks.files import FOLDER, drawn_items, to_lines
from unmask.training.tasks.split import draw_train


def main() -> None:
    """Check the shipped files; `--write` writes them again, `--show N` prints training items."""
    parser = argparse.ArgumentParser(prog="python -m unmask.training.tasks", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the test items instead of checking them")
    parser.add_argument("--show", type=int, metavar="N", help="print N training items of every task")
    parser.add_argument("--seed", type=int, default=0, help="seed of the items to show")
    options = parser.parse_args()
    if options.show is not None:
        show(options.show, options.seed)
    elif options.write:
        write()
    else:
        check()


def show(count: int, seed: int) -> None:
    for task in TASKS.values():
        rng = random.Random(seed)
        for _ in range(count):
            item = draw_train(task, rng)
            print(f"=== {task.name} | {item.key}\n{item.prompt}\n---\n{item.answer}\n")


def write() -> None:
    for name in TEST_TASKS:
        path = Path(str(FOLDER)) / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(to_lines(drawn_items(TASKS[name]))), encoding="utf-8")
        print(f"wrote {path.name}")


def check() -> None:
    """Exit with 1 if a shipped file differs from its generator's items."""
    stale = []
    for name in TEST_TASKS:
        shipped = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
        same = shipped == "".join(to_lines(drawn_items(TASKS[name])))
        print(f"{name}: {'as drawn' if same else 'differs from what is drawn; run with --write'}")
        stale += [] if same else [name]
    sys.exit(1 if stale else 0)


if __name__ == "__main__":
    main()
