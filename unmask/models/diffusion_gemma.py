"""Our rules for DiffusionGemma, which transformers decodes. Using them needs transformers (extra `hf`).

DiffusionGemma has no mask token, so `unmask.load` does not load it. Its canvas starts as random tokens. In
every denoising step a sampler accepts some columns of a drawn canvas, and all others become random again. A
stopping criterion ends the canvas. One of our rules, such as LESS, can replace the sampler or the criterion:

    with using_rules(model, accept=LESS(), stop=LESS(persistence=3)):
        model.generate(**inputs)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from unmask.decoding.checks import check_needs, extra_needs, is_sampler
from unmask.decoding.observe import check_decision
from unmask.decoding.rows import History
from unmask.decoding.summary import summarize
from unmask.errors import FieldError
from unmask.types import Decision, Observation, Sampler

REPLACED = ("_prepare_sampler", "_prepare_diffusion_stopping_criteria", "_compile_functions")


@contextmanager
def using_rules(model: Any, *, accept: Sampler | None = None, stop: Sampler | None = None) -> Iterator[None]:
    """Let `model.generate` follow our rules inside this `with` block.

    `accept` replaces the family's entropy bound: a step accepts the columns that this rule commits. `stop`
    replaces the family's criterion: a canvas ends when this rule finds every column eligible. None keeps the
    family's own. Both rules read the logits after the temperature schedule, as the family's do.
    """
    _check_model(model)
    for rule in (accept, stop):
        if rule is not None:
            check_rule(rule)
    own_sampler, own_stop, own_compile = (getattr(model, name) for name in REPLACED)
    outer = {name: value for name, value in vars(model).items() if name in REPLACED}  # rules around these
    family = None  # the family's own sampler

    def sampler_for(config: Any) -> Any:
        nonlocal family
        family = own_sampler(config)
        if accept is None:
            return family
        sizes = model.config.canvas_length, model.config.text_config.vocab_size
        return RuleSampler(accept, *sizes, config.max_denoising_steps)

    def criterion_for(config: Any) -> Any:
        return own_stop(config) if stop is None else RuleStop(stop, config.max_denoising_steps)

    def compile_functions(sampler: Any, criterion: Any) -> tuple[Any, ...]:
        # transformers compiles a model's first sampler and criterion permanently, so keep ours out of it
        encoder, decoder, *_ = own_compile(family, criterion if stop is None else None)
        return encoder, decoder, sampler, criterion

    try:
        for name, function in zip(REPLACED, (sampler_for, criterion_for, compile_functions), strict=True):
            setattr(model, name, function)
        yield
    finally:
        for name in REPLACED:
            delattr(model, name)
        vars(model).update(outer)


class RuleSampler:
    """A sampler for transformers' `generate` that accepts the columns that one of our rules commits.

    Attributes:
        accepted_token_mask: [B, C] bool, the columns that the last step accepted; None before the first step.
    """

    def __init__(self, rule: Sampler, canvas_length: int, vocab_size: int, max_denoising_steps: int) -> None:
        self.canvas_length, self.vocab_size = canvas_length, vocab_size
        self.accepted_token_mask: Tensor | None = None
        self._watch = Watch(rule, max_denoising_steps)

    def initialize_canvas(self, batch_size: int, device: torch.device) -> Tensor:
        """Forget the last canvas, and return a new one of random tokens, [B, C]."""
        self._watch.reset()
        return self._random(batch_size, device)

    def accept_canvas(
        self, current_canvas: Tensor, denoiser_canvas: Tensor, logits: Tensor, cur_step: Tensor | int
    ) -> Tensor:
        """Return the canvas with the accepted columns of the drawn one. `cur_step` counts the steps left."""
        decision = self._watch.decide(logits, denoiser_canvas, cur_step)
        tokens = denoiser_canvas if decision.tokens is None else decision.tokens
        self.accepted_token_mask = decision.commit
        return torch.where(decision.commit, tokens, current_canvas)

    def renoise_canvas(self, accepted_canvas: Tensor, cur_step: Tensor | int) -> Tensor:
        """Return the canvas with random tokens in the columns that were not accepted."""
        assert self.accepted_token_mask is not None, "accept_canvas comes first"
        noise = self._random(len(accepted_canvas), accepted_canvas.device)
        return torch.where(self.accepted_token_mask, accepted_canvas, noise)

    def _random(self, rows: int, device: torch.device) -> Tensor:
        return torch.randint(self.vocab_size, (rows, self.canvas_length), device=device)


class RuleStop:
    """A stopping criterion for transformers' `generate`: stop when our rule finds every column eligible."""

    def __init__(self, rule: Sampler, max_denoising_steps: int) -> None:
        self._watch = Watch(rule, max_denoising_steps)

    def __call__(self, argmax_canvas: Tensor, logits: Tensor, **kwargs: object) -> Tensor:
        """Return the rows whose canvas is stable, [B] bool."""
        steps_left = max(1, self._watch.budget - self._watch.steps)
        return self._watch.decide(logits, argmax_canvas, steps_left).eligible.all(-1)

    def reset(self) -> None:
        """Forget the last canvas."""
        self._watch.reset()


