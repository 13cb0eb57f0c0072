"""The settings of a generation: everything but the model, the prompts and the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from secrets import randbits
from typing import Any, get_args

from unmask.constraints.language import Constraint
from unmask.decoding.append_cache import AppendCache
from unmask.decoding.cache import BlockCache, Recompute
from unmask.decoding.checks import extra_needs
from unmask.decoding.draw import Selection
from unmask.decoding.options import Options
from unmask.errors import FieldError, finite, flag, known_field, one_of, probability, whole
from unmask.samplers.base import Base
from unmask.samplers.end_last import EndLast
from unmask.samplers.spaced import Spaced
from unmask.samplers.wrapper import rebuild
from unmask.text.fields import CacheName, ConfigFields, EndTokens
from unmask.types import BlockGrid, ModelInfo, Sampler

SEED_BITS = 32  # bits of a new seed; every JSON reader keeps this many exactly
RECOMPUTE: dict[CacheName, Recompute] = {"prefix": "suffix", "dual": "block"}


# name in commands and HTTP requests -> class of the constraint
CONSTRAINTS = {"regex": "Regex", "choice": "Choice", "json_schema": "JSONSchema", "grammar": "Grammar"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig(ConfigFields):
    """The settings of a generation; raises at once if a field is out of range.

    Use it with `generate`, `stream` and `infill`. Most settings are also options of the commands.

    Attributes:
        max_new_tokens: Tokens to decode, >= 1; None: the model's default, 256 unless its files say otherwise.
        steps: Maximum number of reverse steps, >= 1; None: one per new token. If a model attends in blocks,
            each block gets an equal share, rounded up, even a block that new tokens fill only partly.
        block_length: Columns decoded together, >= 1. "auto": the model family's default. None: the full
            sequence.
        next_block_at: Open the next block when this share of the last open one is filled, 0 to 1; None: when
            it is full.
        temperature: 0 picks the likeliest token; higher values flatten the distribution, so draws vary more.
        top_p: Draw from the smallest set of tokens whose total probability reaches this; above 0, at most 1
            (all tokens).
        top_k: Draw from this many of the likeliest tokens; 0: all. The field top_k of a sampler such as less
            (--set top_k) is different: it is the number of candidates that the rule compares.
        seed: Seed of every prompt; a sequence: one seed per prompt; None: a new one if tokens are drawn. An
            answer reports its seed, and a text does not depend on its place in a batch.
        guidance: Strength of classifier-free guidance, which doubles the work; 0: off.
        stop: A text ends before the earliest of these strings.
        min_new_tokens: Write no end token before this many tokens, >= 0. A stop string may still end a text
            earlier.
        stop_at_eos: Stop at an end token. False keeps decoding after it, which costs time and never changes
            the text.
        end_tokens: "keep": treat end tokens like all others. "last": hold an end token back until every mask
            before it is filled. "suppress": never write the end-of-text token (LLaDA's logits_eos_inf); the
            end-of-turn token is still allowed. "demote": rank last the positions that would get an end
            token (LLaDA's confidence_eos_eot_inf); needs the sampler `base`.
        min_gap: Least distance, in columns, between tokens committed in one step, >= 1. "auto": it
            shrinks as masks are filled, as in DUS. None: any distance.
        cache: Reuse keys and values outside the block to save work. "prefix" recomputes the block and
            everything after it, "dual" only the block; both are approximations. "append" is exact, for models
            that attend block by block. "none" uses no cache. By default, "append" is used where possible,
            otherwise no cache.
        refresh_every: With cache="prefix" or "dual", recompute all columns in every n-th forward of a block,
            >= 1; None: only in the first.
        reuse: Run no new forward on an unchanged canvas. False runs one anyway.
        constraint: The language that a text must fit: a Regex, a JSONSchema, a Choice or a Grammar, or a
            sequence of one or None per prompt; None: any text. In a text with gaps, the whole text must fit.
    """

    def __post_init__(self) -> None:
        self._check_lengths()
        self._check_seed()
        self._check_stop()
        self._check_constraint()
        self.selection  # noqa: B018 checks temperature, top_p and top_k
        finite("guidance", self.guidance)
        one_of("end_tokens", self.end_tokens, get_args(EndTokens))
        _whole_or_auto("min_gap", self.min_gap)
        if self.cache is not None:
            one_of("cache", self.cache, get_args(CacheName))
        for name in ("stop_at_eos", "reuse"):
            flag(name, getattr(self, name))

    def _check_lengths(self) -> None:
        whole("min_new_tokens", self.min_new_tokens, 0)
        if self.max_new_tokens is not None:
            whole("max_new_tokens", self.max_new_tokens, 1)
            self._check_room(self.max_new_tokens)
        if self.steps is not None:
            whole("steps", self.steps, 1)
        _whole_or_auto("block_length", self.block_length)
        if self.next_block_at is not None:
            probability("next_block_at", self.next_block_at)
            if self.cache not in (None, "none"):
                problem = "opens several blocks, but a cache knows one"
                raise FieldError("next_block_at", self.next_block_at, problem, "use cache=None")
        if self.refresh_every is not None:
            whole("refresh_every", self.refresh_every, 1)
            if self.cache not in RECOMPUTE:
                remedy = "set cache='prefix' or cache='dual'"
                raise FieldError("refresh_every", self.refresh_every, "needs a cache", remedy)

    def _check_room(self, new_tokens: int) -> None:
        if self.min_new_tokens > new_tokens:
            problem = f"must be at most the number of new tokens, {new_tokens}"
            raise FieldError("min_new_tokens", self.min_new_tokens, problem)

    def _check_seed(self) -> None:
        if isinstance(self.seed, (list, tuple)):  # copy: the caller may change its list later
            object.__setattr__(self, "seed", tuple(self.seed))
        for seed in self.seed if isinstance(self.seed, tuple) else (self.seed or 0,):
            whole("seed", seed, 0, 2**63 - 1)

    def _check_stop(self) -> None:
        if isinstance(self.stop, str):
            raise FieldError("stop", self.stop, "must be a tuple of strings", f"write stop=({self.stop!r},)")
        if not isinstance(self.stop, (tuple, list)):
            raise FieldError("stop", self.stop, "must be a tuple of strings")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise FieldError("stop", text, "must hold strings of at least one character")
        object.__setattr__(self, "stop", tuple(self.stop))

    def changed(self, settings: Mapping[str, Any]) -> GenerationConfig:
        """Return the same settings with some changed; raise if one has an unknown name."""
        for name, value in settings.items():
            if name in CONSTRAINTS:
                remedy = f"write constraint=unmask.{CONSTRAINTS[name]}({value!r})"
                raise FieldError(name, value, "is not a field of GenerationConfig", remedy)
            known_field(name, value, (item.name for item in fields(self)), "GenerationConfig")
        return replace(self, **settings)

    def _check_constraint(self) -> None:
        if isinstance(self.constraint, (list, tuple)):
            object.__setattr__(self, "constraint", tuple(self.constraint))
        for each in self.constraint if isinstance(self.constraint, tuple) else (self.constraint,):
            if each is not None and (not isinstance(each, Constraint) or type(each) is Constraint):
                problem = "must be a Regex, a JSONSchema, a Choice or a Grammar"
                raise FieldError("constraint", each, problem, "such as unmask.Regex('[0-9]+')")

    @property
    def selection(self) -> Selection:
        """The rule that chooses a token at each position."""
        return Selection(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)

    def seeds(self, rows: int) -> tuple[int, ...]:
        """Return one seed per row; without a seed, every call makes new ones if tokens are drawn."""
        if self.seed is None:
            return tuple(0 if self.temperature == 0 else randbits(SEED_BITS) for _ in range(rows))
        if isinstance(self.seed, int):
            return (self.seed,) * rows
        if len(self.seed) != rows:
            raise FieldError("seed", self.seed, f"must be one number or one for each of {rows} prompts")
        return tuple(self.seed)

    def constraints(self, rows: int) -> tuple[Constraint | None, ...]:
        """Return one constraint per row, or None for a row without one."""
        if self.constraint is None or isinstance(self.constraint, Constraint):
            return (self.constraint,) * rows
        if len(self.constraint) != rows:
            problem = f"must be one constraint or one for each of {rows} prompts"
            raise FieldError("constraint", self.constraint, problem)
        return tuple(self.constraint)

    def seeded(self) -> GenerationConfig:
        """Return the same settings with a seed; if there is none, a new one, or 0 at temperature 0."""
        return self if self.seed is not None else replace(self, seed=self.seeds(1)[0])

    def new_tokens(self, info: ModelInfo) -> int:
        """Return the number of tokens to decode for each prompt."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        self._check_room(info.new_tokens)
        return info.new_tokens

    def block_size(self, info: ModelInfo, length: int) -> int | None:
        """Return the columns per block of a generation, or None to decode the full sequence at once."""
        if self.block_length == "auto":
            return None if info.block_length is None else min(info.block_length, length)
        if info.grid is not None and (self.block_length is None or info.grid.length % self.block_length):
            problem = f"must divide {info.grid.length}, the length of the blocks that this model attends by"
            raise FieldError("block_length", self.block_length, problem)
        return self.block_length

    def options(self, info: ModelInfo) -> Options:
        """Return the loop's options."""
        banned = (info.mask_id, *info.eos_ids[:1]) if self.end_tokens == "suppress" else None
        return Options(
            selection=self.selection,
            banned_ids=banned,
            min_new_tokens=self.min_new_tokens,
            stop_at_eos=self.stop_at_eos,
            # refreshes count forwards; skipping a forward would make them depend on the other rows
            reuse=self.reuse and self.refresh_every is None,
        )

    def fit(self, sampler: Sampler, info: ModelInfo) -> Sampler:
        """Return the sampler under these settings, wrapped in the spacing filter and the end rule if set."""
        sampler = rebuild(sampler, lambda inside: self._space(self._fit_base(inside, info)))
        if self.end_tokens == "last" and not isinstance(sampler, EndLast):
            return EndLast(sampler)
        return sampler

    def _space(self, sampler: Sampler) -> Sampler:
        if self.min_gap is None:
            return sampler
        return Spaced(sampler, gap=None if self.min_gap == "auto" else self.min_gap)

    def _fit_base(self, sampler: Sampler, info: ModelInfo) -> Sampler:
        """Return the sampler, with Dream's selection and the demoted end tokens filled in if it is a Base."""
        if isinstance(sampler, Base) and sampler.selection == Selection() and info.schedule == "dream":
            # Dream's sampler ranks positions after temperature, top-p and top-k
            sampler = replace(sampler, temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)
        if self.end_tokens != "demote":
            return sampler
        if not isinstance(sampler, Base) or sampler.order != "confidence":
            raise FieldError(
                "end_tokens",
                self.end_tokens,
                f"needs the sampler 'base' in the order 'confidence', not {sampler}",
                "use that sampler, or end_tokens='last'",
            )
        return replace(sampler, demoted_ids=info.eos_ids)

    def new_cache(self, sampler: Sampler, info: ModelInfo, *, blocks: int) -> BlockCache | AppendCache | None:
        """Return an empty cache for one run, or None; raise if it does not fit the model or the sampler."""
        if info.grid is not None:
            return self._exact_cache(sampler, info.grid)
        if self.cache == "append":
            problem = "is for models that attend block by block"
            raise FieldError("cache", self.cache, problem, "use cache='prefix' or cache='dual'")
        if self.cache is None or self.cache == "none":
            return None
        if (extra := extra_needs(sampler)) is not None:
            problem = f"must be None: {type(sampler).__name__} needs {extra}, which take the whole canvas"
            raise FieldError("cache", self.cache, problem, "leave it out, or use another sampler")
        if self.cache == "dual" and sampler.needs.span and blocks > 1:
            raise FieldError(
                "cache",
                self.cache,
                f"recomputes one block, but {type(sampler).__name__} looks at the whole generation",
                "use cache='prefix' or cache=None",
            )
        return BlockCache(RECOMPUTE[self.cache], refresh_every=self.refresh_every)

    def _exact_cache(self, sampler: Sampler, grid: BlockGrid) -> AppendCache | None:
        """Return the exact cache of a model that attends block by block, or None if it is off or unusable."""
        if self.cache not in (None, "append", "none"):
            problem = "is approximate, and this model has an exact cache"
            raise FieldError("cache", self.cache, problem, "leave it out")
        whole_canvas = (
            sampler.needs.span or extra_needs(sampler) is not None or self.next_block_at is not None
        )
        if self.cache == "append" and whole_canvas:
            problem = f"runs one block, but {type(sampler).__name__} looks at the whole canvas"
            raise FieldError("cache", self.cache, problem, "leave it out")
        return None if whole_canvas or self.cache == "none" else AppendCache(grid.length)


def _whole_or_auto(name: str, value: object) -> None:
    """Raise unless the value is a whole number >= 1, "auto" or None."""
    if isinstance(value, str) and value != "auto":
        raise FieldError(name, value, 'must be a whole number >= 1, "auto" or None')
    if value not in ("auto", None):
        whole(name, value, 1)
