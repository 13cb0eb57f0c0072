"""Credit: a token that keeps winning earns credit, which raises its logit (CreditDecoding, arXiv:2510.06133).

In every step a position's winner earns confidence ** power, and older credit decays. The fused logit of a
token is its logit + weight * ln(1 + credit). A position is committed if its fused winner is confident enough.
If there is none, the best position is committed. The token is always the fused winner, whatever the
temperature.

Only tokens that have won have credit, so a few pairs (token, credit) represent the whole vocabulary. The
fused winner is always among them, because the winner of this step is. The released code never commits the
mask token. Here a run bans it by default.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.errors import FieldError, finite, probability, whole
from unmask.samplers import signals
from unmask.types import Decision, Needs, Observation, Prediction

MOST_CREDITS = 32  # computing more logits than this is no cheaper than computing all
NEAR = 1e-5  # fused confidences this close to the best one are committed with it, as in the released code
NONE = -1  # id of an unused pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Commit positions that are confident once their earlier winners are credited, or else the best one.

    Use it to compare with CreditDecoding, which sees that a token keeps winning before its confidence is
    high. On the small models it is as fast as `first-mask` at its authors' settings, but less accurate
    (docs/choosing.md).

    Attributes:
        min_confidence: Least probability of the winner after credit is added, theta in the paper; 0 to 1.
        weight: How much credit adds to a logit, alpha in the paper; >= 0.
        power: A win earns confidence ** power, gamma in the paper; >= 0.
        decay: Share of a credit that the next step keeps, beta in the paper; 0 to 1.
        credits: Tokens remembered per position, 1 to 32. A new one replaces the one with the least credit.
    """

    min_confidence: float = 0.9
    weight: float = 0.7
    power: float = 0.2
    decay: float = 0.8
    credits: int = 16

    def __post_init__(self) -> None:
        probability("min_confidence", self.min_confidence)
        finite("weight", self.weight)
        finite("power", self.power)
        probability("decay", self.decay)
        whole("credits", self.credits, 1)
        if self.credits > MOST_CREDITS:
            raise FieldError("credits", self.credits, f"must be at most {MOST_CREDITS}")

    @property
    def needs(self) -> Needs:
        return Needs(gather_logits=True, carry=2 * self.credits)

    def decide(self, obs: Observation) -> Decision:
        raw = signals.confidence(obs.now)
        ids, credit = self.earned(obs, raw)
        winners, fused = self.fuse(obs.now, ids, credit)
        best = fused.masked_fill(~obs.active, 0).amax(-1, keepdim=True)
        eligible = obs.active & (fused >= self.min_confidence)
        commit = obs.active & (fused >= (best - NEAR).clamp(max=self.min_confidence))
        return Decision(
            commit,
            eligible,
            ~eligible.any(-1),
            torch.stack([ids.float(), credit], dim=-1),  # ids below 2 ** 24 are exact
            winners,
            {"confidence": fused, "raw_confidence": raw},
        )

    def earned(self, obs: Observation, confidence: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens with credit and their credits, this step included, [B, W, credits] each."""
        if obs.carry is None:
            ids = torch.full((*confidence.shape, self.credits), NONE, device=confidence.device)
            credit = torch.zeros_like(ids, dtype=torch.float32)
        else:
            ids, credit = obs.carry[..., 0].long(), obs.carry[..., 1] * self.decay
        winner = obs.now.top1[..., None]
        same = ids == winner
        taken = torch.where(same.any(-1), same.int().argmax(-1), credit.argmin(-1))[..., None]
        here = torch.arange(self.credits, device=ids.device) == taken
        win = confidence[..., None] ** self.power + torch.where(same, credit, 0)
        return torch.where(here, winner, ids), torch.where(here, win, credit)

    def fuse(self, now: Prediction, ids: Tensor, credit: Tensor) -> tuple[Tensor, Tensor]:
        """Return the fused winner of each position and its probability, [B, W] each."""
        unused = ids == NONE
        logits = logits_at(now, ids.clamp(min=0)).masked_fill(unused, -torch.inf) - now.lse[..., None]
        others = (1 - logits.exp().sum(-1, keepdim=True)).clamp(min=0).log()  # tokens without credit
        fused = logits + self.weight * credit.log1p()
        best = fused.amax(-1, keepdim=True)
        lower = unused | (fused < best)
        winners = ids.masked_fill(lower, torch.iinfo(ids.dtype).max).amin(-1)  # ties go to the lower id
        return winners, (best[..., 0] - torch.cat([others, fused], dim=-1).logsumexp(-1)).exp()


def logits_at(prediction: Prediction, ids: Tensor) -> Tensor:
    """Return the logits of some tokens [B, W, K] in float32."""
    if prediction.hidden is None:
        return prediction.full_logits.gather(-1, ids).float()
    winner, logits = prediction.top1[..., None], prediction.hidden.logits_of(ids)
    return torch.where(ids == winner, prediction.top_logits[..., :1], logits)
