"""Check that `unmask eval` and `unmask serve`, compiled, write the same texts as the Python path.

    python -m benchmarks.same_texts --device cuda --limit 40 --out same_texts.json

All decode the same prompts with the same compiled model in float32, where rounding changes no token. The
server's engine is checked too, and without uvicorn it stands in for the server.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from urllib.request import Request, urlopen

import torch
import typer

from unmask.bench.report import command_line
from unmask.bench.timing import machine
from unmask.evals import get_task
from unmask.evals.task import Sample
from unmask.fast.load import load_model
from unmask.samplers import make_sampler
from unmask.serving import Engine, Limits
from unmask.text.config import GenerationConfig
from unmask.text.generate import generate

PROGRAM = "python -m benchmarks.same_texts"
TASK, SAMPLER, DTYPE = "mini-gsm8k", "less", "float32"
START_SECONDS = 300
AT_A_TIME = 8
Texts = dict[str, str]  # sample id -> text


def python_texts(options: Mapping[str, str], samples: list[Sample]) -> Texts:
    """Decode through `unmask.generate`."""
    model = load_model(options["model"], device=options["device"], dtype=DTYPE, compile=True)
    config = GenerationConfig(max_new_tokens=get_task(TASK).max_new_tokens)
    prompts = [sample.prompt for sample in samples]
    answers = generate(model, prompts, make_sampler(SAMPLER), config, batch_size=AT_A_TIME)
    return {sample.id: answer.text for sample, answer in zip(samples, answers, strict=True)}


def eval_texts(flags: list[str], samples: list[Sample]) -> Texts:
    """Decode through `unmask eval`, and read its records."""
    with tempfile.TemporaryDirectory() as folder:
        _unmask("eval", TASK, *flags, "--limit", str(len(samples)), "--out", folder)
        [records] = Path(folder).rglob("records.jsonl")
        lines = map(json.loads, records.read_text(encoding="utf-8").splitlines())
        return {line["id"]: line["text"] for line in lines}


def serve_texts(flags: list[str], samples: list[Sample]) -> Texts:
    """Decode through `unmask serve`, several requests at a time."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ("serve", *flags, "--port", str(port), "--batched", "--max-batch", str(AT_A_TIME))
    server = subprocess.Popen([sys.executable, "-m", "unmask", *arguments])
    url = f"http://127.0.0.1:{port}"

    def answer(sample: Sample) -> str:
        body = {"messages": sample.prompt, "max_tokens": get_task(TASK).max_new_tokens}
        text: str = _post(f"{url}/v1/chat/completions", body)["choices"][0]["message"]["content"]
        return text

    try:
        _wait_for(f"{url}/healthz", server)
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            return dict(zip((sample.id for sample in samples), pool.map(answer, samples), strict=True))
    finally:
        server.terminate()
        server.wait()


def engine_texts(options: Mapping[str, str], samples: list[Sample]) -> Texts:
    """Decode through the server's engine, several requests at a time."""
    model = load_model(options["model"], device=options["device"], dtype=DTYPE, compile=True)
    config = GenerationConfig(max_new_tokens=get_task(TASK).max_new_tokens)
    with Engine(model, Limits(max_rows=AT_A_TIME), exact=False) as engine:
        jobs = {sample.id: engine.submit(sample.prompt, make_sampler(SAMPLER), config) for sample in samples}
        answers = {name: job.result() for name, job in jobs.items()}
    return {name: answer.text for name, answer in answers.items()}


def _unmask(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "unmask", *arguments], check=True)


def _post(url: str, body: object) -> Any:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=120) as reply:
        return json.load(reply)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            urlopen(url, timeout=5).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.5)


def main(
    model: Annotated[str, typer.Option("--model", "-m")] = "mini-llada",
    device: str = "cpu",
    limit: int = 40,
    out: Path | None = None,
) -> None:
    """Compare the texts of the commands with those of the Python path."""
    options = {"model": model, "device": device, "limit": limit}
    samples = list(get_task(TASK).load(None))[:limit]
    flags = ["-m", model, "--device", device, "--dtype", DTYPE, "--compile", "-s", SAMPLER]
    named: dict[str, str] = {"model": model, "device": device}
    expected = python_texts(named, samples)
    found = {"eval": eval_texts(flags, samples), "engine": engine_texts(named, samples)}
    if find_spec("uvicorn") is not None:
        found["serve"] = serve_texts(flags, samples)
    equal = {name: sum(texts[key] == expected[key] for key in expected) for name, texts in found.items()}
    line = {
        "command": command_line(PROGRAM, options.items(), small=False),
        "machine": machine(torch.device(device)),
        "texts": len(expected),
        "equal": equal,
    }
    print(json.dumps(line))
    if out is not None:
        out.write_text(json.dumps(line, indent=2) + "\n", encoding="utf-8")
    if any(count < len(expected) for count in equal.values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
