"""A toy masked LM for the tests: hashed logits, no weights, bit-identical for a row alone or left-padded.

A row's logits depend on its own tokens and on positions counted from its first token. Every position has a
favourite token whose lead differs from place to place and grows as the row fills, so confidences run from
1/V to almost 1. Every token of the row shakes the logits a little, and now and then moves the favourite, so
that rules accept sometimes and not always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from unmask import Canvas, Options, Result, RowNoise, blank, decode, denoise, plan
from unmask.decoding.summary import summarize
from unmask.types import Cache, Counts, Decision, ModelInfo, Observation, Prediction, Sampler, Step

settings.register_profile(
    "unmask",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("unmask")

COUNTS = tuple(field.name for field in fields(Counts))


def scramble(x: np.ndarray) -> np.ndarray:
    """A well-mixed 31-bit hash of non-negative integers, element by element."""
    x = x & 0x7FFFFFFF
    for factor in (0x2C1B3C6D, 0x297A2D39):
        x ^= x >> 15
        x *= factor
        x &= 0x7FFFFFFF
    return x ^ (x >> 16)


def share(x: np.ndarray) -> np.ndarray:
    """A hash as a float32 in [0, 1), exact."""
    return (scramble(x) >> 11).astype(np.float32) / 2**20


def real_columns(tokens: Tensor, attend: Tensor | None) -> np.ndarray:
    """1 where a row has a token, 0 where it has padding."""
    return np.ones(tokens.shape, np.int64) if attend is None else attend.long().numpy()


@dataclass(frozen=True)
class Toy:
    """MaskedLM. `quantum` > 0 rounds logits to its multiples, which makes ties; `holes` rules tokens out.

    It computes with numpy, which takes a fraction of torch's time for arrays of this size.
    """

    vocab_size: int = 12
    seed: int = 0
    mask_id: int = 0
    eos_ids: tuple[int, ...] = (1,)
    lead: float = 9.0  # how far a favourite may be ahead
    drift: float = 1.0  # how much the other tokens of the row matter
    quantum: float = 0.0
    holes: bool = False
    deterministic: bool = True
    schedule: str = "linear"
    calls: list[int] = field(default_factory=list, compare=False)  # rows of every forward

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            vocab_size=self.vocab_size,
            mask_id=self.mask_id,
            eos_ids=self.eos_ids,
            deterministic=self.deterministic,
            schedule=self.schedule,
            separable=True,
        )

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        return self.predict(tokens, attend, window)

    def predict(self, tokens: Tensor, attend: Tensor | None, window: slice, *, blind: bool = False) -> Tensor:
        """The logits of a window; `blind`, of columns that do not hear their own token."""
        if not blind:
            self.calls.append(len(tokens))
        ids, own = tokens.numpy(), real_columns(tokens, attend)
        position = own.cumsum(-1)  # counted from the row's first token
        voice = scramble(position * 7919 + scramble(ids + 1 + self.seed * 104729)) * own
        first = (ids * own * (position == 1)).sum(-1)
        there = (ids != self.mask_id) * own
        row, count = voice.sum(-1, keepdims=True), there.sum(-1, keepdims=True)
        if blind:
            row, count = row - voice[:, window], count - there[:, window]
        filled = (count * 64 // own.sum(-1, keepdims=True)).astype(np.float32) / 64
        place = scramble((position[:, window] * 64 + first[:, None]) * 15485863 + self.seed * 32452843 + 17)
        return torch.from_numpy(self.logits(row, place, filled))

    def shadow_states(self, tokens: Tensor, attend: Tensor | None, window: slice) -> tuple[Tensor, Tensor]:
        return self.predict(tokens, attend, window), self.predict(tokens, attend, window, blind=True)

    def attention_states(self, tokens: Tensor, attend: Tensor | None, layers: int) -> tuple[Tensor, Tensor]:
        own = real_columns(tokens, attend)
        place = scramble(own.cumsum(-1) * 7919 + tokens.numpy() * 31 + self.seed)
        shares = share(place[..., None] * 3 + scramble(place)[:, None] + layers) * own[:, None]
        for _ in range(3):  # its 8th power, which makes some of them large
            shares = shares * shares
        whole = torch.from_numpy((shares * 2**20).round()).float()  # sums of whole numbers are exact
        everything = self.predict(tokens, attend, slice(0, tokens.shape[1]))
        return everything, whole / whole.sum(-1, keepdim=True)

    def logits(self, row: np.ndarray, place: np.ndarray, filled: np.ndarray) -> np.ndarray:
        """[B, 1 or W], [B, W], [B, 1 or W] -> [B, W, V]; `place` stays the same from step to step."""
        moment = scramble(place + scramble(row))  # [B, W], new when any token of the row is
        moved = (moment % 9 == 0) * (moment >> 8)
        favourite = (scramble(place + 3) + moved) % self.vocab_size
        column = np.arange(self.vocab_size)
        ahead = share(place + 5) * self.lead * (0.4 + 0.6 * filled)
        weight = 0.02 + share(place + 7) ** 2 * self.drift
        shake = share(moment[..., None] + column * 49979687) * weight[..., None]
        logits = share(place[..., None] + column * 86028121 + 11) * 2 + shake
        logits = logits + (column == favourite[..., None]) * ahead[..., None]
        if self.quantum:
            logits = (logits / np.float32(self.quantum)).round() * np.float32(self.quantum)
        if self.holes:
            hole = scramble(place[..., None] + column * 122949823) % 4 == 0
            safe = (column == favourite[..., None]) | (column == 0) | (column == self.vocab_size - 1)
            logits[hole & ~safe] = -np.inf
        return logits


class Scripted:
    """A model that says the same [W, V] logits to every row, whatever the canvas holds; `at` counts calls."""

    def __init__(self, logits: Sequence[Sequence[float]] | Tensor, *, mask_id: int = 0, eos_ids=(), **info):
        self.table = torch.as_tensor(logits, dtype=torch.float32)
        self.at = 0
        self._info = ModelInfo(
            vocab_size=self.table.shape[-1], mask_id=mask_id, eos_ids=tuple(eos_ids), **info
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        self.at += 1
        start = tokens.shape[1] - len(self.table)
        chosen = self.table[window.start - start : window.stop - start]
        return chosen[None].expand(len(tokens), -1, -1).clone()


def run(
    model,
    sampler: Sampler,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    length: int = 6,
    steps: int | None = None,
    block_length: int | None = None,
    pins: Mapping[int, int] | None = None,
    filled: Sequence[Mapping[int, int]] | None = None,
    seeds: Sequence[int] | None = None,
    **options,
) -> Result:
    """One decoding from prompts to Result; `filled` gives each row tokens at offsets of its generation."""
    canvas = make_canvas(model, prompts, length, pins=pins, filled=filled)
    cut = plan(canvas.start, length, steps=steps or length, block_length=block_length)
    noise = None if seeds is None else RowNoise(seeds)
    return decode(model, canvas, sampler, cut, Options(**options), noise=noise)


def trail(
    model,
    sampler: Sampler,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    length: int = 6,
    steps: int | None = None,
    block_length: int | None = None,
    pins: Mapping[int, int] | None = None,
    filled: Sequence[Mapping[int, int]] | None = None,
    seeds: Sequence[int] | None = None,
    **options,
) -> tuple[Canvas, list[Step]]:
    """The same decoding as `run`: the canvas it starts from, and its steps."""
    canvas = make_canvas(model, prompts, length, pins=pins, filled=filled)
    cut = plan(canvas.start, length, steps=steps or length, block_length=block_length)
    noise = None if seeds is None else RowNoise(seeds)
    return canvas, list(denoise(model, canvas, sampler, cut, Options(**options), noise=noise))


def make_canvas(model, prompts, length, *, pins=None, filled=None) -> Canvas:
    if prompts is None:
        prompts = [(2, 3) if model.info.vocab_size > 3 else (1, 1)]
    canvas = blank(prompts, length, mask_id=model.info.mask_id, pad_id=model.info.pad_id, pins=pins)
    for row, tokens in enumerate(filled or ()):
        for offset, token in tokens.items():
            canvas.tokens[row, canvas.start + offset] = token
    return canvas


def predict(logits: Sequence | Tensor, top_k: int = 8) -> Prediction:
    """A Prediction of one row, [W, V] numbers -> [1, W, ...]; [B, W, V] is taken as it is."""
    table = torch.as_tensor(logits, dtype=torch.float32)
    return summarize(table if table.ndim == 3 else table[None], top_k)


def log_probs(rows: Sequence[Sequence[float]]) -> Tensor:
    """Probabilities as logits; 0 becomes -inf."""
    return torch.tensor(rows, dtype=torch.float64).log().float()


def mask(text: str, letters: str) -> Tensor:
    """A bool row [1, W] that is true where `text` holds one of `letters`."""
    return torch.tensor([[letter in letters for letter in text]])


def drawing(where: Tensor) -> str:
    """A bool row [1, W] as text: x where true, . elsewhere."""
    return "".join("x" if flag else "." for flag in where[0].tolist())


def observe(
    now: Prediction,
    *past: Prediction,
    active: str | None = None,
    masked: str | None = None,
    seen: int | None = None,
    quota: int = 1,
    rate: float = 0.5,
    step: int = 0,
    progress: float = 0.5,
    carry: Tensor | None = None,
    drawn: Tensor | None = None,
    noise: Tensor | None = None,
    blockwise: bool = False,
    eos_ids: tuple[int, ...] = (),
) -> Observation:
    """An Observation of one row made by hand; "m" marks active and masked columns."""
    rows, width = now.lse.shape
    live = torch.ones(rows, width, dtype=torch.bool) if active is None else mask(active, "m")
    return Observation(
        now=now,
        past=past,
        seen=torch.full((rows,), len(past) if seen is None else seen),
        drawn=now.top1 if drawn is None else drawn,
        masked=live if masked is None else mask(masked, "m"),
        active=live,
        quota=torch.full((rows,), quota),
        rate=torch.full((rows,), rate),
        step=torch.full((rows,), step),
        progress=torch.full((rows,), progress),
        carry=carry,
        noise=noise,
        blockwise=blockwise,
        eos_ids=eos_ids,
    )


def committed(decision: Decision) -> str:
    """What a decision on one row commits, as text."""
    return drawing(decision.commit)
