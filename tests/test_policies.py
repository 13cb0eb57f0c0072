"""Unmasking policies, with masks as strings: e = active and eligible, m = active, . = taken or outside."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toy import drawing, mask
from unmask.samplers import policies

rows = st.text(alphabet="em.", min_size=1, max_size=12)


def frontier_first(text: str, lookahead: int) -> str:
    return drawing(policies.frontier_first(mask(text, "e"), mask(text, "em"), lookahead))


def frontier_run(text: str) -> str:
    return drawing(policies.frontier_run(mask(text, "e"), mask(text, "em")))


def best(scores: list[float], text: str, n: int) -> str:
    return drawing(policies.best(torch.tensor([scores]), mask(text, "m"), n))


def apart(scores: list[float], text: str, conflicts: set[tuple[int, int]]) -> str:
    conflict = torch.zeros(1, len(text), len(text), dtype=torch.bool)
    for one, other in conflicts:
        conflict[0, one, other] = conflict[0, other, one] = True
    return drawing(policies.apart(torch.tensor([scores]), mask(text, "e"), conflict))


def test_the_frontier_is_the_leftmost_active_position():
    assert drawing(policies.frontier(mask("..mm.m", "m"))) == "..x..."
    assert drawing(policies.frontier(mask("...", "m"))) == "..."


def test_within_counts_columns_from_the_frontier_not_active_positions():
    assert drawing(policies.within(mask(".m.mm", "m"), 2)) == ".x.x."
    assert drawing(policies.within(mask(".m.mm", "m"), 0)) == ".x..."
    assert drawing(policies.within(mask("...", "m"), 2)) == "..."


@pytest.mark.parametrize(
    ("text", "lookahead", "expected"),
    [
        ("e.mme", 2, "x...."),  # the frontier itself
        ("m.mee", 3, "...x."),  # the first within the look-ahead
        ("m.mee", 2, "....."),  # the window is f < j <= f + W
        ("..mme", 2, "....x"),  # counted from the frontier
        ("me", 0, ".."),  # no look-ahead
        ("ee", 0, "x."),
        ("mmm", 9, "..."),
        ("...", 9, "..."),
    ],
)
def test_frontier_first_takes_the_first_eligible_within_the_lookahead(text, lookahead, expected):
    assert frontier_first(text, lookahead) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eeme", "xx.."),
        ("e.eem", "x.xx."),  # positions that are taken do not break the run
        ("meee", "...."),
        ("..ee", "..xx"),
        ("eee", "xxx"),
        ("...", "..."),
    ],
)
def test_frontier_run_stops_at_the_first_active_position_that_is_not_eligible(text, expected):
    assert frontier_run(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [  # c = commits, E = commits an end token, m = stays masked, . = taken or outside
        ("ccEE", "xxxx"),
        ("cmEE", "x..."),
        ("EmE", "x.."),  # the first end token has no mask to its left
        ("mEcE", "..x."),  # a word behind an end token that waits still commits
        (".E.", ".x."),
        ("...", "..."),
    ],
)
def test_an_end_token_waits_for_the_masks_to_its_left(text, expected):
    found = policies.ends_last(mask(text, "cE"), mask(text, "cEm"), mask(text, "E"))
    assert drawing(found) == expected


@settings(max_examples=200)
@given(text=st.text(alphabet="cEme.", min_size=1, max_size=12))
def test_end_tokens_come_last_as_if_they_were_removed_one_by_one(text):
    commits = {i for i, letter in enumerate(text) if letter in "cE"}
    open_ = {i for i, letter in enumerate(text) if letter != "."}
    while early := [i for i in commits if text[i] == "E" and any(j < i for j in open_ - commits)]:
        commits.remove(early[0])
    found = policies.ends_last(mask(text, "cE"), mask(text, "cEme"), mask(text, "Ee"))
    assert drawing(found) == "".join("x" if i in commits else "." for i in range(len(text)))


@pytest.mark.parametrize(
    ("scores", "text", "expected"),
    [
        ([0.1, 0.9, 0.5, 0.7, 0.6], "mm.mm", ".x.x."),
        ([0.5, 0.5, 0.9, 0.5, 0.4], "mm.mm", "xx.x."),  # equal scores of a run are all best
        ([-torch.inf, 0.1, 0.2], "m.m", "x.x"),
        ([0.1, 0.2, 0.3], "...", "..."),
        ([0.1, 0.2, 0.3], "mmm", "..x"),
    ],
)
def test_every_run_of_active_positions_has_its_best(scores, text, expected):
    assert drawing(policies.best_of_runs(torch.tensor([scores]), mask(text, "m"))) == expected


def test_best_takes_the_highest_scores_among_the_allowed():
    assert best([0.1, 0.9, 0.5, 0.7], "m.mm", 2) == "..xx"


@pytest.mark.parametrize("width", [300, 1024, 1025, 1500])
def test_best_is_that_of_a_plain_sort_at_any_width(width):
    generator = torch.Generator().manual_seed(width)
    score = torch.randint(20, (3, width), generator=generator) / 20  # many ties
    score[:, ::7] = -torch.inf
    among = torch.rand(3, width, generator=generator) < 0.5
    wanted = torch.tensor([0, 40, width])
    found = policies.best(score, among, wanted)
    for row in range(3):
        candidates = sorted(among[row].nonzero()[:, 0].tolist(), key=lambda j: (-score[row, j], j))
        assert sorted(candidates[: wanted[row]]) == found[row].nonzero()[:, 0].tolist()


def test_best_gives_ties_to_the_left():
    assert best([0.5, 0.5, 0.5], "mmm", 2) == "xx."
    assert best([0.5, 0.5, 0.5], ".mm", 1) == ".x."
    assert best([0.5] * 500, "m" * 500, 3) == "xxx" + "." * 497  # a sort that is not stable shows only here


def test_best_takes_all_where_there_are_fewer_and_none_where_none_is_asked_for():
    assert best([0.1, 0.2, 0.3], "m.m", 5) == "x.x"
    assert best([0.1, 0.2, 0.3], "mmm", 0) == "..."


def test_best_takes_its_own_number_in_every_row():
    chosen = policies.best(
        torch.tensor([[1.0, 2.0, 3.0]] * 3), torch.ones(3, 3, dtype=torch.bool), torch.tensor([0, 1, 2])
    )
    assert chosen.tolist() == [[False] * 3, [False, False, True], [False, True, True]]


def test_best_counts_a_position_with_the_lowest_possible_score_before_what_is_not_allowed():
    assert best([9.0, -torch.inf], ".m", 1) == ".x"


@settings(max_examples=100)
@given(text=rows, lookahead=st.integers(0, 12))
def test_frontier_first_is_the_plain_scan(text, lookahead):
    live = [i for i, letter in enumerate(text) if letter != "."]
    hits = [i for i in live if text[i] == "e" and i <= live[0] + lookahead]
    expected = ["x" if hits and i == hits[0] else "." for i in range(len(text))]
    assert frontier_first(text, lookahead) == "".join(expected)


@settings(max_examples=100)
@given(text=rows)
def test_frontier_run_is_the_plain_walk(text):
    expected, open_run = "", True
    for letter in text:
        open_run = open_run and letter != "m"
        expected += "x" if letter == "e" and open_run else "."
    assert frontier_run(text) == expected


@settings(max_examples=100)
@given(text=st.text(alphabet="m.", min_size=1, max_size=12), n=st.integers(0, 13), seed=st.integers(0, 999))
def test_best_is_the_plain_sort(text, n, seed):
    dice = random.Random(seed)
    scores = [dice.choice([-2.0, 0.0, 0.25, 0.5, 1.0]) for _ in text]
    ranked = sorted((i for i, letter in enumerate(text) if letter == "m"), key=lambda i: (-scores[i], i))
    expected = "".join("x" if i in ranked[:n] else "." for i in range(len(text)))
    assert best(scores, text, n) == expected


@settings(max_examples=100)
@given(
    scores=st.lists(st.sampled_from([-torch.inf, -2.0, 0.0, 0.25, 0.5, torch.inf]), min_size=9, max_size=9),
    among=st.lists(st.booleans(), min_size=9, max_size=9),
)
def test_ranks_are_the_same_when_compiled(scores, among):
    given = torch.tensor([scores]), torch.tensor([among])
    assert torch.equal(compiled_ranks(*given), policies.ranks(*given))


compiled_ranks = torch.compile(policies.ranks, backend="eager", dynamic=False)


@pytest.mark.parametrize(
    ("scores", "text", "conflicts", "expected"),
    [
        ([1, 2, 3], "eee", set(), "xxx"),
        ([1, 2, 3], "eee", {(0, 1), (1, 2)}, "x.x"),  # the best drops its neighbour, which frees the first
        ([3, 2, 1], "eee", {(0, 1), (1, 2)}, "x.x"),
        ([2, 3, 1], "eee", {(0, 1), (1, 2)}, ".x."),
        ([1, 1, 1], "eee", {(0, 1), (1, 2)}, "x.x"),  # ties go left
        ([1, 2, 3], "eem", {(0, 1), (1, 2)}, ".x."),  # no candidate, no conflict
        ([1, 2], "mm", {(0, 1)}, ".."),
    ],
)
def test_apart_takes_candidates_best_first_without_conflicts(scores, text, conflicts, expected):
    assert apart(scores, text, conflicts) == expected


@pytest.mark.parametrize("width", [1, 2, 7, 40])
def test_apart_equals_a_walk_from_the_best_to_the_worst(width):
    draw = torch.Generator().manual_seed(width)
    score = torch.randint(0, 5, (6, width), generator=draw).float()
    score[0] = torch.arange(width, 0, -1)  # a chain: one candidate is decided after the other
    candidates = torch.rand(6, width, generator=draw) < 0.8
    half = torch.rand(6, width, width, generator=draw) < 0.3
    half[0] = torch.eye(width).roll(1, 0).bool()
    conflict = half | half.transpose(1, 2)
    taken = policies.apart(score, candidates, conflict)
    for row in range(6):
        walk: list[int] = []
        for column in sorted(range(width), key=lambda at: (-score[row, at].item(), at)):
            if candidates[row, column] and not any(conflict[row, column, other] for other in walk):
                walk.append(column)
        assert taken[row].nonzero().flatten().tolist() == sorted(walk)
