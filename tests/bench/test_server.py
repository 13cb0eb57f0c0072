"""The benchmarks of the serving engine, in miniature."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import serving_batching
from benchmarks.server import NumberTokenizer, app
from unmask.models import load

SIZES = ["--rows", "1,2", "--prompt-tokens", "8", "--new-tokens", "16", "--steps", "4", "--rounds", "1"]


@pytest.mark.parametrize("model", [["--model", "mini-llada"], ["--model", "dream", "--small"]])
def test_every_number_of_rows_is_timed_and_written(tmp_path, model):
    file = tmp_path / "server.json"
    result = CliRunner().invoke(app, [*model, *SIZES, "--device", "cpu", "--out", str(file)])
    assert result.exit_code == 0, result.output
    content = json.loads(file.read_text())
    assert content["problems"] == []
    assert content["command"].startswith(f"python -m benchmarks.server --model {model[1]} --device cpu")
    assert [run["rows"] for run in content["runs"].values()] == [1, 2]
    for run in content["runs"].values():
        assert run["forwards_per_step"] == 1  # all rows share one forward
        assert min(run["requests_per_second"], run["engine_step_ms"], run["forward_ms"]) > 0
        assert run["above_forward"] == pytest.approx(run["engine_step_ms"] / run["forward_ms"] - 1)
        assert f"| {run['rows']} | {run['requests_per_second']:.2f} |" in result.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rows", "1,x"], "--rows must be numbers such as 1,8,32; got '1,x'"),
        (["--rows", ""], "--rows must be numbers such as 1,8,32; got ''"),
        (["--rows", "0"], "--rows must be a whole number >= 1, got 0"),
        (["--steps", "300"], "--steps must be at most --new-tokens, 256; got 300"),
        (["--dtype", "int8"], "--dtype must be auto, float32 or bfloat16; got 'int8'"),
    ],
)
def test_wrong_options_are_refused(words, sentence):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())


def test_more_tokens_only_lengthen_the_text_of_numbers():
    tokenizer = NumberTokenizer()
    assert tokenizer.decode([7, 42, 9]).startswith(tokenizer.decode([7, 42]))
    assert tokenizer.encode(tokenizer.decode([7, 42, 9])) == [7, 42, 9]


@pytest.mark.parametrize("way", serving_batching.WAYS)
def test_every_way_of_batching_answers_all_arrivals(way):
    plan = [serving_batching.Arrival(0.0, "a", 16), serving_batching.Arrival(0.01, "b c", 32)]
    done = serving_batching.measure(serving_batching.WAYS[way], load("mini-llada", device="cpu"), plan, 2)
    assert all(seconds > 0 for seconds in done.seconds)
    assert serving_batching.report([done])["requests_per_second"] > 0
