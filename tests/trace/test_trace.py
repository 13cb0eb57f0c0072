"""Traces: a recorded run comes back step by step, even if its writer was killed."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from math import inf
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.toy import Toy, trail
from unmask import LESS, SAMPLERS, Canvas, Prophet, make_sampler
from unmask.bench.every_sampler import kinds
from unmask.decoding.result import collect
from unmask.trace import (
    Header,
    Trace,
    change,
    count,
    frames,
    plain,
    read_trace,
    recording,
    replay,
)
from unmask.trace.html import to_html
from unmask.types import Step

PROMPTS = ((2, 3, 4), (5,), (6, 7))


def header_of(canvas: Canvas, **changes) -> Header:
    rows = canvas.tokens.tolist()
    settings = {
        "version": "1.2.3",
        "sampler": "less",
        "fields": plain(LESS()),
        "model": "toy",
        "seeds": [0] * len(rows),
        "start": canvas.start,
        "padding": [0] * len(rows),
        "mask_id": canvas.mask_id,
        "blocks": [[canvas.start, len(rows[0]), 9]],
        "blockwise": False,
        "canvas": rows,
    }
    return Header(**(settings | changes))


def write(path: Path, canvas: Canvas, steps: list[Step], **changes) -> Path:
    with recording(path, header_of(canvas, **changes)) as record:
        for step in steps:
            record(step)
    return path


@pytest.fixture(scope="module")
def run() -> tuple[Canvas, list[Step]]:
    return trail(Toy(), make_sampler("less"), PROMPTS, length=12, block_length=4)


@pytest.fixture
def written(run, tmp_path) -> Path:
    return write(tmp_path / "run.jsonl", *run)


@pytest.mark.parametrize("block_length", [None, 5])
@pytest.mark.parametrize("name", kinds())
def test_a_replay_gives_the_tokens_of_every_step(name, block_length, tmp_path):
    canvas, steps = trail(
        Toy(drift=3.0), make_sampler(name), PROMPTS, length=12, steps=7, block_length=block_length
    )
    read = read_trace(write(tmp_path / "run.jsonl", canvas, steps))
    assert list(frames(read)) == [step.tokens.tolist() for step in steps]
    assert read.header == header_of(canvas)


@given(
    name=st.sampled_from(sorted(SAMPLERS)),
    seed=st.integers(0, 999),
    length=st.integers(1, 9),
    prompts=st.lists(st.lists(st.integers(2, 11), min_size=1, max_size=4), min_size=1, max_size=3),
    drift=st.floats(0, 4),
    compressed=st.booleans(),
)
def test_any_run_comes_back_exactly(tmp_path_factory, name, seed, length, prompts, drift, compressed):
    path = tmp_path_factory.mktemp("trace") / ("run.jsonl.gz" if compressed else "run.jsonl")
    canvas, steps = trail(Toy(seed=seed, drift=drift), make_sampler(name), prompts, length=length)
    read = read_trace(write(path, canvas, steps))
    assert read.changes == tuple(change(step, canvas.mask_id) for step in steps)
    for taken, step in enumerate(steps, start=1):
        assert replay(read, taken) == step.tokens.tolist()
    assert replay(read, 0) == canvas.tokens.tolist()


@pytest.mark.parametrize("name", ["base", "less", "less-paper", "less-released", "klass", "prophet"])
@pytest.mark.parametrize("steps", [5, 12])
def test_the_counts_of_a_trace_are_those_of_the_result(name, steps):
    canvas, taken = trail(Toy(drift=3.0), make_sampler(name), PROMPTS, length=12, steps=steps)
    result = collect(taken, canvas, (1,))
    trace = Trace(header_of(canvas), tuple(change(step, canvas.mask_id) for step in taken))
    assert [count(trace, row) for row in range(len(PROMPTS))] == result.per_row()


def test_every_recorded_position_holds_the_signals_of_the_sampler_by_name(run):
    canvas, steps = run
    for step in steps:
        recorded = change(step, canvas.mask_id)
        for rows in (recorded.commit, recorded.held):
            for row, position in ((row, position) for row, found in enumerate(rows) for position in found):
                offset = position.column - step.window.start
                assert position.token == step.drawn[row, offset]
                assert position.eligible == step.decision.eligible[row, offset]
                assert set(position.signals) == set(step.decision.signals)
                for name, values in step.decision.signals.items():
                    value = float(values[row, offset])
                    if value < inf:
                        assert position.signals[name] == pytest.approx(value, abs=1e-6)
                    else:
                        assert position.signals[name] is None


def test_a_value_that_is_not_finite_is_null(run, written):
    _, steps = run
    assert torch.isinf(steps[0].decision.signals["jsd"]).all()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in written.read_text().splitlines()]
    found = [signals for row in lines[1]["commit"] for *_, signals in row]
    assert found
    assert all(signals["jsd"] is None for signals in found)


def test_the_header_holds_the_fields_of_the_sampler_as_json():
    assert plain(make_sampler("less-no-jsd"))["max_jsd"] == str(inf)
    assert plain(Prophet())["base"]["order"] == "confidence"
    assert plain(Prophet())["base"]["demoted_ids"] == []


def test_tokens_are_named_once(run, tmp_path):
    canvas, steps = run
    path = tmp_path / "run.jsonl"
    with recording(path, header_of(canvas), text=lambda token: f"t{token}") as record:
        for step in steps:
            record(step)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    named = [token for line in lines[:-1] for token in line["texts"]]
    assert len(named) == len(set(named))
    final = {token for row in steps[-1].tokens.tolist() for token in row}
    assert final <= {int(token) for token in read_trace(path).texts}


def test_a_half_written_last_line_is_dropped_wherever_it_breaks_off(written):
    whole = read_trace(written)
    data = b"".join(written.read_bytes().splitlines(keepends=True)[:-1])  # without the end
    last = data.rindex(b"\n", 0, -1) + 1
    for size in range(last + 1, len(data) - 1):
        written.write_bytes(data[:size])
        assert read_trace(written).changes == whole.changes[:-1]
    written.write_bytes(data[:-1])
    assert read_trace(written).changes == whole.changes  # only the end of the line is missing


def test_only_a_trace_with_its_end_is_complete(written):
    assert read_trace(written).complete
    data = written.read_bytes()
    for size in range(data.index(b"\n") + 1, len(data) - 1):
        written.write_bytes(data[:size])
        assert not read_trace(written).complete


def test_a_run_that_fails_leaves_a_trace_without_an_end(run, tmp_path):
    canvas, steps = run
    file = tmp_path / "run.jsonl"
    with suppress(RuntimeError), recording(file, header_of(canvas)) as record:
        record(steps[0])
        raise RuntimeError
    assert len(read_trace(file).changes) == 1
    assert not read_trace(file).complete


def test_a_writer_that_fails_is_reported_once_and_the_run_goes_on(run):
    canvas, steps = run
    errors: list[OSError] = []
    with recording("/dev/full", header_of(canvas), failed=errors.append) as record:
        for step in steps:
            record(step)
    assert [error.filename for error in errors] == ["/dev/full"]
    with pytest.raises(OSError, match="/dev/full"):
        write(Path("/dev/full"), canvas, steps)


def test_a_killed_compressed_run_keeps_what_it_wrote(run, tmp_path):
    canvas, steps = run
    path = tmp_path / "run.jsonl.gz"
    with recording(path, header_of(canvas)) as record:
        for step in steps:
            record(step)
        flushed = path.read_bytes()  # the end of the file is not written yet
    whole = read_trace(path)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(flushed)
    assert read_trace(cut).changes == whole.changes
    for size in range(len(flushed) - 40, len(flushed), 7):
        cut.write_bytes(flushed[:size])
        read = read_trace(cut)
        assert read.changes == whole.changes[: len(read.changes)]
        assert len(read.changes) >= len(whole.changes) - 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds no trace"),
        (b'{"version": "0', "holds no trace"),
        (b"hello\n", "line 1 is not valid JSON"),
        (b"\xff\xfe\x00\n", "line 1 is not valid JSON"),
        (b"{}\n", "line 1 is not a line of a trace"),
        (b"[1]\n", "line 1 is not a line of a trace"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_a_sentence(content, sentence, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        read_trace(path)


def test_a_broken_line_in_the_middle_is_named(written):
    lines = written.read_bytes().splitlines(keepends=True)
    written.write_bytes(lines[0] + b'{"step": 1, \n' + b"".join(lines[2:]))
    with pytest.raises(ValueError, match="line 2 is not valid JSON"):
        read_trace(written)


@pytest.mark.parametrize(
    "changes",
    [
        {"commit": [[[99, 1, True, {}]], [], []]},
        {"commit": [[[4, 1, True, 0.5]], [], []]},
        {"commit": [[]]},
        {"held": []},
        {"forced": [True]},
        {"commit": [[5], [], []]},
        {"revoked": [[99], [], []]},
        {"revoked": [["x"], [], []]},
        {"rewritten": [[]]},
        {"guesses": [0]},
    ],
)
def test_a_line_that_does_not_fit_its_header_is_refused(changes, written):
    lines = written.read_text().splitlines(keepends=True)
    line = json.dumps(json.loads(lines[1]) | changes) + "\n"
    written.write_text(lines[0] + line)
    with pytest.raises(ValueError, match="line 2"):
        read_trace(written)


def test_another_format_and_a_wrong_suffix_are_named(run, tmp_path):
    canvas, steps = run
    for other in (1, 2, 7):
        with pytest.raises(ValueError, match=f"format {other}"):
            read_trace(write(tmp_path / "new.jsonl", canvas, steps, format=other))
    plain_file = write(tmp_path / "run.jsonl", canvas, steps)
    with pytest.raises(ValueError, match="gzip"):
        read_trace(plain_file.rename(tmp_path / "run.jsonl.gz"))
    compressed = write(tmp_path / "run.gz", canvas, steps)
    with pytest.raises(ValueError, match="not valid JSON"):
        read_trace(compressed.rename(tmp_path / "run.jsonl"))


def test_a_compressed_trace_holds_the_same_lines(run, written, tmp_path):
    compressed = write(tmp_path / "run.jsonl.gz", *run)
    assert gzip.decompress(compressed.read_bytes()) == written.read_bytes()


def test_the_page_needs_nothing_from_outside_and_holds_the_whole_trace(run, tmp_path):
    canvas, steps = run
    path = tmp_path / "run.jsonl"
    with recording(path, header_of(canvas), text=lambda token: "</script><b>") as record:
        for step in steps:
            record(step)
    page = to_html(read_trace(path), read_trace(path))
    assert "</script><b>" not in page
    assert page.count("</script>") == 2
    for outside in ("src=", "href=", "@import", "url(", "fetch(", "import ", "innerHTML"):
        assert outside not in page
    _, _, rest = page.partition('id="traces">')
    first, second = json.loads(rest.partition("</script>")[0])
    assert first == second
    assert len(first["changes"]) == len(steps)
    assert first["header"]["canvas"] == canvas.tokens.tolist()


def test_a_step_records_every_mask_that_it_left(run):
    canvas, steps = run
    for step in steps:
        for row, held in enumerate(change(step, canvas.mask_id).held):
            left = (step.tokens[row, step.window] == canvas.mask_id) & step.running[row]
            assert [place.column - step.window.start for place in held] == left.nonzero()[:, 0].tolist()


def test_a_run_without_a_step_leaves_a_complete_trace(run, tmp_path):
    canvas, _ = run
    read = read_trace(write(tmp_path / "run.jsonl", canvas, []))
    assert read.complete
    assert replay(read) == canvas.tokens.tolist()


def test_a_run_that_is_refused_leaves_an_older_trace_alone(run, written):
    canvas, _ = run
    before = written.read_bytes()
    with suppress(ValueError), recording(written, header_of(canvas)):
        raise ValueError
    assert written.read_bytes() == before


def test_an_infilled_canvas_is_replayed_too(tmp_path):
    canvas, steps = trail(Toy(), make_sampler("less"), [(2, 3)], length=6, pins={2: 5, 3: 7})
    read = read_trace(write(tmp_path / "run.jsonl", canvas, steps))
    assert replay(read) == steps[-1].tokens.tolist()
