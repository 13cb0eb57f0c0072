"""Hold a generation or a text with gaps to the constraints of its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from unmask.constraints.automaton import AUTOMATA
from unmask.constraints.fitting import Fitting
from unmask.constraints.grammar import Parsing, Reader
from unmask.constraints.language import Constraint
from unmask.constraints.vocabulary import token_bytes
from unmask.decoding.bans import Bans
from unmask.decoding.canvas import Canvas
from unmask.errors import FieldError
from unmask.samplers.first_mask import FirstMask
from unmask.samplers.less import LESS
from unmask.samplers.wrapper import Wrapper
from unmask.text.config import GenerationConfig
from unmask.text.prompts import tokenizer_of
from unmask.types import MaskedLM, Sampler


def constrain(
    bans: Bans,
    model: MaskedLM,
    canvas: Canvas,
    config: GenerationConfig,
    sampler: Sampler,
    *,
    blockwise: bool = False,
) -> Bans:
    """Return the bans of a generation, whose text without the prompt must fit. Raise if no text can."""
    constraints = config.constraints(len(canvas.tokens))
    if any(each is not None and each.recursive for each in constraints):
        return _parse(bans, model, canvas, config, sampler, blockwise=blockwise)
    fitting = _fitting(bans, model, canvas, constraints, canvas.start, model.info.eos_ids, config.stop)
    if fitting is None:
        return bans
    room = config.new_tokens(model.info)
    if model.info.grid is not None:
        fitting = replace(fitting, outside=_outside(canvas, room))
    for constraint, shortest in zip(constraints, fitting.shortest(canvas, bans.closed), strict=True):
        if shortest is None:
            continue
        if shortest < 0:
            problem = "cannot be written with the tokens of this model"
            raise FieldError("constraint", constraint, problem, "use letters that the model knows")
        if shortest > room:
            problem = f"must be at least {shortest}, the tokens of the shortest text that fits the constraint"
            raise FieldError("max_new_tokens", room, problem)
        problem = f"has no text of {config.min_new_tokens} to {room} tokens that fits"
        raise FieldError("constraint", constraint, problem, "change min_new_tokens or max_new_tokens")
    return replace(bans, language=fitting, raw=_raw(constraints))


def _parse(
    bans: Bans,
    model: MaskedLM,
    canvas: Canvas,
    config: GenerationConfig,
    sampler: Sampler,
    *,
    blockwise: bool,
) -> Bans:
    """Return the bans of a generation under grammars; raise unless the sampler writes from left to right."""
    constraints = config.constraints(len(canvas.tokens))
    if not _from_the_left(sampler, blockwise=blockwise):
        recursive = next(each for each in constraints if each is not None and each.recursive)
        problem = "is not regular, so the text must be written from left to right, as this sampler does not"
        raise FieldError("constraint", recursive, problem, "use first-mask, or less without blocks")
    if any(each is not None and not each.recursive for each in constraints):
        raise FieldError("constraint", constraints, "must not mix grammars with patterns in one batch")
    for name in ("stop", "min_new_tokens"):
        if getattr(config, name):
            raise FieldError(name, getattr(config, name), "must be left out with a grammar")
    tokens, ends = _vocabulary(bans, model, model.info.eos_ids)
    if not ends:
        raise FieldError("constraint", constraints[0], "needs a model with an end token")
    readers = [None if each is None else Reader.of(each, tokens, ends) for each in constraints]
    length = config.new_tokens(model.info)
    texts = [slice(first, first + length) for first in canvas.starts]
    language = Parsing(tuple(readers), tuple(texts), model.info.vocab_size)
    return replace(bans, language=language, raw=_raw(constraints))


def _from_the_left(sampler: Sampler, *, blockwise: bool) -> bool:
    """Return whether a sampler always commits from the first mask on and never revokes a token."""
    while isinstance(sampler, Wrapper):
        sampler = sampler.sampler
    if isinstance(sampler, LESS):
        return (sampler.block_policy if blockwise else sampler.policy) != "all"
    return isinstance(sampler, FirstMask) and not sampler.needs.revoke


def _raw(constraints: Sequence[Constraint | None]) -> bool:
    return any(each is not None and each.raw for each in constraints)


def _outside(canvas: Canvas, length: int) -> Tensor:
    """Mark the columns [B, N] outside a text of this length: its last block is filled to the end."""
    first = torch.tensor(canvas.starts, device=canvas.tokens.device)[:, None]
    column = torch.arange(canvas.tokens.shape[1], device=canvas.tokens.device)
    return (column < first) | (column >= first + length)


def constrain_gaps(
    bans: Bans, model: MaskedLM, canvas: Canvas, config: GenerationConfig, first: int, last: Tensor
) -> Bans:
    """Return the bans of a text with gaps; the whole text, from column `first`, must fit.

    `last` [N] marks the last column of each gap.
    """
    constraints = config.constraints(1)
    if constraints[0] is not None and constraints[0].recursive:
        problem = "must not be a grammar or a recursive schema, because the text has gaps"
        kind = type(constraints[0]).__name__
        raise FieldError("constraint", kind, problem, "use a pattern, or generate the text")
    fitting = _fitting(bans, model, canvas, constraints, first, bans.ends, (), last)
    if fitting is None:
        return bans
    if fitting.shortest(canvas, bans.closed) != [None]:
        problem = "must fit the whole text, but no filling of these gaps makes it fit"
        remedy = "make the gaps longer, or change the text around them"
        raise FieldError("constraint", constraints[0], problem, remedy)
    return replace(bans, language=fitting, raw=_raw(constraints))


def _vocabulary(
    bans: Bans, model: MaskedLM, ends: Sequence[int]
) -> tuple[list[bytes | None], tuple[int, ...]]:
    """Return the bytes of each token, or None if no text may hold it, and the allowed end tokens."""
    tokens = list(token_bytes(tokenizer_of(model), model.info.vocab_size))
    for token in (*bans.ids, *ends):
        tokens[token] = None
    return tokens, tuple(token for token in dict.fromkeys(ends) if token not in bans.ids)


def _fitting(
    bans: Bans,
    model: MaskedLM,
    canvas: Canvas,
    constraints: Sequence[Constraint | None],
    first: int,
    ends: Sequence[int],
    stop: Sequence[str],
    last: Tensor | None = None,
) -> Fitting | None:
    """Return the languages of the rows, or None if no row has a constraint."""
    if all(constraint is None for constraint in constraints):
        return None
    tokens, usable = _vocabulary(bans, model, ends)
    made = {each: AUTOMATA.get(each, tokens, usable, stop) for each in set(constraints) - {None} if each}
    automata = [None if each is None else made[each] for each in constraints]
    return Fitting.of(automata, canvas, first, last)
