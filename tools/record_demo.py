"""Record the run that the page plays before the first prompt: python tools/record_demo.py"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typer.testing import CliRunner

import unmask
from unmask.cli.app import app
from unmask.trace import count, read_trace

WEB = Path(unmask.__file__).parent / "trace" / "web"
MODEL, LENGTH, SAMPLERS = "mini-llada", 32, ("first-mask", "base")


def main() -> None:
    """Write demo.json: the first example of the page under two samplers."""
    prompt = json.loads((WEB / "examples.json").read_text(encoding="utf-8"))[0]["prompt"]
    demo = {"prompt": prompt, "runs": [record(prompt, name) for name in SAMPLERS]}
    text = json.dumps(demo, ensure_ascii=False, separators=(",", ":"))
    (WEB / "demo.json").write_text(text + "\n", encoding="utf-8")


def record(prompt: str, sampler: str) -> dict[str, Any]:
    """Decode a prompt; return the text ("" for an end token), the step and the cause of every position."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "run.jsonl"
        options = ["generate", "-m", MODEL, prompt, "-n", str(LENGTH), "-s", sampler, "--trace", str(file)]
        CliRunner().invoke(app, options, catch_exceptions=False)
        trace = read_trace(file)
    positions: dict[int, tuple[str, int, str]] = {}
    for change in trace.changes:
        by = "leftover" if change.leftover else "forced" if change.forced[0] else "rule"
        for position in change.commit[0]:
            text = trace.texts[str(position.token)]
            positions[position.column] = ("" if text.startswith("<|") else text, change.step, by)
    ordered = [list(positions[column]) for column in sorted(positions)]
    return {"sampler": sampler, "forwards": count(trace, 0).forwards, "positions": ordered}


if __name__ == "__main__":
    main()
