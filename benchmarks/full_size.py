"""Time LLaDA-8B and Dream-7B at full size with random weights: write, load, forward, decode, precisions.

Each stage runs in its own process (full_size_stage.py), and the results file is rewritten after each. This
file must not import torch, because a child's ru_maxrss starts at its parent's size.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STAGE = Path(__file__).with_name("full_size_stage.py")
EVICT_SECONDS = 60.0  # time to flush the checkpoint to disk before the cold load
LONGEST_STAGE = 180.0
SHORTEST_STAGE = 15.0  # no stage starts with less time left

# the shape fields of the published config.json files, and a miniature of each
SHAPES: dict[str, dict[str, Any]] = json.loads(
    (ROOT / "unmask/bench/shapes.json").read_text(encoding="utf-8")
)
CONFIGS, TINY, NAMES = SHAPES["published"], SHAPES["tiny"], SHAPES["names"]
MISSING = "-"
SIZES: dict[str, object] = {
    "shard_bytes": 4_000_000_000,
    "prompt": 128,
    "length": 256,
    "steps": 256,
    "base_steps": 64,
    "batches": [1, 8],
    "warmups": 5,
    "runs": 20,
    "canvases": 32,
}
TINY_SIZES: dict[str, object] = {
    "shard_bytes": 200_000,
    "prompt": 16,
    "length": 128,
    "steps": 16,
    "base_steps": 8,
    "batches": [1, 2],
    "warmups": 1,
    "runs": 3,
    "canvases": 4,
}

Results = dict[str, Any]
Row = tuple[str, Callable[[Results], str]]  # a label, and a function that formats a family's results


class Report:
    """All results. The file is rewritten after every stage."""

    def __init__(
        self, args: argparse.Namespace, sizes: dict[str, object], program: str = "full_size"
    ) -> None:
        self.program = program
        self.out: Path = args.out
        self.work: Path = args.work
        self.deadline = time.monotonic() + args.minutes * 60
        self.content: Results = {
            "command": command(args, program),
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
            "machine": {},
            "work_filesystem": filesystem(args.work),
            "sizes": sizes,
            "families": {},
        }

    def problem(self, family: Results, sentence: str) -> None:
        sentence = sentence.replace(str(self.work), "WORK")  # hide the folders of this machine
        family["problems"].append(sentence)
        print(f"  problem: {sentence}", flush=True)

    def write(self) -> None:
        path = self.out
        if path.suffix != ".json":
            device = self.content["machine"].get("device", "unknown").lower().replace(" ", "-")
            path = path / f"{self.program}_{device}_{self.content['date'][:10]}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.content, indent=2) + "\n", encoding="utf-8")

    def seconds_left(self) -> float:
        left: float = self.deadline - time.monotonic()
        return min(left, LONGEST_STAGE)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    report = Report(args, TINY_SIZES if args.tiny else SIZES)
    for name in args.families:
        folder = Path(tempfile.mkdtemp(prefix="full_size_", dir=args.work))
        try:
            run_family(report, name, folder, args)
        finally:
            shutil.rmtree(folder)
            report.write()
    print(f"\n{table(report.content)}", flush=True)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--tiny", action="store_true", help="miniature shapes, for the CPU")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="disk with room for a checkpoint",
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results", help="results file or folder"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="time limit; later stages are left out")
    return parser.parse_args(argv)


def command(args: argparse.Namespace, program: str) -> str:
    """Return the command line without the folders of this machine."""
    words = ["python", f"benchmarks/{program}.py", "--families", *args.families, "--device", args.device]
    return shlex.join([*words, *(["--tiny"] if args.tiny else [])])


def run_family(report: Report, name: str, folder: Path, args: argparse.Namespace) -> None:
    """Run all stages of one family. Stop after the first if it wrote no checkpoint."""
    config = CONFIGS[name] | (TINY[name] if args.tiny else {})
    family: Results = {"name": NAMES[name], "config": config, "problems": [], "stage_seconds": {}}
    report.content["families"][name] = family
    job = {
        "folder": str(folder / "checkpoint"),
        "result": str(folder / "result.json"),
        "device": args.device,
        "config": config,
        **report.content["sizes"],
    }
    family |= run_stage(report, family, job | {"stage": "write"})
    report.write()
    if "write" not in family:
        return
    try:
        family["evict"] = evict(folder / "checkpoint")
    except OSError as error:
        report.problem(family, f"evict: the page cache may still hold the checkpoint: {error}")
    for key, stage in {"cold": "load", "speed": "speed", "float32": "float32", "int8": "int8"}.items():
        family[key] = run_stage(report, family, job | {"stage": stage})
        report.write()


def run_stage(report: Report, family: Results, job: Results, script: Path = STAGE) -> Results:
    """Run a stage in a process, report its failure, and return its results, complete or not."""
    stage, left, start = job["stage"], report.seconds_left(), time.monotonic()
    if left < SHORTEST_STAGE:
        report.problem(family, f"{stage}: not run, the time given was over")
        return {}
    print(f"{family['name']} {stage}", flush=True)
    result = Path(job["result"])
    result.unlink(missing_ok=True)
    failure = call_stage(job, timeout=left, script=script)
    written = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    report.content["machine"] |= written.pop("machine", {})
    for sentence in [*written.pop("problems", ()), *failure]:
        report.problem(family, f"{stage}: {sentence}")
    family["stage_seconds"][stage] = time.monotonic() - start
    print(f"  {family['stage_seconds'][stage]:.1f} s, the process's start included", flush=True)
    return written


def call_stage(job: Results, *, timeout: float, script: Path = STAGE) -> list[str]:
    """Run the process and return its problems."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    call = [sys.executable, str(script), json.dumps(job)]
    try:
        subprocess.run(call, env=environment, timeout=timeout, check=True, stderr=subprocess.PIPE, text=True)
    except subprocess.TimeoutExpired:
        return [f"stopped after {timeout:.0f} s"]
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        return [f"ended with code {error.returncode}: {last}"]
    return []


