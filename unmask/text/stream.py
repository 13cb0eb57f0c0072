"""Stream one text while it is decoded: final text at once, the rest as a draft."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from time import perf_counter
from typing import Any

from unmask.text.config import GenerationConfig
from unmask.text.end_of_text import Ending
from unmask.text.generate import DEFAULT_CONFIG, DEFAULT_SAMPLER, Generation, Prepared, choose, prepare
from unmask.text.prompts import Prompt
from unmask.types import MaskedLM, Sampler, Step


@dataclass(frozen=True, slots=True)
class Chunk:
    """One part of a streamed text.

    Attributes:
        text: Final text, which follows that of the earlier chunks.
        draft: The rest of the canvas, which may still change; None without `drafts`.
        step: Number of the step, from 1.
        generation: The whole answer, in the last chunk only; None before.
    """

    text: str
    draft: str | None
    step: int
    generation: Generation | None = None


def stream(
    model: MaskedLM,
    prompt: Prompt,
    sampler: str | Sampler = DEFAULT_SAMPLER,
    config: GenerationConfig = DEFAULT_CONFIG,
    *,
    drafts: bool = False,
    placeholder: str = "░",
    **settings: Any,
) -> Iterator[Chunk]:
    """Yield the answer to one prompt in chunks, each as soon as no mask is left before its end.

    A sampler that may revoke its commits makes a chunk final only when its block is complete.

    With `drafts` there is a chunk for every step, and its draft shows `placeholder` for each mask.
    A model without a tokenizer needs token ids; texts are then empty, and the last chunk has the token ids.
    `sampler` and `settings` are as in `generate`.
    """
    batch = prepare(model, [prompt], *choose(sampler, config, settings))
    return chunks(batch, batch.steps, placeholder if drafts else None)


def chunks(batch: Prepared, steps: Iterable[Step], placeholder: str | None) -> Iterator[Chunk]:
    """Yield the chunks of a batch of one; without a `placeholder` there are no drafts."""
    since, final, taken = perf_counter(), FinalText(batch.ending), list[Step]()
    [start] = batch.canvas.starts
    for step in steps:
        taken.append(step)
        generated = step.tokens[0, start : start + batch.length].tolist()
        text = final.read(generated[: settled(step, start)])
        draft = None if placeholder is None else _draft(batch.ending, generated, placeholder)[final.sent :]
        if text or draft is not None:
            yield Chunk(text, draft, step.index)
    [generation] = batch.read(taken, since=since)
    last = "" if placeholder is not None else None
    yield Chunk(generation.text[final.sent :], last, generation.steps, generation)


class FinalText:
    """Reads the final text of a row piece by piece."""

    def __init__(self, ending: Ending) -> None:
        self.sent = 0  # number of characters sent
        self._ending = ending
        self._ids = 0  # number of final tokens read so far

    def read(self, generated: list[int]) -> str:
        """Return the text that has become final since the last call."""
        ids = self._ending.final_ids(generated)
        if len(ids) == self._ids:
            return ""
        self._ids = len(ids)
        final = self._ending.final_text(ids)
        text = final[self.sent : self._ending.sendable(final)]
        self.sent += len(text)
        return text


def settled(step: Step, start: int) -> int | None:
    """Return how many generated columns no later step can revoke, or None if all of them are final."""
    return None if step.revocable is None else max(0, step.revocable.start - start)


def _draft(ending: Ending, generated: list[int], placeholder: str) -> str:
    """Return the current text, up to its first end token and its earliest stop string."""
    shown = next((i for i, token in enumerate(generated) if token in ending.eos_ids), len(generated))
    runs = groupby(generated[:shown], key=lambda token: token == ending.mask_id)
    text = "".join(placeholder * len(list(run)) if masked else ending.decode(run) for masked, run in runs)
    return text[: ending.first_stop(text)]
