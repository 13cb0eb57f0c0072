"""Run `unmask reproduce headline` from end to end on random weights, with a few items of each task.

The weights have the published format, and the scores mean nothing. The run shows that loading, compiling, the
estimate, decoding, scoring, an interrupt, resuming and the tables work at full size, and how long they take.
It calls the same functions as the command, so it needs no command line packages:

    python -m benchmarks.dry_run --work WORK --out OUT --family llada
    unmask reproduce headline -m WORK/LLaDA-8B-Instruct --compile --device cuda --batch-size 1 --limit 21
        --max-new-tokens 32 --data WORK/data --out OUT
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
SHAPES: dict[str, dict[str, Any]] = json.loads((ROOT / "unmask/bench/shapes.json").read_text("utf-8"))
NAMES = {"llada": "LLaDA-8B-Instruct", "dream": "Dream-v0-Instruct-7B"}  # as in the paper's figures
SPECIAL = ("vocab_size", "embedding_size", "mask_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
ROWS = ROOT / "tests" / "evals" / "rows"
# file -> number of rows of the full set, which the loader requires
FILES = {
    "gsm8k/test.jsonl": 1319,
    "math/math500_test.jsonl": 500,
    "humaneval/HumanEval.jsonl": 164,
    "mbpp/sanitized-mbpp.json": 257,
    "mmlu/test.jsonl": 14042,
    "hellaswag/val.jsonl": 10042,
    "winogrande/dev.jsonl": 1267,
}
INTERRUPTED = 130
POLL_SECONDS = 0.05
REPORT = "dry_run.json"


def main(argv: Sequence[str] | None = None) -> None:
    """Write the checkpoint, unless it is there, and the data. Then run, and show tables and times."""
    args = parse(argv)
    if args.stage:
        reproduce(args)
        return
    began = time.perf_counter()
    folder = args.work / NAMES[args.family]
    written = write_checkpoint(args, folder)
    write_data(args.work / "data")
    command = [sys.executable, "-m", "benchmarks.dry_run", "--stage", *(argv or sys.argv[1:])]
    times: dict[str, Any] = {"write_seconds": written}
    if args.interrupt_after:
        times |= interrupt(command, args)
    subprocess.run(command, cwd=ROOT, check=True)
    times |= json.loads((args.out / REPORT).read_text("utf-8"))
    times["total_seconds"] = time.perf_counter() - began
    (args.out / REPORT).write_text(json.dumps(times, indent=2) + "\n", encoding="utf-8")
    for name, value in times.items():
        print(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=absolute, required=True, help="folder for the checkpoint and the data")
    parser.add_argument("--out", type=absolute, required=True, help="folder for records, tables and times")
    parser.add_argument("--family", choices=NAMES, default="llada")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="few and narrow layers, for the CPU")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--items", type=int, default=3, help="of each task")
    parser.add_argument("--new-tokens", type=int, default=32, help="of each text; the tasks' own are 256")
    parser.add_argument("--batch-size", type=int, default=1, help="every size is a shape to compile")
    parser.add_argument("--tasks", default="", help="A,B,...; all seven if left out")
    parser.add_argument(
        "--interrupt-after", type=int, default=0, help="interrupt after so many runs, then resume; 0: do not"
    )
    parser.add_argument(
        "--unsafe-code", action="store_true", help="run programs even if nothing isolates them"
    )
    parser.add_argument("--stage", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def absolute(path: str) -> Path:
    return Path(path).resolve()


# ---- the checkpoint and the data


def write_checkpoint(args: argparse.Namespace, folder: Path) -> float:
    """Write random weights and the tokenizer of a small model, and return the seconds it took.

    The vocabulary keeps its published ids. Ids that the tokenizer does not have decode to nothing.
    """
    from unmask.models import random_checkpoint
    from unmask.models.checkpoint.files import copy_tokenizer

    done = folder / "tokenizer_config.json"
    if done.exists():
        return 0.0
    began = time.perf_counter()
    narrow = {name: size for name, size in SHAPES["tiny"][args.family].items() if name not in SPECIAL}
    config = SHAPES["published"][args.family] | (narrow if args.tiny else {})
    random_checkpoint(config, folder, device=args.device, shard_bytes=4_000_000_000)
    copy_tokenizer(ROOT / "unmask" / "mini" / f"mini-{args.family}", folder)
    return time.perf_counter() - began


def write_data(folder: Path) -> None:
    """Write files as long as the full sets. A few rows of each set repeat, each time under a new id."""
    for name, size in FILES.items():
        text = (ROWS / name).read_text("utf-8")
        lines = name.endswith(".jsonl")
        rows = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        repeated = list(islice(_repeat(rows), size))
        path.write_text("\n".join(map(json.dumps, repeated)) if lines else json.dumps(repeated), "utf-8")


def _repeat(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number in count():
        row = dict(rows[number % len(rows)])
        if "problem" in row:  # the id in MATH is a hash of the problem
            row["problem"] += f" ({number})"
        if isinstance(row.get("task_id"), int):  # MBPP; its test split begins at 11
            row["task_id"] = 11 + number
        elif "task_id" in row:
            row["task_id"] = f"HumanEval/{number}"
        yield row


# ---- the run


def interrupt(command: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """Start the run, interrupt it as Ctrl-C does after some runs, and return how it ended."""
    process = subprocess.Popen(command, cwd=ROOT)
    while process.poll() is None and kept(args.out) < args.interrupt_after:
        time.sleep(POLL_SECONDS)
    began = time.perf_counter()
    process.send_signal(signal.SIGINT)
    code = process.wait()
    if code != INTERRUPTED:
        raise SystemExit(f"the interrupted run ended with code {code}, expected {INTERRUPTED}")
    return {"runs_before_interrupt": kept(args.out), "seconds_to_stop": time.perf_counter() - began}


def kept(out: Path) -> int:
    return len(list((out / "records").rglob("*.json.xz")))


@dataclass
class Clock:
    """Seconds spent on loading and compiling."""

    load: list[float] = field(default_factory=list)
    warm_up: list[float] = field(default_factory=list)


def reproduce(args: argparse.Namespace) -> None:
    """Estimate the time, make the missing runs, and write tables and times. Runs in its own process."""
    from unmask.experiments import get_experiment
    from unmask.experiments.forecast import forecast
    from unmask.experiments.lab import Lab
    from unmask.experiments.report import write
    from unmask.sandbox import allow_unsafe_code, require_isolation

    if args.unsafe_code:
        allow_unsafe_code()
    print(f"generated programs are isolated by {require_isolation()}", flush=True)
    clock, experiment = Clock(), get_experiment("headline")
    lab = Lab(lab_settings(args), load=lambda lab, name: load(lab, name, clock))
    missing = lab.missing(experiment.runs(lab).values())
    cost = forecast(lab, [experiment])
    print(f"estimate: {cost.seconds:.0f} s for {cost.runs} runs, {cost.forwards:.0f} forwards", flush=True)
    began = time.perf_counter()
    try:
        report, outcomes = experiment.make(lab)
    except KeyboardInterrupt:
        print("interrupted; the same command resumes it", flush=True)
        raise SystemExit(INTERRUPTED) from None
    seconds = time.perf_counter() - began
    if find_spec("matplotlib") is None:
        report = replace(report, pictures=())
    write(report, args.out / "reports", args.out / "reports")
    for table in report.tables:
        print(f"\n{table.title}\n\n{table.markdown()}")
    print("The weights are random, so the scores mean nothing.")
    times: dict[str, Any] = {
        "weights": "random",
        "device": cost.timed[0].device if cost.timed else args.device,
        "runs": len(outcomes),
        "runs_made_now": len(missing),
        "load_seconds": sum(clock.load),
        "warm_up_seconds": sum(clock.warm_up),
        "estimate_seconds": cost.seconds,
        "estimate_forwards": cost.forwards,
        "run_seconds": seconds,
    }
    if missing:
        times |= spent([outcomes[run] for run in missing])
        times["estimate_seconds_at_these_forwards"] = cost.seconds * times["forwards"] / cost.forwards
    (args.out / REPORT).write_text(json.dumps(times), encoding="utf-8")


def lab_settings(args: argparse.Namespace) -> Any:
    """Return the settings that the command makes from its options."""
    from unmask.experiments.lab import LabSettings
    from unmask.experiments.methods import PAPER_TASKS

    tasks = tuple(args.tasks.split(",")) if args.tasks else ()
    if find_spec("math_verify") is None:
        print("math500 is left out: the package math-verify is missing", flush=True)
        tasks = tuple(task for task in tasks or PAPER_TASKS if task != "math500")
    return LabSettings(
        models=(str(args.work / NAMES[args.family]),),
        out=args.out,
        tasks=tasks,
        limit=args.items * len(tasks or PAPER_TASKS),
        device=args.device,
        compile=args.compile,
        batch_size=args.batch_size,
        data=args.work / "data",
        max_new_tokens=args.new_tokens,
    )


def load(lab: Any, name: str, clock: Clock) -> Any:
    """Load and compile as the command does, and note the seconds."""
    from unmask.fast.load import load_model
    from unmask.fast.warm_up import warm_up
    from unmask.text.config import GenerationConfig
    from unmask.text.generate import DEFAULT_SAMPLER

    settings, began = lab.settings, time.perf_counter()
    model = load_model(name, device=settings.device, dtype=settings.dtype, compile=settings.compile)
    clock.load.append(time.perf_counter() - began)
    if settings.compile:
        config = GenerationConfig(max_new_tokens=settings.max_new_tokens)
        clock.warm_up.append(warm_up(model, DEFAULT_SAMPLER, config, rows=(lab.batch_size(model),)))
    return model


def spent(outcomes: Sequence[Any]) -> dict[str, float]:
    """Return the seconds of decoding and scoring in these runs.

    The first batch of a run may compile, so the cost of a forward is the median over the batches. Decoding
    time beyond that counts as compiling.
    """
    timings = [timing for one in outcomes for timing in one.timings]
    forwards = sum(record.forwards for one in outcomes for record in one.records)
    decoding = sum(timing.seconds for timing in timings)
    batches = [(timing.seconds / timing.rows, one.forwards) for one in outcomes for timing in one.timings]
    usual = median(seconds / forwards for seconds, forwards in batches)
    return {
        "items": float(sum(len(one.records) for one in outcomes)),
        "forwards": float(forwards),
        "decoding_seconds": decoding,
        "scoring_seconds": sum(timing.scoring for timing in timings),
        "median_seconds_per_item": median(seconds for seconds, _ in batches),
        "median_seconds_per_forward": usual,
        "compiling_seconds_in_runs": max(0.0, decoding - usual * forwards),
    }


if __name__ == "__main__":
    main()
