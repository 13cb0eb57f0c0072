"""Samplers with signals of their own names, and runs in which tokens are revoked and rewritten."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tests.toy import Toy, make_canvas
from unmask import Canvas
from unmask.samplers import policies, signals
from unmask.types import Decision, Needs, Observation, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidy:
    """Commits one position per step, and names signals that no other sampler has."""

    min_neatness: float = 0.5
    max_fuss: float = 0.2
    agrees: int = 1

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, obs: Observation) -> Decision:
        neatness = signals.confidence(obs.now)
        fuss = 1 - neatness
        commit = policies.best(neatness, obs.active, 1)
        eligible = commit & (neatness >= self.min_neatness) & (fuss <= self.max_fuss)
        named = {"neatness": neatness, "fuss": fuss, "agrees": eligible, "size": obs.drawn}
        return Decision(commit, eligible, ~eligible.any(-1), signals=named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fickle:
    """Commits as Tidy, revokes its first token in the second step and rewrites the next one in the third."""

    rule: Tidy = field(default_factory=Tidy)

    @property
    def needs(self) -> Needs:
        return Needs(revoke=True)

    def decide(self, obs: Observation) -> Decision:
        assert obs.written is not None
        first = obs.written & (obs.written.cumsum(-1) == 1)
        rewrite = first & (obs.step == 2)[:, None]
        return replace(
            self.rule.decide(obs),
            tokens=torch.where(rewrite, 7, obs.drawn),
            revoke=first & (obs.step == 1)[:, None],
            rewrite=rewrite,
        )


MASK = 0
# four columns after a prompt of two; per step: the generation after it, and the columns it changed
SCRIPT = (
    ("3.5.", {"commit": "x.x."}),
    ("3..6", {"commit": "...x", "revoke": "..x."}),
    ("4.76", {"commit": "..x.", "rewrite": "x..."}),
    ("4876", {"commit": ".x.."}),
)


def revoking_run() -> tuple[Canvas, list[Step]]:
    """Steps made by hand: the second revokes a token, the third rewrites another and fills the mask."""
    canvas = make_canvas(Toy(), [(2, 3)], 4)
    steps = [_step(index, *line) for index, line in enumerate(SCRIPT, start=1)]
    return canvas, steps


def _step(index: int, generation: str, columns: dict[str, str]) -> Step:
    tokens = torch.tensor([[2, 3, *(MASK if letter == "." else int(letter) for letter in generation)]])
    written = tokens[:, 2:]
    drawn = torch.where(written == MASK, torch.tensor([[9, 9, 9, 9]]), written)
    flags: dict[str, Tensor] = {
        name: torch.tensor([[letter == "x" for letter in text]]) for name, text in columns.items()
    }
    neatness = torch.tensor([[0.9, 0.4, 0.9, 0.6]])
    named = {
        "neatness": neatness,
        "fuss": torch.tensor([[0.1, 0.1, 0.3, torch.inf]]),
        "agrees": torch.tensor([[True, True, False, True]]),
        "size": drawn,
    }
    decision = Decision(
        flags["commit"],
        flags["commit"] & (neatness > 0.5),
        torch.tensor([index == 4]),
        tokens=drawn,
        signals=named,
        revoke=flags.get("revoke"),
        rewrite=flags.get("rewrite"),
    )
    yes = torch.tensor([True])
    return Step(index, 0, slice(2, 6), tokens, drawn, decision, yes, yes, True, revocable=slice(2, 6))
