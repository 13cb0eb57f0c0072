"""--compile: the same texts, a line that says what was compiled, and a shape per batch size of a server."""

from __future__ import annotations

import json
import logging
import re
from functools import partial

import pytest

from unmask.evals.records import Record, read_lines
from unmask.experiments import get_experiment
from unmask.experiments.lab import Lab, LabSettings
from unmask.fast import load as loading
from unmask.fast.compile import compile
from unmask.fast.load import is_compiled

LINE = re.compile(r"compiled \S+ \(3 layers, float32, CPU\): \d+\.\d s")
COMMANDS = [
    ("generate", "hello", "-n", 8),
    ("generate", "hello", "and more", "-n", 8, "--cache", "prefix", "--refresh-every", 2),
    ("infill", "the [[gap 4]] and [[gap 1-3]]."),
    ("compare", "hello", "-n", 8, "--samplers", "base,less"),
]


@pytest.fixture
def quick(monkeypatch):
    """Leave the layers uncompiled: torch.compile takes many seconds on a CPU."""
    monkeypatch.setattr(loading, "compile_model", partial(compile, layers=False))


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(map(str, arguments)))
def test_a_compiled_model_writes_the_same_text_and_says_what_was_compiled(call, quick, llada, arguments):
    command, *rest = arguments
    plain = call(command, "-m", llada, *rest, "--json")
    compiled = call(command, "-m", llada, *rest, "--json", "--compile")
    assert (plain.exit_code, compiled.exit_code) == (0, 0)
    texts = [[json.loads(line)["text"] for line in one.stdout.splitlines()] for one in (plain, compiled)]
    assert texts[0] == texts[1]
    assert LINE.fullmatch(compiled.stderr.strip())
    assert plain.stderr == ""


def test_a_chat_compiles_before_the_first_question(call, quick, llada):
    plain = call("chat", "-m", llada, "-n", 8, text="hello\n")
    compiled = call("chat", "-m", llada, "-n", 8, "--compile", text="hello\n")
    assert compiled.stdout == plain.stdout
    assert LINE.fullmatch(compiled.stderr.splitlines()[0])


def test_an_evaluation_that_is_compiled_is_another_run(call, quick, llada, tmp_path):
    few = ("eval", "mini-gsm8k", "-m", llada, "--limit", 3, "-n", 8, "--batch-size", 2)
    plain = call(*few, "--out", tmp_path / "plain")
    compiled = call(*few, "--out", tmp_path / "compiled", "--compile", "--cache", "dual")
    assert (plain.exit_code, compiled.exit_code) == (0, 0)
    assert LINE.fullmatch(compiled.stderr.splitlines()[0])
    run = json.loads((tmp_path / "compiled" / "mini-gsm8k" / "run.json").read_text())["configuration"]
    assert run["model"]["compile"] is True
    assert (run["decoding"]["cache"], run["decoding"]["refresh_every"]) == ("dual", None)
    assert len(read_lines(tmp_path / "compiled" / "mini-gsm8k" / "records.jsonl", Record)) == 3
    refused = call(*few, "--out", tmp_path / "plain", "--compile")
    assert refused.exit_code == 2
    assert "model.compile = False, but this one has True" in refused.stderr


def test_reproduce_compiles_and_caches_its_runs(call, quick, llada, tmp_path):
    pytest.importorskip("matplotlib")
    few = ("-m", llada, "--tasks", "mini-gsm8k", "--limit", 1, "--batch-size", 1, "--out", tmp_path)
    flags = ("--compile", "--cache", "prefix", "--refresh-every", 2)
    result = call("reproduce", "budget", *few, *flags)
    assert result.exit_code == 0, result.stderr
    assert sum(LINE.fullmatch(line) is not None for line in result.stderr.splitlines()) == 1
    settings = LabSettings(
        models=(llada,),
        out=tmp_path,
        tasks=("mini-gsm8k",),
        limit=1,
        compile=True,
        cache="prefix",
        refresh_every=2,
        records_only=True,
    )
    lab = Lab(settings)
    for outcome in lab.results(get_experiment("budget").runs(lab).values()).values():
        decoding = outcome.configuration["decoding"]
        assert outcome.configuration["model"]["compile"] is True
        assert (decoding["cache"], decoding["refresh_every"]) == ("prefix", 2)
    again = call("reproduce", "budget", *few, *flags, "--records-only")
    assert again.exit_code == 0, again.stderr
    assert call("reproduce", "budget", *few, "--records-only").exit_code == 2


@pytest.fixture
def no_server(monkeypatch):
    """Start no server; collect the models that would be served, and put the loggers back."""
    from unmask.serving import server

    served = []
    monkeypatch.setattr(server, "serve", lambda model, *_, **__: served.append(model))
    loggers = [logging.getLogger(name) for name in ("unmask", "uvicorn")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield served
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_a_server_compiles_before_it_takes_requests(call, quick, no_server, llada):
    flags = ("--port", 0, "--max-batch", 3, "--max-new-tokens", 16)
    result = call("serve", llada, *flags, "--batched", "--compile", "--threads", 1)
    assert result.exit_code == 0, result.stderr
    [line] = result.stderr.splitlines()
    assert LINE.fullmatch(json.loads(line)["event"])
    assert [is_compiled(model) for model in no_server] == [True]


def test_a_server_without_the_flag_compiles_nothing(call, no_server, llada):
    result = call("serve", llada, "--port", 0, "--threads", 1)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [is_compiled(model) for model in no_server] == [False]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_compiled_layers_write_the_same_text_on_a_cpu(call, llada):
    arguments = ("generate", "-m", llada, "hello", "-n", 8, "--json")
    plain, compiled = call(*arguments), call(*arguments, "--compile")
    assert LINE.search(compiled.stderr)
    assert json.loads(compiled.stdout)["text"] == json.loads(plain.stdout)["text"]
