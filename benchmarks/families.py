"""Time SDAR-8B, LLaDA-MoE-7B-A1B and LLaDA2-mini at full size with random weights, and compute their floors.

Each family is written, loaded, decoded, compiled and timed in its own processes (families_stage.py), one
after another. A results file is rewritten after every measurement. `--table FILE` prints a recorded run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a file, from anywhere

from benchmarks.full_size import MISSING, ROOT, SHAPES, Report, command, gb, machine_line, run_stage

STAGE = Path(__file__).with_name("families_stage.py")
FAMILIES: dict[str, dict[str, Any]] = SHAPES["families"]
SIZES: dict[str, object] = {
    "shard_bytes": 4_000_000_000,
    "prompt": 128,
    "length": 256,
    "batches": [1, 8, 32],
    "new_tokens": 64,
    "steps": {"1": 48, "8": 24, "32": 12},
    "warmups": 3,
    "runs": 20,
}
TINY_SIZES: dict[str, object] = {
    "shard_bytes": 200_000,
    "prompt": 16,
    "length": 32,
    "batches": [1, 2],
    "new_tokens": 8,
    "steps": {"1": 12, "2": 12},
    "warmups": 1,
    "runs": 2,
}
Results = dict[str, Any]


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    if args.table is not None:
        print(table(json.loads(args.table.read_text(encoding="utf-8"))))
        return
    args.work.mkdir(parents=True, exist_ok=True)
    sizes = TINY_SIZES if args.tiny else SIZES
    report = Report(args, sizes if args.batches is None else sizes | {"batches": args.batches}, "families")
    joined = argparse.Namespace(**vars(args) | {"families": [",".join(args.families)]})
    line = command(joined, "families") + (" --in-memory" if args.in_memory else "")
    rows = "" if args.batches is None else f" --batches {','.join(map(str, args.batches))}"
    report.content["command"] = line + rows
    for name in args.families:
        folder = Path(tempfile.mkdtemp(prefix="families_", dir=args.work))
        try:
            run_family(report, name, folder, args)
        finally:
            shutil.rmtree(folder)
            report.write()
    print(f"\n{table(report.content)}", flush=True)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=lambda names: names.split(","), default=list(FAMILIES))
    parser.add_argument("--tiny", action="store_true", help="miniature shapes, for the CPU")
    parser.add_argument("--device", default=None, help="cuda, or with --tiny cpu")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()), help="disk with 40 GB of room"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results", help="results file or folder"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="time limit; later stages are left out")
    parser.add_argument(
        "--in-memory",
        action="store_true",
        help="make the weights on the device; time compiled forwards and steps alone",
    )
    parser.add_argument(
        "--batches",
        type=lambda numbers: [int(number) for number in numbers.split(",")],
        help="only these numbers of rows: A,B,...",
    )
    parser.add_argument("--table", type=Path, help="print the tables of a results file, and measure nothing")
    args = parser.parse_args(argv)
    known: Any = (TINY_SIZES if args.tiny else SIZES)["batches"]
    if not set(args.batches or ()) <= set(known):
        parser.error(f"--batches must be some of {','.join(map(str, known))}")
    unknown = [name for name in args.families if name not in FAMILIES]
    if unknown:
        parser.error(f"--families must be some of {','.join(FAMILIES)}; got {','.join(unknown)}")
    args.device = args.device or ("cpu" if args.tiny else "cuda")
    return args


def run_family(report: Report, name: str, folder: Path, args: argparse.Namespace) -> None:
    """Write a checkpoint, unless the weights are made in memory, and measure it in another process."""
    known = FAMILIES[name]
    config = known["published"] | (known["tiny"] if args.tiny else {})
    family: Results = {"name": known["name"], "config": config, "problems": [], "stage_seconds": {}}
    report.content["families"][name] = family
    sizes = report.content["sizes"]
    job = {"folder": str(folder / "checkpoint"), "device": args.device, "config": config}
    if not args.in_memory:
        unused = {"steps": 1, "base_steps": 1, "canvases": 1}  # the stage that writes does not use these
        written = {key: value for key, value in sizes.items() if key != "new_tokens"} | unused
        write = job | written | {"stage": "write", "result": str(folder / "w.json")}
        family |= run_stage(report, family, write)
        report.write()
        if "write" not in family:
            return
    # next to the results file, so that the results survive if this process is killed too
    result = (
        report.out.parent if report.out.suffix == ".json" else report.out
    ) / f"families_{name}.part.json"
    result.parent.mkdir(parents=True, exist_ok=True)
    part = {
        "stage": "measure",
        "in_memory": args.in_memory,
        "result": str(result),
        "preset": known["preset"],
        "settings": known["settings"],
    }
    seconds = max(1.0, report.seconds_left() - 5)
    family |= run_stage(report, family, job | sizes | part | {"seconds": seconds}, script=STAGE)
    result.unlink(missing_ok=True)


# ---- the tables


def table(content: Results) -> str:
    """Return the results as Markdown."""
    lines = [f"`{content['command']}`, {content['date']}, {machine_line(content)}", ""]
    lines += ["| | parameters | checkpoint | load, warm page cache | host memory, anonymous | GPU memory |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [_load_line(family) for family in content["families"].values()]
    lines += [
        "",
        "| decoding, not compiled | sampler | tokens | forwards | seconds |",
        "|---|---|---|---|---|",
    ]
    lines += [line for family in content["families"].values() for line in _decode_lines(family)]
    header = (
        "| compiled | B | forward | step | bytes floor | sums floor | forward, else step, / larger floor "
    )
    lines += ["", f"{header}| transformers' Qwen3 layers, eager, causal |", "|---" * 8 + "|"]
    lines += [line for family in content["families"].values() for line in _speed_lines(family)]
    lines += ["", *_other_lines(content)]
    problems = [
        f"- {each['name']} {said}" for each in content["families"].values() for said in each["problems"]
    ]
    return "\n".join([*lines, *(["", "Problems:", *problems] if problems else [])])


def _load_line(family: Results) -> str:
    load, written = family.get("load"), family.get("write")
    if load is None or written is None:
        count = family.get("parameters")
        parameters = MISSING if count is None else f"{count / 1e9:.2f} G"
        return f"| {family['name']} | {parameters} |" + f" {MISSING} |" * 4
    cells = [f"{family['parameters'] / 1e9:.2f} G", gb(written["bytes"]), f"{load['seconds']:.1f} s"]
    anon = load["host_anon_rise"]
    cells += [MISSING if anon is None else gb(anon), gb(load["gpu_peak"])]
    return f"| {family['name']} | {' | '.join(cells)} |"


def _decode_lines(family: Results) -> list[str]:
    runs, name = family.get("decode", {}).values(), family["name"]
    return [
        f"| {name} | `{run['sampler']}` | {run['tokens']} | {run['forwards']} | {run['seconds']:.2f} |"
        for run in runs
    ]


def _speed_lines(family: Results) -> list[str]:
    lines = []
    for where, words in {"none": "whole canvas", "append": "inside a block"}.items():
        for batch, floor in family.get("floors", {}).get(where, {}).items():
            found = family.get("compiled", {})
            forward, step = (found.get(f"{what}_{where}_b{batch}") for what in ("forward", "step"))
            if where == "none":  # inside blocks, the forwards of a run differ in length
                forward = forward or (step and step["forward_ms"])
            timed = forward or (step and step["ms"])
            larger = max(floor["bytes_ms"], floor["sums_ms"])
            theirs = family.get("transformers", {}).get(f"b{batch}") if where == "append" else None
            label = f"{family['name']}, {words}, {floor['columns']} columns"
            cells = [
                *(MISSING if forward is None else f"{forward:.2f}",),
                *(MISSING if step is None or step["ms"] is None else f"{step['ms']:.2f}",),
                *(f"{floor['bytes_ms']:.2f}", f"{floor['sums_ms']:.2f}"),
                *(MISSING if timed is None else f"{timed / larger:.2f} x",),
                *(MISSING if theirs is None else f"{theirs:.2f}",),
            ]
            lines.append(f"| {label} | {batch} | {' | '.join(cells)} |")
    return lines


def _other_lines(content: Results) -> list[str]:
    """Return the uncompiled forwards and the check of the tokens."""
    lines = ["| milliseconds | not compiled |", "|---|---|"]
    for family in content["families"].values():
        for key, ms in family.get("eager", {}).items():
            lines.append(f"| {family['name']} {key} | {ms:.2f} |")
    shares = {
        f"{family['name']}, {where}": share
        for family in content["families"].values()
        for where, share in family.get("same_tokens", {}).items()
    }
    words = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return [*lines, "", f"Tokens of the first steps that compiled and plain runs share: {words or MISSING}"]


if __name__ == "__main__":
    main()