def evict(folder: Path) -> Results:
    """Evict the shards from the page cache, so that the next load is cold. Stop after EVICT_SECONDS."""
    start, evicted, shards = time.monotonic(), 0, sorted(folder.glob("*.safetensors"))
    for shard in shards:
        if time.monotonic() - start > EVICT_SECONDS:
            break
        with shard.open("rb") as file:
            os.fsync(file.fileno())  # only clean pages can be evicted
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        evicted += 1
    return {"seconds": time.monotonic() - start, "shards": evicted, "of": len(shards)}


def filesystem(folder: Path) -> str:
    """Return the type of the folder's file system. On tmpfs no load would be cold."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return "unknown"
    holders = [mount for mount in mounts if folder.resolve().is_relative_to(mount[1])]
    return max(holders, key=lambda mount: len(mount[1]))[2] if holders else "unknown"


# ---- the table


def table(content: Results) -> str:
    """Return the results as Markdown, one column per family."""
    parts = list(content["families"].values())
    lines = [
        f"`{content['command']}`, {content['date']}, {machine_line(content)}",
        "",
        f"| | {' | '.join(part['name'] for part in parts)} |",
        f"|---|{'---|' * len(parts)}",
    ]
    for label, cell in [*LOAD_ROWS, *forward_rows(parts), *DECODE_ROWS]:
        lines.append(f"| {label} | {' | '.join(try_cell(cell, part) for part in parts)} |")
    problems = [f"- {part['name']} {sentence}" for part in parts for sentence in part["problems"]]
    return "\n".join([*lines, *(["", "Problems:", *problems] if problems else [])])


def machine_line(content: Results) -> str:
    machine = content["machine"]
    words = [f"{key} {machine.get(key)}" for key in ("torch", "cuda", "driver")]
    return f"{machine.get('device')}, {', '.join(words)}, work folder on {content['work_filesystem']}"


def try_cell(cell: Callable[[Results], str], part: Results) -> str:
    try:
        return cell(part)
    except KeyError:  # the stage did not run or did not finish
        return MISSING


def gb(value: int) -> str:
    return f"{value / 1e9:.2f} GB"


def load_cell(load: Results) -> str:
    read = "unknown" if load["disk_read"] is None else gb(load["disk_read"])
    return f"{load['seconds']:.1f} s ({read} read from disk)"


def host_cell(load: Results) -> str:
    anon = load["anon_over_largest_shard"]
    anon_text = "unknown" if anon is None else f"{gb(load['host_anon_rise'])} = {anon:.2f} x"
    peak = max(load["host_maxrss_rise"], load["host_rss_rise"] or 0)
    return f"{gb(peak)} = {load['host_over_largest_shard']:.2f} x; anonymous {anon_text}"


def forward_cell(forward: Results) -> str:
    spread = f"{forward['ms_min']:.2f} to {forward['ms_max']:.2f}"
    return f"{forward['ms']:.2f} ms ({spread}), {forward['tflops']:.0f} TFLOP/s"


def decode_cell(run: Results) -> str:
    return (
        f"{run['steps']} steps, {run['forwards']} forwards, {run['seconds']:.2f} s, "
        f"{run['ms_per_forward']:.2f} ms per forward, {run['tokens_per_second']:.1f} tokens/s"
    )


def agreement_cell(found: Results) -> str:
    return (
        f"{found['top1_equal']:.2%} of {found['positions']} positions; margin above its median: "
        f"{found['top1_equal_above_median_margin']:.2%}, "
        f"up to it: {found['top1_equal_up_to_median_margin']:.2%}"
    )


def error_cell(found: Results) -> str:
    return (
        f"{found['mean_abs_error']:.4f} mean, {found['max_abs_error']:.3f} max "
        f"(standard deviation of the logits {found['logit_std']:.2f})"
    )


def forward_rows(parts: list[Results]) -> list[Row]:
    """Return one row per batch size and window, in the order of measurement."""
    measured: list[Results] = next(
        (part["speed"]["forward"] for part in parts if "forward" in part.get("speed", {})), []
    )
    return [
        (
            f"forward, B = {row['batch']}, {row['window']} of {row['columns']} columns",
            partial(_nth_forward, i),
        )
        for i, row in enumerate(measured)
    ]


def _nth_forward(index: int, part: Results) -> str:
    return forward_cell(part["speed"]["forward"][index])


def peak_cell(run: Results) -> str:
    return gb(run["gpu_peak_above_weights"])


LOAD_ROWS: list[Row] = [
    ("parameters", lambda part: f"{part['speed']['parameters'] / 1e9:.3f} G"),
    (
        "checkpoint",
        lambda part: (
            f"{gb(part['write']['bytes'])}, {part['write']['shards']} shards, "
            f"written in {part['write']['seconds']:.1f} s"
        ),
    ),
    ("load, cold", lambda part: load_cell(part["cold"]["load"])),
    ("load, warm page cache", lambda part: load_cell(part["speed"]["load"])),
    ("peak host memory over the largest shard, cold", lambda part: host_cell(part["cold"]["load"])),
    ("the same, warm", lambda part: host_cell(part["speed"]["load"])),
    ("GPU memory after load", lambda part: gb(part["speed"]["load"]["gpu_model"])),
]
DECODE_ROWS: list[Row] = [
    ("`less`", lambda part: decode_cell(part["speed"]["decode_less"])),
    ("`less`, peak GPU memory above the weights", lambda part: peak_cell(part["speed"]["decode_less"])),
    ("`base`", lambda part: decode_cell(part["speed"]["decode_base"])),
    ("`base`, peak GPU memory above the weights", lambda part: peak_cell(part["speed"]["decode_base"])),
    ("bf16 against float32, same top-1", lambda part: agreement_cell(part["float32"]["agreement"])),
    ("bf16 against float32, logit error", lambda part: error_cell(part["float32"]["agreement"])),
    ("int8 against bf16, same top-1", lambda part: agreement_cell(part["int8"]["agreement"])),
    ("int8 against bf16, logit error", lambda part: error_cell(part["int8"]["agreement"])),
    ("int8, GPU memory after load", lambda part: gb(part["int8"]["load"]["gpu_model"])),
    ("int8, GPU memory peak of the load", lambda part: gb(part["int8"]["load"]["gpu_peak"])),
    ("int8, first of the forwards above", lambda part: forward_cell(part["int8"]["forward"][0])),
]


if __name__ == "__main__":
    main()
