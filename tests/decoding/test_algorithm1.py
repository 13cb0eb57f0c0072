"""`less-paper` against the paper's Algorithm 1, written out in plain Python over positions."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch

from tests.toy import Toy
from unmask import Options, blank, denoise, make_sampler, plan

TOO_CLOSE = 1e-6  # float32 and float64 may disagree about a threshold that is this near


@dataclass
class Literal:
    """Algorithm 1 on one row. Lines of the paper are named in the comments."""

    model: Toy
    prompt: list[int]
    length: int
    budget: int  # T
    c: float
    d: float
    top_k: int  # K
    persistence: int  # P
    lookahead: int  # W
    patience: int  # Pi
    stop_at_eos: bool

    states: list[list[int]] = field(default_factory=list)  # the generation after every step
    events: Counter = field(default_factory=Counter)
    leftovers: int = 0
    too_close: bool = False

    def decode(self) -> None:
        mask = self.model.mask_id
        x = [mask] * self.length
        top1_history: dict[int, list[int]] = {i: [] for i in range(self.length)}  # H, newest last
        previous: dict[int, list[float]] = {}  # Q, here the whole distribution's logits
        skipped = 0  # rho
        for _ in range(self.budget):
            masked = [i for i in range(self.length) if x[i] == mask]
            if not masked or (self.stop_at_eos and self.text_has_ended(x)):
                break
            logits = self.predict(x)
            eligible = [i for i in masked if self.stable(logits[i], top1_history[i], previous.get(i))]
            chosen = self.frontier_first(eligible, masked)
            if chosen is None and skipped < self.patience:
                skipped += 1
                self.events["skip"] += 1
            else:
                if chosen is None:
                    chosen = masked[0]  # the forced action unmasks the frontier
                    self.events["forced"] += 1
                else:
                    self.events["frontier" if chosen == masked[0] else "look-ahead"] += 1
                x[chosen] = best(logits[chosen])
                skipped = 0
            for i in masked:
                if x[i] == mask:
                    top1_history[i].append(best(logits[i]))
                    previous[i] = logits[i]
            self.states.append(list(x))
        if self.stop_at_eos and self.text_has_ended(x):
            self.events["ended by eos"] += 1
            return
        left = [i for i in range(self.length) if x[i] == mask]
        if left:  # not in the paper: the argmax of the canvas as it stands
            logits = self.predict(x)
            for i in left:
                x[i] = best(logits[i])
            self.leftovers = len(left)
            self.states.append(list(x))

    def predict(self, x: list[int]) -> list[list[float]]:
        tokens = torch.tensor([self.prompt + x])
        start = len(self.prompt)
        logits = self.model(tokens, None, slice(start, start + self.length), None)
        logits[..., self.model.mask_id] = -math.inf
        return logits[0].tolist()

    def stable(self, logits: list[float], history: list[int], before: list[float] | None) -> bool:
        """Eq. accept: confidence, persistence and JSD."""
        confidence = probabilities(logits)[best(logits)]
        needed = self.persistence - 1
        persists = len(history) >= needed and all(
            token == best(logits) for token in history[len(history) - needed :]
        )
        drift = math.inf if before is None else self.jsd(logits, before)
        near = abs(confidence - self.c) < TOO_CLOSE, logits != before and abs(drift - self.d) < TOO_CLOSE
        passes = confidence >= self.c, drift <= self.d
        # a near miss counts only where it decides
        self.too_close |= persists and any(near) and all(a or b for a, b in zip(near, passes, strict=True))
        return persists and all(passes)

    def jsd(self, now: list[float], before: list[float]) -> float:
        """Eq. drift on the union of both top-K sets and one bin for the rest."""
        support = set(top(now, self.top_k)) | set(top(before, self.top_k))
        total = 0.0
        p, q = probabilities(now), probabilities(before)
        bins = [(p[v], q[v]) for v in sorted(support)]
        outside = [v for v in range(len(p)) if v not in support]
        bins.append((math.fsum(p[v] for v in outside), math.fsum(q[v] for v in outside)))
        for a, b in bins:
            middle = (a + b) / 2
            for mass in (a, b):
                if mass > 0:
                    total += mass * math.log(mass / middle) / 2
        return max(total, 0.0)

    def frontier_first(self, eligible: list[int], masked: list[int]) -> int | None:
        frontier = masked[0]
        if frontier in eligible:
            return frontier
        for j in masked:
            if frontier < j <= frontier + self.lookahead and j in eligible:
                return j
        return None

    def text_has_ended(self, x: list[int]) -> bool:
        for token in x:
            if token == self.model.mask_id:
                return False
            if token in self.model.eos_ids:
                return True
        return False


def top(logits: list[float], k: int) -> list[int]:
    return sorted(range(len(logits)), key=lambda v: (-logits[v], v))[:k]


def best(logits: list[float]) -> int:
    return top(logits, 1)[0]


def probabilities(logits: list[float]) -> list[float]:
    highest = max(logits)
    weights = [math.exp(x - highest) for x in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def random_settings(dice: random.Random) -> dict:
    vocabulary = dice.choice([2, 3, 4, 6, 9, 12])
    return {
        "model": Toy(
            vocab_size=vocabulary,
            seed=dice.randrange(10**6),
            mask_id=dice.choice([0, vocabulary - 1]),
            eos_ids=(1,) if vocabulary > 2 and dice.random() < 0.7 else (),
            lead=dice.choice([3.0, 8.0, 14.0]),
            drift=dice.choice([0.0, 0.4, 2.0, 8.0]),
            quantum=dice.choice([0.0, 0.0, 0.5, 2.0]),
            holes=dice.random() < 0.2,
        ),
        "length": dice.choice([1, 2, 3, 5, 7, 9]),
        "c": dice.choice([0.0, 0.2, 0.4, 0.6, 0.75, 0.9]),
        "d": dice.choice([0.0, 0.001, 0.01, 0.04, 0.04, 0.15, math.inf]),
        "top_k": dice.randint(1, 10),
        "persistence": dice.randint(1, 4),
        "lookahead": dice.choice([0, 1, 2, 4, 16]),
        "patience": dice.randint(0, 3),
        "stop_at_eos": dice.random() < 0.6,
    }


def compare(seed: int, rows: int) -> tuple[Counter, int, int]:
    """Events, cases compared and cases skipped of one random setting, decoded as one batch."""
    dice = random.Random(seed)
    values = random_settings(dice)
    model, length, stop = values["model"], values["length"], values["stop_at_eos"]
    budget = dice.choice([1, 2, length, length, 2 * length, 4 * length, 4 * length + 1])
    words = [token for token in range(model.vocab_size) if token != model.mask_id]
    prompts = [[dice.choice(words) for _ in range(dice.randint(1, 4))] for _ in range(rows)]
    sampler = make_sampler(
        "less-paper",
        min_confidence=values["c"],
        max_jsd=values["d"],
        top_k=values["top_k"],
        persistence=values["persistence"],
        lookahead=values["lookahead"],
        patience=values["patience"],
    )
    canvas = blank(prompts, length, mask_id=model.mask_id, pad_id=0)
    steps = list(
        denoise(model, canvas, sampler, plan(canvas.start, length, steps=budget), Options(stop_at_eos=stop))
    )
    events, compared, skipped = Counter(), 0, 0
    for row, prompt in enumerate(prompts):
        literal = Literal(prompt=prompt, budget=budget, **values)
        literal.decode()
        if literal.too_close:
            skipped += 1
            continue
        compared += 1
        events += literal.events
        events["leftovers"] += literal.leftovers
        events["never accepted"] += not (literal.events["frontier"] + literal.events["look-ahead"])
        mine = [step for step in steps if step.running[row]]
        trajectory = [step.tokens[row, canvas.start :].tolist() for step in mine]
        assert trajectory == literal.states, f"row {row} of seed {seed}: {values}, budget {budget}"
        counted = sum(not step.leftover for step in mine)
        assert counted == len(literal.states) - (literal.leftovers > 0)
        forced = sum(bool(step.decision.forced[row]) for step in mine)
        assert forced == literal.events["forced"]
    return events, compared, skipped


CHUNKS, SETTINGS_PER_CHUNK, ROWS = 4, 80, 6  # 1,920 cases


@pytest.mark.parametrize(
    "chunk", [0, 1, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(2, CHUNKS))]
)
def test_less_paper_follows_algorithm_1_step_by_step(chunk):
    events, compared, skipped = Counter(), 0, 0
    for seed in range(chunk * SETTINGS_PER_CHUNK, (chunk + 1) * SETTINGS_PER_CHUNK):
        happened, agreed, close = compare(seed, ROWS)
        events, compared, skipped = events + happened, compared + agreed, skipped + close
    assert compared >= 0.95 * SETTINGS_PER_CHUNK * ROWS, f"{skipped} cases too close to a threshold"
    # a comparison in which nothing happens proves nothing
    for event in ("frontier", "look-ahead", "skip", "forced", "leftovers", "ended by eos", "never accepted"):
        assert events[event] >= 20, f"{event} happened {events[event]} times: {events}"


@pytest.mark.parametrize("seed", range(5000, 5060))
def test_less_paper_follows_algorithm_1_on_a_row_alone(seed):
    _, compared, skipped = compare(seed, rows=1)
    assert compared + skipped == 1


@pytest.mark.parametrize(
    "values",
    [
        {"c": 0.0, "d": 0.0, "patience": 1},  # only an unchanged canvas is stable enough
        {"c": 0.0, "d": math.inf, "persistence": 1},  # everything is eligible at once
        {"c": 1.0, "d": 0.04, "patience": 0},  # nothing is: forced at every step
        {"length": 1, "persistence": 4, "patience": 3},
        {"lookahead": 0, "patience": 0},
        {"top_k": 10, "vocabulary": 3},
    ],
    ids=str,
)
def test_the_literal_algorithm_and_less_paper_agree_at_the_edges(values):
    values = {**values}
    model = Toy(vocab_size=values.pop("vocabulary", 8), seed=5, eos_ids=(), lead=6.0, drift=0.5)
    defaults = {
        "length": 6, "c": 0.3, "d": 0.04, "top_k": 8, "persistence": 2, "lookahead": 16, "patience": 2
    }  # fmt: skip
    chosen = {**defaults, **values}
    literal = Literal(model=model, prompt=[2, 1], budget=40, stop_at_eos=False, **chosen)
    literal.decode()
    assert not literal.too_close
    canvas = blank([[2, 1]], chosen["length"], mask_id=0, pad_id=0)
    sampler = make_sampler(
        "less-paper",
        min_confidence=chosen["c"],
        max_jsd=chosen["d"],
        **{name: chosen[name] for name in ("top_k", "persistence", "lookahead", "patience")},
    )
    steps = denoise(model, canvas, sampler, plan(2, chosen["length"], steps=40))
    assert [step.tokens[0, 2:].tolist() for step in steps] == literal.states


def test_the_paper_s_setting_needs_a_first_observation_a_second_and_then_one_step_per_token():
    model = Toy(vocab_size=6, seed=1, eos_ids=(), lead=0.0, drift=0.0)
    canvas = blank([[2]], 4, mask_id=0, pad_id=0)
    sampler = make_sampler("less-paper", min_confidence=0.0, max_jsd=1.0)
    commits = [
        step.decision.commit[0].tolist().count(True)
        for step in denoise(model, canvas, sampler, plan(1, 4, steps=20))
    ]
    assert commits[0] == 0, "nothing can be stable at the first observation"
    assert sum(commits) == 4
    assert max(commits) == 1
