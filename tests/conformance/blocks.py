"""Recorded runs of models that attend block by block, and of A2D, in our terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import dropwhile, groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.conformance import golden
from tests.conformance.references import Settings
from unmask import AppendCache, Base, Canvas, Editing, Options, QuotaThreshold, blank, denoise, plan
from unmask.types import BlockGrid, Cache, Decision, MaskedLM, ModelInfo, Needs, Observation, Sampler, Step


@dataclass(frozen=True)
class Replay:
    """One recorded run in our terms."""

    sampler: Sampler
    options: Options
    length: int
    steps: int  # of a block
    block_length: int  # of the plan
    grid: BlockGrid | None  # of the attention
    idle_steps: bool = False  # the reference counts steps that change nothing
    sub_block_cache: bool = False
    quits_late: bool = False  # the reference may go on with a text that has ended
    any_end: bool = False  # every end token of the model ends a text; else only the first of them
    blind_to_pads: bool = False  # the reference takes every pad token for padding


def replay(sampler: str, values: dict[str, Any], arrays: dict[str, np.ndarray]) -> Replay:
    """The run that a manifest entry describes."""
    settings = Settings(values)
    made = BUILDERS[sampler](settings, arrays)
    settings.check_all_read()
    return made


def sdar(settings: Settings, arrays: dict[str, np.ndarray]) -> Replay:
    settings.only("draw", "argmax", "recorded")
    settings.get("torch_seed")  # the draws themselves are recorded
    length, strategy = settings.get("block_length"), settings.get("remasking_strategy")
    given = {name: settings.get(name) for name in ("temperature", "top_p", "top_k")}
    filters = {name: value for name, value in given.items() if value is not None}
    threshold = settings.get("confidence_threshold")
    sampler: Sampler
    if strategy == "low_confidence_dynamic":
        sampler = QuotaThreshold(min_confidence=threshold, **filters)
    elif strategy in ("low_confidence_static", "sequential"):
        sampler = Base(order="left" if strategy == "sequential" else "confidence", **filters)
    else:
        golden.fail(f"the harness cannot replay remasking_strategy={strategy!r}")
    if settings.get("draw") == "recorded":
        sampler = Drawn(sampler, Base(**filters), arrays["drawn"], arrays["drawn_prob"])
    return Replay(
        sampler,
        released(schedule="block", stop_at_block_end=True),
        length=settings.get("gen_length"),
        steps=settings.get("denoising_steps"),
        block_length=length,
        grid=BlockGrid(length=length),
        any_end=True,
    )


def llada2(settings: Settings, arrays: dict[str, np.ndarray]) -> Replay:
    greedy(settings)
    length = settings.get("block_length")
    steps = min(settings.get("steps"), settings.get("gen_length") // settings.get("minimal_topk", 1))
    return Replay(
        QuotaThreshold(min_confidence=settings.get("threshold")),
        released(schedule="block", stop_at_block_end=not settings.get("eos_early_stop", False)),
        length=settings.get("gen_length"),
        steps=steps,
        block_length=length,
        grid=BlockGrid(length=length),
        quits_late=True,  # it looks for an end only in a step that writes an end token
    )


def llada21(settings: Settings, arrays: dict[str, np.ndarray]) -> Replay:
    greedy(settings)
    for name in ("steps", "minimal_topk"):  # ignored by the reference
        settings.get(name)
    length, post_steps = settings.get("block_length"), settings.get("max_post_steps", 16)
    sampler = Editing(
        min_confidence=settings.get("threshold"),
        edit_confidence=settings.get("editing_threshold"),
        at_least=settings.get("num_to_transfer", 1),
        max_post_steps=post_steps,
    )
    early = settings.get("eos_early_stop", False)
    return Replay(
        sampler,
        released(stop_at_eos=early, stop_at_block_end=True),
        length=settings.get("gen_length"),
        steps=length + post_steps,
        block_length=length,
        grid=BlockGrid(length=length),
        idle_steps=True,
    )


def bd3lm(settings: Settings, arrays: dict[str, np.ndarray]) -> Replay:
    greedy(settings)
    settings.only("method", "bd3lm", "mdlm")
    length, size = settings.get("max_new_tokens"), settings.get("block_size")
    in_blocks = settings.get("method") == "bd3lm"
    steps = -(-settings.get("steps") // -(-length // size))
    return Replay(
        Base(),
        released(schedule="remaining", stop_at_eos=in_blocks, stop_at_block_end=True),
        length=length,
        steps=steps,
        block_length=min(size, length),
        grid=BlockGrid(length=size, origin="canvas") if in_blocks else None,
        quits_late=in_blocks and len(arrays["x_init"]) > 1,  # it ends a batch with the last of its rows
        blind_to_pads=in_blocks,
    )


def fast_dllm_v2(settings: Settings, arrays: dict[str, np.ndarray]) -> Replay:
    greedy(settings)
    settings.only("function", "generate", "batch_sample")
    size = settings.get("block_size")
    settings.get("max_new_tokens")  # counts whole blocks, and the block that begins with prompt as one
    shortest = arrays.get("prompt_lens", np.array([arrays["prompt_ids"].shape[1]])).min()
    columns = arrays["x_steps"].shape[2] - 1  # the last token is that of a block never decoded
    return Replay(
        QuotaThreshold(min_confidence=settings.get("threshold"), at_least=1),
        released(),
        length=int(columns - shortest),
        steps=size,
        block_length=settings.get("small_block_size"),
        grid=BlockGrid(length=size, first_alone=True),
        sub_block_cache=settings.get("use_block_cache", False),
        quits_late=settings.get("function") == "batch_sample",  # it overlooks an end that begins a block
    )


def greedy(settings: Settings) -> None:
    """The best tokens are taken, so filters are without effect."""
    settings.only("temperature", 0)
    for name in ("top_p", "top_k"):
        settings.get(name)


def released(**options: Any) -> Options:
    return Options(**{"banned_ids": (), "stop_at_eos": True, "fill_leftovers": False, **options})


BUILDERS: dict[str, Callable[[Settings, dict[str, np.ndarray]], Replay]] = {
    "sdar_block": sdar,
    "llada2_block": llada2,
    "llada21_block_edit": llada21,
    "dllm_bd3lm": bd3lm,
    "dllm_mdlm": bd3lm,
    "fast_dllm_v2": fast_dllm_v2,
}


class Drawn:
    """A sampler that gets the recorded draws of a run in place of its own."""

    def __init__(self, sampler: Sampler, scores: Base, drawn: np.ndarray, probability: np.ndarray) -> None:
        self.sampler, self.scores = sampler, scores
        self._steps = iter(zip(drawn, probability, strict=True))

    @property
    def needs(self) -> Needs:
        return self.sampler.needs

    def decide(self, obs: Observation) -> Decision:
        drawn, probability = (torch.from_numpy(part)[None] for part in next(self._steps))
        tokens = torch.where(obs.active.cpu(), drawn, 0).long().to(obs.drawn.device)
        obs = replace(obs, drawn=tokens)
        ours, known = self.scores.score(obs).cpu(), obs.active.cpu()
        torch.testing.assert_close(ours[known], probability.float()[known], atol=1e-5, rtol=1e-4)
        return replace(self.sampler.decide(obs), tokens=tokens)


class BlindToPads:
    """A model that takes every pad token before the current block for padding. It uses no cache."""

    def __init__(self, model: MaskedLM) -> None:
        self.model = model

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        seen = tokens != self.info.pad_id
        seen[:, window.start :] = True
        return self.model(tokens, seen, window, None)


def prompts(arrays: dict[str, np.ndarray], pad_id: int) -> list[list[int]]:
    """The prompts of a run, without padding."""
    rows: list[list[int]] = arrays["prompt_ids"].tolist()
    if "prompt_lens" in arrays:
        return [row[:length] for row, length in zip(rows, arrays["prompt_lens"].tolist(), strict=True)]
    if "attention_mask" in arrays:
        real = arrays["attention_mask"].argmax(-1).tolist()
        return [row[first:] for row, first in zip(rows, real, strict=True)]
    if len(rows) == 1:  # not padded
        return rows
    return [list(dropwhile(lambda token: token == pad_id, row)) for row in rows]


def start(model: MaskedLM, run: Replay, arrays: dict[str, np.ndarray]) -> tuple[MaskedLM, Canvas]:
    """The model with the run's attention, and the canvas before the first step."""
    ends = model.info.eos_ids
    info = replace(model.info, grid=run.grid, eos_ids=ends if run.any_end else ends[:1])
    model.info = info  # type: ignore[misc]
    canvas = blank(
        prompts(arrays, info.pad_id),
        run.length,
        mask_id=info.mask_id,
        pad_id=info.pad_id,
        grid=run.grid,
        device=golden.DEVICE,
    )
    return model, canvas


