"""Signals of any name, and tokens that a step takes back, from a recording to its page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.toy import Toy, trail
from tests.trace.revoking import Fickle, Tidy, revoking_run
from tests.trace.test_trace import write
from unmask.decoding.result import collect
from unmask.trace import Trace, change, count, frames, plain, read_trace, replay
from unmask.trace.html import to_html


@pytest.fixture
def revoked(tmp_path: Path) -> Trace:
    canvas, steps = revoking_run()
    return read_trace(write(tmp_path / "run.jsonl", canvas, steps, sampler="tidy", fields=plain(Tidy())))


def test_a_sampler_may_name_any_signal(tmp_path):
    canvas, steps = trail(Toy(), Tidy(), [(2, 3), (4,)], length=5)
    read = read_trace(write(tmp_path / "run.jsonl", canvas, steps, fields=plain(Tidy())))
    assert list(frames(read)) == [step.tokens.tolist() for step in steps]
    [first, *_] = read.changes[0].held[0]
    assert list(first.signals) == ["neatness", "fuss", "agrees", "size"]
    assert isinstance(first.signals["agrees"], bool)
    assert isinstance(first.signals["size"], int)


def test_a_replay_follows_revoked_and_rewritten_tokens(revoked):
    _, steps = revoking_run()
    assert list(frames(revoked)) == [step.tokens.tolist() for step in steps]
    assert replay(revoked, 2)[0][4] == revoked.header.mask_id


def test_a_run_of_the_loop_that_revokes_is_replayed_and_counted(tmp_path):
    canvas, steps = trail(Toy(), Fickle(), [(2, 3), (4,)], length=5, steps=9)
    read = read_trace(write(tmp_path / "run.jsonl", canvas, steps))
    assert list(frames(read)) == [step.tokens.tolist() for step in steps]
    counts = [count(read, row) for row in range(2)]
    assert counts == collect(steps, canvas, (1,)).per_row()
    assert [row.revoked for row in counts] == [2, 2]


def test_revoked_and_rewritten_columns_are_recorded_apart(revoked):
    assert [step.revoked for step in revoked.changes] == [[[]], [[4]], [[]], [[]]]
    assert [[place.column for place in step.rewritten[0]] for step in revoked.changes] == [[], [], [2], []]
    [place] = revoked.changes[2].rewritten[0]
    assert place.token == 4
    again = next(place for place in revoked.changes[1].held[0] if place.column == 4)
    assert again.signals == {"neatness": 0.9, "fuss": 0.3, "agrees": False, "size": 9}


def test_revoked_and_rewritten_tokens_are_counted(revoked):
    counts = count(revoked, 0)
    assert counts.revoked == 2
    assert (counts.steps, counts.accepted, counts.forced) == (4, 4, 1)
    assert counts.forced_share == 0.25


def test_the_page_holds_every_signal_and_revocation(revoked):
    _, _, rest = to_html(revoked).partition('id="traces">')
    [content] = json.loads(rest.partition("</script>")[0])
    assert content["changes"][1]["revoked"] == [[4]]
    assert content["changes"][2]["rewritten"][0][0][:2] == [2, 4]
    assert content["changes"][0]["held"][0][0][3]["neatness"] == 0.4


def test_a_step_without_signals_is_recorded():
    canvas, [step, *_] = revoking_run()
    bare = replace(step, decision=replace(step.decision, signals={}))
    assert all(place.signals == {} for place in change(bare, canvas.mask_id).positions)


def test_signals_in_half_precision_are_recorded():
    canvas, steps = revoking_run()
    steps[0].decision.signals["neatness"] = torch.full((1, 4), 0.5, dtype=torch.bfloat16)
    assert {place.signals["neatness"] for place in change(steps[0], canvas.mask_id).positions} == {0.5}
