"""WINO: commit many positions at once, and take back those that their shadow doubts (arXiv:2507.18578).

Each window column has a shadow: a column that predicts it without attending to it. A token that its shadow
finds unlikely is masked again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask.errors import FieldError, probability, share, whole
from unmask.samplers import policies, signals
from unmask.types import Decision, Needs, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class WINO:
    """Commit confident positions, and revoke some earlier ones that their shadow doubts.

    Use it to compare with WINO on a model that offers shadow columns. It does not work with a cache, with
    guidance or in the server.

    Attributes:
        min_confidence: Confidence that a position must exceed, 0 to 1.
        min_shadow: A token is masked again if its shadow, a column that does not attend to it, gives it less
            than this, 0 to 1.
        accept_share: Share of the masks that one step may commit, above 0 and at most 1.
        accept_least: One step may commit this many even if the share allows fewer, >= 1.
        accept_most: One step never commits more than this, >= 1.
        first_allowance: A step revokes fewer tokens than the step before committed. The first step of a block
            revokes fewer than this, >= 1.
    """

    min_confidence: float = 0.6
    min_shadow: float = 0.9
    accept_share: float = 0.7
    accept_least: int = 5
    accept_most: int = 20
    first_allowance: int = 30

    def __post_init__(self) -> None:
        probability("min_confidence", self.min_confidence)
        probability("min_shadow", self.min_shadow)
        share("accept_share", self.accept_share)
        for name in ("accept_least", "accept_most", "first_allowance"):
            whole(name, getattr(self, name), 1)
        if self.accept_least > self.accept_most:
            problem = f"must be at most accept_most, {self.accept_most}"
            raise FieldError("accept_least", self.accept_least, problem)

    @property
    def needs(self) -> Needs:
        return Needs(revoke=True, shadow=True, carry=1)

    def decide(self, obs: Observation) -> Decision:
        assert obs.tokens is not None
        assert obs.written is not None
        confidence = signals.confidence(obs.now)
        eligible = obs.active & (confidence > self.min_confidence)
        forced = ~eligible.any(-1)
        cap = (obs.active.sum(-1).double() * self.accept_share).long()
        cap = cap.clamp(self.accept_least, self.accept_most)
        candidates = torch.where(forced[:, None], obs.active, eligible)
        commit = policies.best(confidence, candidates, cap.masked_fill(forced, 1))
        committed = commit.sum(-1)
        shadow = signals.probability(obs.shadow, obs.tokens)
        before = torch.full_like(committed, self.first_allowance) if obs.carry is None else obs.carry
        # fewer than the last step committed, so that every step adds a token on average and the run ends
        allowance = torch.where(committed > 1, before - 1, 0)
        revoke = policies.best(-shadow, obs.written & (shadow < self.min_shadow), allowance)
        shown = {"confidence": confidence, "shadow": shadow.masked_fill(~obs.written, torch.nan)}
        return Decision(commit, eligible, forced, committed, signals=shown, revoke=revoke)