def decoding(model: MaskedLM, run: Replay, arrays: dict[str, np.ndarray], *, cached: bool) -> Iterator[Step]:
    """Our steps."""
    model, canvas = start(model, run, arrays)
    columns = canvas.tokens.shape[1] - canvas.start
    grid = run.grid
    blocks = plan(
        canvas.start,
        columns,
        steps=run.steps * -(-columns // run.block_length),
        block_length=run.block_length,
        alone_every=grid.length if grid is not None and grid.first_alone else None,
        even=grid is None or not grid.first_alone,
    )
    sub_block = run.block_length if run.sub_block_cache else None
    exact = AppendCache(grid.length, sub_block=sub_block) if grid is not None else None
    cache = exact if cached or run.sub_block_cache else None
    padding = 0 if canvas.attend is None else int((~canvas.attend).sum())
    if run.blind_to_pads and (arrays["x_final"] == model.info.pad_id).sum() > padding:
        model, cache = BlindToPads(model), None
    return denoise(model, canvas, run.sampler, blocks, run.options, cache=cache)


def states(tokens: list[Tensor], *, idle_steps: bool) -> list[list[int]]:
    """The different states of a row in order, or all of them if steps that change nothing count."""
    rows = [row.tolist() for row in tokens]
    return rows if idle_steps else [state for state, _ in groupby(rows)]
