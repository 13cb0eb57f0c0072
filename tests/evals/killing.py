"""Runs a task undisturbed, then in child processes that it kills; prints how many died before the end.

python -m tests.evals.killing CHECKPOINT WHOLE KILLED SHARE...    after a share of a run's CPU time
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
from unmask.text.prompts import TextModel

CONFIG = GenerationConfig(max_new_tokens=16)
LIMIT, SIZE = 20, 1


def run(model: TextModel, out: Path) -> None:
    evaluate(model, get_task("mini-gsm8k"), config=CONFIG, out=out, limit=LIMIT, batch_size=SIZE)


def child(model: TextModel, out: Path, seconds: float) -> int:
    """The process id of a child that runs the task; forked, so that no moment goes by with what comes before.

    The kernel kills it once it has computed for so many seconds, however busy the machine is.
    """
    process = os.fork()
    if process == 0:
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            run(model, out)
        finally:
            os._exit(0)
    return process


def main(checkpoint: Path, whole: Path, out: Path, shares: list[float]) -> None:
    torch.set_num_threads(1)
    model = load(checkpoint, device="cpu")
    killed, began = 0, time.process_time()
    run(model, whole)
    seconds = time.process_time() - began
    for share in shares:
        _, status = os.waitpid(child(model, out, share * seconds), 0)
        killed += os.WIFSIGNALED(status)
    run(model, out)
    print(killed)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), [float(text) for text in sys.argv[4:]])
