"""Base: the fixed-budget samplers of LLaDA and Dream. The schedule sets how many commit, the order which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from unmask.decoding.draw import Selection
from unmask.decoding.summary import ban, by_rows, summarize
from unmask.errors import at_least, id_tuple, one_of
from unmask.samplers import policies, signals
from unmask.types import Decision, Needs, Observation, Prediction

MAX_DEMOTED = 256  # every step loops over them
Order = Literal["confidence", "margin", "entropy", "random", "origin", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Commit the best positions in every step, as many as the schedule's quota.

    Use it as the reference for quality, or if the number of forwards is fixed: it takes exactly `steps`.

    LLaDA's `low_confidence` and Dream's `maskgit_plus` are order="confidence", Dream's `topk_margin` is
    "margin".

    Attributes:
        order: Which positions are best: "confidence", "margin" (top-1 minus top-2 probability), "entropy"
            (the lowest), "left" (the first masks), or "random". "origin" commits each position with the
            probability that the schedule sets.
        order_temperature: Rank by draws from softmax(score / this), Dream's alg_temp; >= 0. 0 means that
            positions rank by the score itself.
        temperature: Temperature of the distribution that is scored; >= 0. 0 leaves it unchanged. `generate`
            sets it for Dream, which ranks positions after temperature, top-p and top-k.
        top_p: Score only the nucleus of this mass; above 0 and at most 1, which is everything.
        top_k: Score only this many of the most likely tokens. 0 means all.
        demoted_ids: Tokens without probability in the scored distribution, so that by confidence their
            positions rank last (LLaDA's confidence_eos_eot_inf); at most 256.
    """

    order: Order = "confidence"
    order_temperature: float = 0.0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    demoted_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        one_of("order", self.order, get_args(Order))
        at_least("order_temperature", self.order_temperature, 0)
        object.__setattr__(self, "demoted_ids", id_tuple("demoted_ids", self.demoted_ids, MAX_DEMOTED))
        self.selection  # noqa: B018 checks temperature, top_p and top_k

    @property
    def selection(self) -> Selection:
        return Selection(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)

    @property
    def needs(self) -> Needs:
        return Needs(noise=self.order in ("random", "origin") or self.order_temperature > 0)

    def decide(self, obs: Observation) -> Decision:
        no_rows = torch.zeros_like(obs.seen, dtype=torch.bool)
        if self.order == "origin":
            commit = obs.active & (random(obs) < obs.rate[:, None])
            return Decision(commit, commit, no_rows)
        score = self.score(obs)
        ranked = score
        if self.order_temperature > 0:  # Gumbel top-n = n draws without replacement
            ranked = score / self.order_temperature - (-random(obs).log()).log()
        commit = policies.best(ranked, obs.active, obs.quota)
        return Decision(commit, commit, no_rows, signals={"score": score, self.order: score})

    def score(self, obs: Observation) -> Tensor:
        """Return the score of each position, [B, W]."""
        if self.order == "random":
            return random(obs)
        if self.order == "left":
            return -torch.arange(obs.active.shape[1], device=obs.active.device).float().expand_as(obs.active)
        if self.selection == Selection() and not self.demoted_ids:
            return self.scored(obs.now, obs.drawn)
        return by_rows(self.score_filtered, obs.now.full_logits, obs.drawn[..., None])

    def score_filtered(self, logits: Tensor, drawn: Tensor) -> Tensor:
        """Score the distribution after demoted tokens and filters, [R, V] and [R, 1] -> [R]."""
        filtered = self.selection.filter(ban(logits.float().clone(), self.demoted_ids))
        return self.scored(summarize(filtered[None], 2), drawn.T)[0]

    def scored(self, prediction: Prediction, drawn: Tensor) -> Tensor:
        """Return the score of a prediction by this order, [B, W]."""
        if self.order == "margin":
            return signals.margin(prediction)
        if self.order == "entropy":
            return -signals.entropy(prediction)
        return signals.probability(prediction, drawn)


def random(obs: Observation) -> Tensor:
    """Return the uniform numbers of this step, [B, W]."""
    assert obs.noise is not None, "Needs(noise=True) promises noise"
    return obs.noise
