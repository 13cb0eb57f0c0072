"""The fields of GenerationConfig. Imports no torch, so the command line starts fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

EndTokens = Literal["keep", "suppress", "demote", "last"]
CacheName = Literal["prefix", "dual", "append", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFields:
    """Names, types and defaults of the settings; GenerationConfig checks their values."""

    max_new_tokens: int | None = None  # None: the model's own, 256 unless its files say otherwise
    steps: int | None = None  # maximum number of reverse steps; None: one per new token
    block_length: int | Literal["auto"] | None = "auto"  # "auto": the family's own; None: full sequence
    next_block_at: float | None = (
        None  # open a block when this share of the last is filled; None: when it is full
    )
    temperature: float = 0.0  # 0: argmax
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    # an int seeds every prompt, so a row's text does not depend on its place in the batch; None: new seeds in
    # every run if temperature > 0, else 0. The answer names its seed
    seed: int | Sequence[int] | None = None
    guidance: float = 0.0  # classifier-free guidance; 0: off
    stop: tuple[str, ...] = ()  # a text ends before the earliest of these
    min_new_tokens: int = 0  # no end token before this many tokens; stop strings count from the start
    stop_at_eos: bool = True  # False: keep decoding after the end token (costs time, never changes the text)
    # LLaDA's evaluation. suppress, its logits_eos_inf: the end-of-text token is never written (the end of a
    # turn may be). demote, its confidence_eos_eot_inf: a position that would take an end token ranks last.
    # last: an end token waits for every mask before it
    end_tokens: EndTokens = "keep"
    min_gap: int | Literal["auto"] | None = None  # columns between commits of one step; "auto": as DUS
    # None: the exact cache ("append") of a model that attends block by block, no cache for others
    cache: CacheName | None = None
    refresh_every: int | None = None  # run all columns every n forwards of a block; None: only in its first
    reuse: bool = True  # an unchanged canvas needs no new forward
