"""Runs a task undisturbed, then in child processes that it kills; prints how many died before the end.

python -m tests.evals.killing CHECKPOINT WHOLE KILLED SHARE...    kill a child after a share of a run's time
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from unmask import GenerationConfig
from unmask.evals import evaluate, get_task
from unmask.models import load

CONFIG = GenerationConfig(max_new_tokens=16)
LIMIT, SIZE = 20, 1


def run(checkpoint: Path, out: Path) -> None:
    model = load(checkpoint, device="cpu")
    evaluate(model, get_task("mini-gsm8k"), config=CONFIG, out=out, limit=LIMIT, batch_size=SIZE)


def child(checkpoint: Path, out: Path) -> int:
    """The process id of a child that runs the task; forked, so that no moment goes by with imports."""
    process = os.fork()
    if process == 0:
        try:
            run(checkpoint, out)
        finally:
            os._exit(0)
    return process


def main(checkpoint: Path, whole: Path, out: Path, shares: list[float]) -> None:
    torch.set_num_threads(1)
    killed, began = 0, time.perf_counter()
    run(checkpoint, whole)
    seconds = time.perf_counter() - began
    for share in shares:
        process = child(checkpoint, out)
        time.sleep(share * seconds)
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        killed += os.WIFSIGNALED(status)
    run(checkpoint, out)
    print(killed)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), [float(text) for text in sys.argv[4:]])
