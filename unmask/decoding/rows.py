"""The state of a batch while it is decoded: its canvas, its history, and the effect of the last step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from unmask.decoding.bans import Bans, Language
from unmask.decoding.canvas import Canvas, ended, hide
from unmask.decoding.options import Options
from unmask.decoding.overlap import OpenBlocks
from unmask.decoding.plan import Block, Overlap, Plan
from unmask.types import ModelInfo, Needs, Prediction, Step

if TYPE_CHECKING:
    from unmask.decoding.observe import Outcome
    from unmask.decoding.turns import Turn

Stop = Callable[[Tensor], Tensor]  # tokens [B, N] -> rows [B] bool that never need another step


class Written(NamedTuple):
    """The tokens of a window, and the columns that may still change."""

    tokens: Tensor  # [B, W]
    revocable: Tensor  # [B, W] bool


@dataclass(frozen=True, slots=True)
class History:
    """Earlier predictions of some rows, and the carry of their sampler."""

    past: tuple[Prediction, ...] = ()  # newest first
    seen: Tensor | None = None  # [B] steps that the row has taken; None before the first
    carry: Tensor | None = None  # [B, ...] Decision.carry of the last step

    def push(self, now: Prediction, carry: Tensor | None, needs: Needs, running: Tensor | None) -> History:
        """Return the history after one more step of the rows `running` [B], or of all rows if it is None."""
        past: tuple[Prediction, ...] = ()
        if needs.lookback:
            kept = now if needs.logits or needs.gather_logits else now.without_logits()
            past = (kept, *self.past)[: needs.lookback]
        # a row that idles now may run in a later block, and its history lasts until then only with `span`
        if running is not None and needs.span:
            merged = tuple(new.where(running, old) for new, old in zip(past, self.past, strict=False))
            past = merged + past[len(merged) :]
            if carry is not None and self.carry is not None:
                carry = torch.where(running.view(-1, *[1] * (carry.ndim - 1)), carry, self.carry)
        seen = torch.zeros_like(now.top1[:, 0]) if self.seen is None else self.seen
        return History(past, seen + (1 if running is None else running.long()), carry)

    @staticmethod
    def join(parts: Sequence[History]) -> History:
        """Stack several histories of one row each and of equal depth."""
        if len(parts) == 1:
            return parts[0]
        seen = [part.seen for part in parts if part.seen is not None]
        if seen:
            none = torch.zeros_like(seen[0])
            seen = [none if part.seen is None else part.seen for part in parts]
        carry = [part.carry for part in parts if part.carry is not None]
        return History(
            tuple(Prediction.join(before) for before in zip(*(part.past for part in parts), strict=True)),
            torch.cat(seen) if seen else None,
            torch.cat(carry) if carry else None,
        )


@dataclass(slots=True)
class Rows:
    """A batch while it is decoded, and its settings. `commit` applies one step after another."""

    canvas: Canvas
    needs: Needs  # needs of the sampler
    options: Options
    info: ModelInfo
    stop: Stop | None = None
    bans: Bans | None = None  # bans of the current block; None means those of the executor
    steps: int = 0  # steps taken so far
    history: History = History()
    prediction: Prediction | None = None  # the last prediction of every row
    guesses: Tensor | None = None  # [B] guesses that ran beside each row in the last forward; None means none
    changed: Tensor | None = None  # [B] bool, rows that the last step changed; None means all
    broken: Tensor | None = None  # [B] bool, rows whose last logits were not finite
    stopped: Tensor | None = None  # [B] bool, rows that `stop` has ended
    resting: Tensor | None = None  # [B] bool, rows that have spent their budget and wait; None means none
    open: Tensor | None = None  # [B] bool, rows that continue a block without masks
    open_blocks: OpenBlocks | None = None  # the blocks that are open, if blocks overlap
    given: Tensor | None = field(init=False)  # [B, N] bool, tokens that must not be revoked
    in_prompt: Tensor | None = field(init=False)  # [B, L] bool, columns from `start` on in a prompt
    eos_ids: tuple[int, ...] = field(init=False)  # tokens that end a row
    reuse: bool = field(init=False)  # an unchanged row needs no new forward

    def __post_init__(self) -> None:
        self.in_prompt = self.canvas.in_prompt
        self.eos_ids = self.info.eos_ids if self.options.stop_at_eos else ()
        self.reuse = self.options.reuse and self.info.deterministic
        self.given = ~self.canvas.masked(slice(None)) if self.needs.revoke else None
        self.look_for_stops(self.canvas.tokens)

    @property
    def language(self) -> Language | None:
        """The texts that the rows may become, or None for any."""
        return None if self.bans is None else self.bans.language

    def let_blocks_overlap(self, overlap: Overlap) -> None:
        """Open the first of several blocks; the others follow as it fills."""
        tokens = self.canvas.tokens
        self.open_blocks = OpenBlocks(overlap.parts, overlap.at, len(tokens), tokens.device)

    @property
    def idle(self) -> Tensor | None:
        """The rows [B] that take no step now, because `stop` has ended them or they rest. None means none."""
        if self.stopped is None or self.resting is None:
            return self.resting if self.stopped is None else self.stopped
        return self.stopped | self.resting

    def own_columns(self, plan: Plan) -> list[int] | None:
        """Return how many columns of the plan each row has, or None if every row has all of them.

        If a model attends block by block, a batch may have one block more than some of its rows.
        """
        if self.canvas.trailing is None:
            return None
        columns = plan.columns
        return [min(max(1, end - columns.start), columns.stop - columns.start) for end in self.canvas.ends]

    def start_block(self, window: slice, block: Block) -> None:
        """Start a block, with a new history unless the sampler's history spans all blocks."""
        self.changed = self.open = None
        if self.needs.revoke:
            tokens = self.canvas.tokens.clone()
            tokens[:, block.columns.start :] = self.canvas.mask_id  # these columns are not final yet
            self.look_for_stops(tokens)
        if self.bans is not None:
            self.bans = self.bans.focus(self.canvas, window)
        if not self.needs.span:
            self.history = History()

    def look_for_stops(self, tokens: Tensor) -> None:
        """End the rows that `stop` ends at these tokens [B, N]."""
        if self.stop is not None:
            now = self.stop(tokens)
            self.stopped = now if self.stopped is None else self.stopped | now

    def ending_in(self, block: Block) -> Tensor:
        """Return the generated tokens [B, L] among which an end token ends its row now."""
        tokens, start = self.canvas.tokens, self.canvas.start
        if not self.eos_ids:
            return tokens[:, :0]
        generated = hide(tokens[:, start:], self.in_prompt)
        if self.options.stop_at_block_end or self.needs.whole_blocks:
            return generated[:, : block.columns.start - start]
        return generated

    def unfinished(self, block: Block) -> Tensor:
        """Return the rows [B] that have masks left and have not ended."""
        left = self.canvas.masked(slice(self.canvas.start, None)).any(-1)
        if self.eos_ids:
            left = left & ~ended(self.ending_in(block), self.canvas.mask_id, self.eos_ids).any(-1)
        return left if self.stopped is None else left & ~self.stopped

    def written(self, turn: Turn) -> Written | None:
        """Return the window's tokens and which may be revoked, or None if the sampler never revokes."""
        if self.given is None:
            return None
        tokens, columns = self.canvas.tokens, turn.block.columns
        revocable = torch.zeros_like(self.given)
        revocable[:, columns] = ~self.given[:, columns] & (tokens[:, columns] != self.canvas.mask_id)
        return Written(tokens[:, turn.window], revocable[:, turn.window])

    def _unless_resting(self, now: Tensor, before: Tensor | None) -> Tensor:
        """Return new flags of the rows [B], but the last ones of rows that rest."""
        return now if self.resting is None or before is None else torch.where(self.resting, before, now)

    def admit(self, language: Language, turn: Turn, prediction: Prediction, outcome: Outcome) -> Outcome:
        """Return the outcome with the commits that fit the language together; the others wait."""
        assert self.bans is not None
        decision, canvas = outcome.decision, self.canvas
        assert decision.tokens is not None, "an outcome names its tokens"
        wanted = decision.commit if decision.rewrite is None else decision.commit | decision.rewrite
        if decision.revoke is not None:
            masks = torch.full_like(decision.tokens, canvas.mask_id)
            canvas = canvas.commit(turn.window, decision.revoke, masks)
        kept = language.admit(
            canvas, self.bans.closed, decision.tokens, wanted, lambda: prediction.top_probs[..., 0]
        )
        rewrite = None if decision.rewrite is None else decision.rewrite & kept
        changed = kept if decision.revoke is None else kept | decision.revoke
        refused = wanted & ~kept
        decision = replace(
            decision,
            commit=kept if rewrite is None else kept & ~rewrite,
            eligible=decision.eligible & ~refused,
            rewrite=rewrite,
            signals={**decision.signals, "constraint": refused},
        )
        return outcome._replace(decision=decision, changed=changed.any(-1))

    def commit(self, turn: Turn, prediction: Prediction, outcome: Outcome) -> Step:
        """Write a decision to the canvas, remember it, and return the step."""
        if self.language is not None:
            outcome = self.admit(self.language, turn, prediction, outcome)
        decision, window = outcome.decision, turn.window
        assert decision.tokens is not None, "an outcome names its tokens"
        where = decision.commit if decision.rewrite is None else decision.commit | decision.rewrite
        self.canvas = self.canvas.commit(window, where, decision.tokens)
        if decision.revoke is not None:
            masks = torch.full_like(decision.tokens, self.canvas.mask_id)
            self.canvas = self.canvas.commit(window, decision.revoke, masks)
        if self.open_blocks is not None:
            self.open_blocks.advance(self.canvas.masked(window))
        self.steps, self.broken = turn.index, outcome.broken
        self.changed = self._unless_resting(outcome.changed, self.changed)
        if not turn.leftover:
            running = None if turn.todo.num_running == len(turn.todo.running) else turn.todo.running
            self.history = self.history.push(prediction, decision.carry, self.needs, running)
        goes_on = None if decision.open is None else decision.open & turn.todo.running
        self.open = None if goes_on is None else self._unless_resting(goes_on, self.open)
        if not self.needs.revoke:
            self.look_for_stops(self.canvas.tokens)
        return Step(
            turn.index,
            turn.number,
            window,
            self.canvas.tokens,
            decision.tokens,
            decision,
            turn.todo.running,
            turn.todo.fresh,
            forward=turn.todo.num_fresh > 0,
            leftover=turn.leftover,
            revocable=turn.block.columns if self.needs.revoke else None,
            guesses=self.guesses,
        )