class Watch:
    """Asks a rule about every column of a canvas in each step, and keeps its history."""

    def __init__(self, rule: Sampler, budget: int) -> None:
        check_rule(rule)
        self.rule, self.budget = rule, budget
        self.reset()

    def reset(self) -> None:
        """Begin a new canvas."""
        self.steps = 0
        self.history = History()

    def decide(self, logits: Tensor, drawn: Tensor, steps_left: Tensor | int) -> Decision:
        """Return the rule's decision on logits [B, C, V] and the tokens drawn from them [B, C]."""
        needs, history = self.rule.needs, self.history
        now = summarize(logits, needs.top_k)
        every, nothing = torch.ones_like(drawn, dtype=torch.bool), torch.zeros_like(drawn[:, 0])
        step = nothing + (self.budget - steps_left)
        # no column is committed permanently, so the fixed schedule accepts more columns in every step
        quota = -(-drawn.shape[1] * (step + 1) // self.budget)
        obs = Observation(
            now=now,
            past=history.past,
            seen=nothing if history.seen is None else history.seen,
            drawn=drawn,
            masked=every,
            active=every,
            quota=quota,
            rate=quota / drawn.shape[1],
            step=step,
            progress=(step + 1) / self.budget,
            carry=history.carry,
            noise=torch.rand(drawn.shape, device=drawn.device) if needs.noise else None,
            blockwise=True,
        )
        decision = self.rule.decide(obs)
        check_decision(decision, self.rule, drawn.shape)
        self.steps += 1
        self.history = history.push(now, decision.carry, needs, None)
        return decision


def check_rule(rule: Sampler) -> None:
    """Raise unless the rule works without masks and without permanent commits."""
    is_sampler(rule)
    check_needs(rule)
    needs, extra = rule.needs, extra_needs(rule)
    if needs.revoke or needs.speculation is not None:
        extra = "masks"
    if extra is not None:
        problem = f"needs {extra}, which DiffusionGemma does not have"
        raise FieldError("sampler", rule, problem, "use a rule on predictions, such as LESS or EntropyBound")


def _check_model(model: Any) -> None:
    try:
        from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
            DiffusionGemmaGenerationMixin as Family,
        )
    except ImportError:
        remedy = "pip install -U 'unmask[hf]'"
        raise ValueError(f"DiffusionGemma needs transformers with this model; {remedy}") from None
    if not isinstance(model, Family) or not all(hasattr(model, name) for name in REPLACED):
        remedy = "load it with transformers.DiffusionGemmaForBlockDiffusion.from_pretrained"
        raise FieldError("model", type(model).__name__, "must be transformers' DiffusionGemma", remedy)
