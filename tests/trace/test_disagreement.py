"""Where two traces part."""

from __future__ import annotations

import pytest

from tests.toy import Toy, trail
from tests.trace.test_trace import PROMPTS, write
from unmask import make_sampler
from unmask.trace import Trace, differences, read_trace, replay, written


def traced(path, sampler: str, steps: int = 7) -> Trace:
    return read_trace(
        write(path, *trail(Toy(drift=3.0), make_sampler(sampler), PROMPTS, length=12, steps=steps))
    )


@pytest.mark.parametrize("name", ["less", "wino", "first-mask-revoke"])
def test_the_tokens_that_a_run_wrote_are_those_of_its_last_canvas(name, tmp_path):
    read = traced(tmp_path / "run.jsonl", name)
    for row, tokens in enumerate(replay(read)):
        found = {column: token for column, (token, _) in written(read, row).items()}
        first = read.header.start
        assert found == {
            column: token
            for column, token in enumerate(tokens)
            if column >= first and token != read.header.mask_id
        }


def test_two_runs_differ_where_both_wrote_and_nowhere_else(tmp_path):
    one, other = traced(tmp_path / "one.jsonl", "base"), traced(tmp_path / "other.jsonl", "less", steps=3)
    ends = [replay(one), replay(other)]
    for row in range(len(PROMPTS)):
        found = differences(one, other, row)
        columns = [c for c in range(len(ends[0][row])) if ends[0][row][c] != ends[1][row][c]]
        both = [c for c in columns if one.header.mask_id not in (ends[0][row][c], ends[1][row][c])]
        assert [difference.column for difference in found] == both
        assert all(difference.tokens[0] == ends[0][row][difference.column] for difference in found)
        assert all(difference.step == max(difference.steps) for difference in found)
        assert differences(one, one, row) == []
    assert any(differences(one, other, row) for row in range(len(PROMPTS)))
