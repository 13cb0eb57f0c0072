"""Record a run in memory: the header of its trace, and a trace of each row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING

from unmask.samplers.wrapper import kind
from unmask.text.prompts import find_tokenizer
from unmask.trace import Change, Header, Trace, change, one_row, plain
from unmask.types import MaskedLM, Step

if TYPE_CHECKING:
    from unmask.text.generate import Run


def header_of(run: Run, *, sampler: str | None = None, model: str | None = None) -> Header:
    """Return the header of a run's trace; the names default to the sampler's class and the model's folder."""
    from unmask import __version__

    canvas, rows = run.canvas, run.canvas.tokens.tolist()
    return Header(
        version=__version__,
        sampler=sampler or kind(run.sampler),
        fields=plain(run.sampler),
        model=model or _model_name(run.model),
        seeds=run.seeds,
        start=canvas.start,
        padding=[0] * len(rows) if canvas.attend is None else (~canvas.attend).sum(-1).tolist(),
        mask_id=canvas.mask_id,
        blocks=[[block.columns.start, block.columns.stop, block.budget] for block in run.plan.blocks],
        blockwise=run.plan.blockwise,
        canvas=rows,
        end_ids=list(run.model.info.eos_ids),
    )


class Recorder:
    """Records the steps of a run while they are taken."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._header = header_of(run)
        self._changes: list[Change] = []

    def watch(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield the steps and record them."""
        for step in steps:
            self._changes.append(change(step, self._header.mask_id))
            yield step

    def traces(self) -> list[Trace]:
        """Return the trace of each row, with the texts of its tokens."""
        whole = Trace(self._header, tuple(self._changes))
        return [one_row(whole, row, self._spell) for row in range(len(self._header.canvas))]

    def _spell(self, token: int) -> str:
        return spell(self._run.model, [token])


def spell(model: MaskedLM, tokens: Sequence[int]) -> str:
    """Return the text of tokens, with special tokens if the tokenizer can; empty without a tokenizer."""
    tokenizer = find_tokenizer(model)
    if tokenizer is None:
        return ""
    options = {"skip_special": False} if _keeps_special(type(tokenizer)) else {}
    return tokenizer.decode(tokens, **options)


@cache
def _keeps_special(kind: type) -> bool:
    return "skip_special" in signature(kind.decode).parameters  # type: ignore[attr-defined]


def _model_name(model: MaskedLM) -> str:
    folder = getattr(model, "folder", None)
    return type(model).__name__ if folder is None else str(folder.name)
