"""The rules of WINO and DAWN on Observations made by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.toy import committed, drawing, log_probs, mask, observe, predict
from unmask import WINO, Dawn
from unmask.types import Attention, Observation, Prediction

WORD, OTHER = 1, 2


def sure(*confidences: float) -> Prediction:
    """A prediction that gives WORD the j-th confidence in column j."""
    return predict(log_probs([[(1 - top) / 3, top, (1 - top) / 3, (1 - top) / 3] for top in confidences]))


def looking_back(canvas: str, confidences: tuple, doubts: tuple, last: int | None = None) -> Observation:
    """An observation for WINO: "m" masks, "w" words it wrote, "g" given ones; `last` commits before."""
    now = replace(sure(*confidences), shadow=sure(*doubts))
    carry = None if last is None else torch.tensor([last])
    tokens = torch.full((1, len(canvas)), WORD)
    seen = observe(now, active=canvas, carry=carry)
    return replace(seen, tokens=tokens, written=mask(canvas, "w"))


def test_wino_commits_above_its_threshold_up_to_a_share_of_the_masks():
    assert committed(WINO().decide(looking_back("mmm", (0.6, 0.61, 0.9), (1, 1, 1)))) == ".xx"
    scores = tuple(0.7 + column / 100 for column in range(10))
    seven = WINO().decide(looking_back("m" * 10, scores, (1,) * 10))
    assert committed(seven) == "...xxxxxxx"
    five = WINO().decide(looking_back("m" * 6, scores[:6], (1,) * 6))  # 0.7 * 6 is less than the least
    assert committed(five) == ".xxxxx"
    many = WINO().decide(looking_back("m" * 40, (0.9,) * 40, (1,) * 40))
    assert committed(many) == "x" * 20 + "." * 20


def test_wino_commits_the_best_one_if_none_is_sure_and_then_revokes_nothing():
    decision = WINO().decide(looking_back("mmww", (0.3, 0.5, 0.9, 0.9), (0.1, 0.1, 0.1, 0.1), last=9))
    assert committed(decision) == ".x.."
    assert decision.forced.tolist() == [True]
    assert drawing(decision.revoke) == "...."


def test_wino_revokes_the_most_doubtful_words_fewer_than_it_last_committed():
    doubts = (1, 1, 0.5, 0.2, 0.1, 0.4, 0.9)
    canvas = looking_back("mmwwgww", (0.9,) * 7, doubts, last=30)
    assert drawing(WINO().decide(canvas).revoke) == "..xx.x."  # not the given one, nor one at the threshold
    for last, revoked in ((1, "......."), (2, "...x..."), (3, "...x.x.")):
        decision = WINO().decide(replace(canvas, carry=torch.tensor([last])))
        assert drawing(decision.revoke) == revoked
        assert decision.carry.tolist() == [2]
    assert drawing(WINO().decide(replace(canvas, carry=None)).revoke) == "..xx.x."


def paying_attention(prompt: tuple, confidences: tuple, *edges: tuple[int, int], written: str) -> Observation:
    """An observation for DAWN: the confidence of prompt and window columns, and who attends to whom."""
    n, first = len(prompt) + len(confidences), len(prompt)
    weights = torch.eye(n) * 0.9  # of itself, which counts for nothing
    for query, key in edges:
        weights[query, key] = 0.5
    everything = torch.tensor([[*prompt, *confidences]])
    filled = torch.cat([torch.ones(1, first, dtype=torch.bool), ~mask(written, "m")], dim=1)
    seen = Attention(weights[None], everything, torch.ones(1, n, dtype=torch.bool), filled, first)
    return observe(replace(sure(*confidences), attention=seen), active=written)


DAWN = Dawn(sink=0.4, edge=0.1)


def test_dawn_commits_sure_positions_and_those_that_depend_on_a_sure_token():
    mixed = paying_attention((0.95, 0.5), (0.9, 0.69, 0.4), written="mmm")
    assert committed(DAWN.decide(mixed)) == "x.."
    lower = Dawn(sink=0.4, edge=0.1, induced_confidence=0.6)
    for key, expected in ((0, "xx."), (1, "x.."), (4, "x..")):  # a sure token, an unsure one, a mask
        mixed = paying_attention((0.95, 0.5), (0.9, 0.69, 0.4), (3, key), written="mmm")
        assert committed(lower.decide(mixed)) == expected


def test_dawn_commits_less_sure_positions_apart():
    scores = (0.8, 0.75, 0.7, 0.2)
    assert committed(DAWN.decide(paying_attention((0.1,), scores, written="mmmm"))) == "xxx."
    for edge in ((1, 2), (2, 1)):  # either direction
        assert committed(DAWN.decide(paying_attention((0.1,), scores, edge, written="mmmm"))) == "x.x."
    chain = paying_attention((0.1,), scores, (2, 1), (3, 2), written="mmmm")
    assert committed(DAWN.decide(chain)) == "x.x."  # the second falls, so the third may stand


def test_dawn_ignores_columns_that_everybody_attends_to():
    everybody = [(query, 0) for query in range(1, 5)]
    lower = Dawn(sink=0.4, edge=0.1, induced_confidence=0.5)
    assert (
        committed(lower.decide(paying_attention((0.95,), (0.6,) * 4, *everybody, written="mmmm"))) == "x..."
    )
    strict = Dawn(sink=0.9, edge=0.1, induced_confidence=0.5)
    assert (
        committed(strict.decide(paying_attention((0.95,), (0.6,) * 4, *everybody, written="mmmm"))) == "xxxx"
    )


def test_dawn_commits_the_best_one_if_none_qualifies():
    decision = DAWN.decide(paying_attention((0.9,), (0.3, 0.4, 0.2), written="mmm"))
    assert committed(decision) == ".x."
    assert decision.forced.tolist() == [True]
    assert drawing(decision.eligible) == "..."
