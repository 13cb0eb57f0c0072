"""The benchmarks of the serving engine, in miniature."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import padding, server_blocks, server_gpu, server_loads, server_queue, serving_batching
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


@pytest.mark.slow
def test_every_load_is_measured_and_compared_with_offline_decoding(tmp_path):
    sizes = {"rows": 2, "max-clients": 1, "prompt-tokens": 8, "longest": 40, "new-tokens": 8, "steps": 5}
    words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    file = tmp_path / "loads.json"
    options = ["--small", "--device", "cpu", "--rounds", "1", "--out", str(file), *words]
    result = CliRunner().invoke(server_gpu.app, options)
    assert result.exit_code == 0, result.output
    content = json.loads(file.read_text())
    assert content["problems"] == []
    assert list(content["equal"]) == ["2", "1"]
    assert list(content["unlike"]) == ["2"]
    best = content["equal"]["2"]
    offline = content["offline"]["2"]["requests_per_second"]
    assert best["of_offline"] == pytest.approx(best["requests_per_second"] / offline)
    assert best["step_p95_ms"] >= best["step_p50_ms"] > 0
    assert best["gap_max_ms"] >= best["gap_p50_ms"] > 0
    assert list(content["http"]) == ["2", "2 streams"]
    for run in content["http"].values():
        assert run["of_offline"] == pytest.approx(run["requests_per_second"] / offline)
        assert 0 < run["first_text_p50_s"] <= run["answer_p50_s"]
    assert content["arrivals"]["burst"]["requests"] == 4
    for run in content["arrivals"].values():
        assert 0 < run["first_text_p50_s"] <= run["answer_p50_s"] <= run["answer_p95_s"]
    assert f"| equal, 2 | {best['requests_per_second']:.2f} |" in result.output


def test_no_measurement_begins_after_the_time_given(tmp_path):
    file = tmp_path / "loads.json"
    options = ["--small", "--device", "cpu", "--minutes", "0", "--max-clients", "1", "--out", str(file)]
    result = CliRunner().invoke(server_gpu.app, options)
    assert result.exit_code == 1
    assert json.loads(file.read_text())["equal"] == {}


def test_rows_of_unlike_length_are_hardly_padded():
    for ways in padding.run_padding([8, 32], requests=100).values():
        assert all(0 < run["padding_share"] < 0.15 for run in ways.values())
        assert ways["compiled"]["shapes"] < 40 < ways["plain"]["shapes"]


@pytest.mark.parametrize("how", ["wait_on_join", "http"])
def test_the_simulated_device_answers_all_clients(how, monkeypatch):
    quick = {rows: ms / 20 for rows, ms in server_queue.MILLISECONDS.items()}
    monkeypatch.setattr(server_queue, "MILLISECONDS", quick)
    found = server_queue.simulate(6, **{how: True})
    assert found["clients"] == 6
    assert 0 < found["first_text_p50_s"] <= found["answer_p50_s"]


def test_a_pause_begins_when_all_work_is_done():
    busy = [(0.0, 2.0), (1.0, 5.0), (3.0, 4.0), (6.0, 7.0), (7.0, 9.0)]
    assert list(server_loads.pauses(busy)) == [(5.0, 1.0), (7.0, 0.0)]


@pytest.mark.parametrize("family", server_blocks.FAMILIES)
def test_block_models_are_served_plain_and_compiled(tmp_path, family):
    file, sizes = tmp_path / "blocks.json", ["--rows", "1,3", "--rounds", "1", "--new-tokens", "12"]
    options = ["--family", family, "--small", "--longest", "40", *sizes, "--out", str(file)]
    result = CliRunner().invoke(server_blocks.app, options)
    assert result.exit_code == 0, result.output
    content = json.loads(file.read_text())
    assert list(content["runs"]) == ["plain, 1", "plain, 3", "compiled, 1", "compiled, 3"]
    for run in content["runs"].values():
        slowest = run.pop("slowest_ticks_ms")
        assert min(run.values()) > 0
        assert run["step_ms_p50"] <= run["step_ms_p95"] <= slowest[0]
