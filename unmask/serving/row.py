"""A request on its way through the canvas: where it stands, and what it remembers."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from unmask.decoding.draw import RowNoise
from unmask.decoding.guidance import guide
from unmask.decoding.loop import Options
from unmask.decoding.result import Tally
from unmask.decoding.rows import Memory
from unmask.decoding.turns import Taken, Turn
from unmask.serving.job import Answer, Job, Snapshot
from unmask.serving.look import Look, look
from unmask.text.infill import close
from unmask.types import Decision, ModelInfo, Prediction, Sampler, Step


class Seat(NamedTuple):
    """A row's place in a memory that it shares with the rows it was last decided with."""

    memory: Memory
    row: int


NOTHING = Seat(Memory(), 0)
# what rows must have in common to be decided together: sampler, options, regime, width, columns without an
# end, leftovers or not, and how much they remember
Key: TypeAlias = tuple[Sampler, Options, bool, int, int, bool, int, bool, bool]


class Ruling(NamedTuple):
    """What was decided for one row, on the CPU."""

    commit: Tensor  # [1, W] bool
    eligible: Tensor  # [1, W] bool
    written: Tensor  # [1, W]
    forced: Tensor  # [1] bool
    broken: Tensor  # [1] bool


class Row:
    """One running request."""

    def __init__(self, job: Job, info: ModelInfo) -> None:
        work = job.work
        self.job = job
        self.work = work
        self.noise = RowNoise([work.seed])
        self.since = perf_counter()
        self.now: Prediction | None = None  # of the last forward, where the canvas has not changed since
        self.logits: Tensor | None = None  # [W, V], of a forward that nobody has looked at yet
        self.seat = NOTHING
        self._look: Look | None = None  # of the last step, where the reader asked for it
        self._tally = Tally(work.canvas, work.eos_ids)
        self._turns = work.options.course(info, work.canvas, work.sampler.needs, work.plan, work.done)
        self.turn: Turn | None = next(self._turns, None)

    @property
    def next(self) -> Turn:
        """The turn that is to be taken."""
        assert self.turn is not None, "a row that is done was asked for a turn"
        return self.turn

    @property
    def length(self) -> int:
        """Columns of its canvas."""
        return self.work.canvas.tokens.shape[1]

    @property
    def width(self) -> int:
        window = self.next.window
        return int(window.stop - window.start)

    @property
    def early(self) -> int:
        """The first window columns that may hold no end token."""
        return min(self.work.options.early(self.next.canvas, self.next.window), self.width)

    @property
    def key(self) -> Key:
        """Rows with the same key can be decided together."""
        work, memory = self.work, self.seat.memory
        return (
            work.sampler,
            work.options,
            work.plan.blockwise,
            self.width,
            self.early,
            self.next.leftover,
            len(memory.past),
            memory.seen is None,
            memory.carry is None,
        )

    def lanes(self) -> list[Tensor]:
        """The tokens [N] that a forward must see: the canvas, under guidance also without what was given."""
        tokens = self.next.canvas.tokens[0]
        if not self.work.guidance:
            return [tokens]
        return [tokens, tokens.masked_fill(self.work.given, self.next.canvas.mask_id)]

    def hear(self, said: Sequence[Tensor]) -> None:
        """Take the logits [W, V] of its lanes."""
        logits = said[0]
        if self.work.guidance:
            logits = guide(logits.float(), said[1].float(), self.work.guidance)
        if self.work.closed is not None:
            closed = self.work.closed[self.next.window].to(logits.device)
            logits = close(logits, self.work.ends, closed)
        self.logits = logits

    def see(self, now: Prediction, decision: Decision, row: int) -> None:
        """Look at what is decided for it, as row number `row`, if its reader asked to be shown that."""
        wanted = self.job.candidates
        if wanted:
            self._look = look(now, decision, row, candidates=wanted, before=self._look)

    def take(self, ruling: Ruling) -> Step:
        """Commit what was decided and move on to the next turn; raises on broken logits."""
        turn, view = self.next, self.next.view
        canvas = turn.canvas.commit(turn.window, ruling.commit, ruling.written)
        step = Step(
            turn.index,
            turn.number,
            turn.window,
            canvas.tokens,
            ruling.written,
            Decision(ruling.commit, ruling.eligible, ruling.forced),
            view.running,
            view.fresh,
            view.forward,
            leftover=turn.leftover,
        )
        try:
            self.turn = self._turns.send(Taken(canvas, ruling.commit.any(-1), ruling.broken))
        except StopIteration:
            self.turn = None
        self._tally.add(step)
        if self.job.is_watched:
            seen = (None, None) if self._look is None else (step, self._look)
            self.job.publish(Snapshot(turn.index, canvas.tokens[0], turn.window, ruling.written[0], *seen))
        if self.turn is not None and self.turn.number != turn.number and not self.work.sampler.needs.span:
            self.seat, self._look = NOTHING, None  # a new block starts a new history
        return step

    def answer(self) -> Answer:
        """What came of it, once no turn is left."""
        return self.work.report(self._tally.result(), since=self.since)


def gather(rows: Sequence[Row]) -> Memory:
    """One memory for all rows; the one they share already, where they are still the same rows."""
    seats = [row.seat for row in rows]
    shared = seats[0].memory
    if any(seat.memory is not shared for seat in seats):
        return Memory.join([_alone(seat) for seat in seats])
    places = [seat.row for seat in seats]
    if shared.seen is None or places == list(range(len(shared.seen))):
        return shared
    return shared.take(torch.tensor(places, device=shared.seen.device))


def _alone(seat: Seat) -> Memory:
    if seat.memory.seen is None:
        return seat.memory
    return seat.memory.take(torch.tensor([seat.row], device=seat.memory.seen.device))
