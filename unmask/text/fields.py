"""The fields of GenerationConfig. Imports no torch, so the command line starts fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from unmask.constraints.language import Constraint

EndTokens = Literal["keep", "suppress", "demote", "last"]
CacheName = Literal["prefix", "dual", "append", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFields:
    """Names, types and defaults of the settings; GenerationConfig explains and checks them."""

    max_new_tokens: int | None = None
    steps: int | None = None
    block_length: int | Literal["auto"] | None = "auto"
    next_block_at: float | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | Sequence[int] | None = None
    guidance: float = 0.0
    stop: tuple[str, ...] = ()
    min_new_tokens: int = 0
    stop_at_eos: bool = True
    end_tokens: EndTokens = "keep"
    min_gap: int | Literal["auto"] | None = None
    cache: CacheName | None = None
    refresh_every: int | None = None
    reuse: bool = True
    constraint: Constraint | Sequence[Constraint | None] | None = None
