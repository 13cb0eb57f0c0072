"""Hold the rows of a batch to their languages: tokens that fit each column, commits that fit together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.constraints.automaton import TokenAutomaton
from unmask.constraints.reach import Columns, Machine
from unmask.decoding.bans import Allowed
from unmask.decoding.canvas import Canvas

FREE = -1  # the language of a row without a constraint


@dataclass(frozen=True, slots=True)
class Part:
    """One language, and the states that each row of the batch could be in."""

    machine: Machine
    left: Tensor | None = None  # [B, S], states before the window
    right: Tensor | None = None  # [B, S], states after it from which the end can be reached


@dataclass(frozen=True, slots=True)
class Fitting:
    """The languages of the rows of a batch, in the window that is decoded."""

    parts: tuple[Part, ...]
    which: Tensor  # [B], the number of each row's language, or FREE
    first: int  # the first column of the text
    last: Tensor | None = None  # [N] bool, the last columns of gaps; None for a generation
    outside: Tensor | None = None  # [B, N] bool, columns that are not part of the text
    window: slice | None = None

    @staticmethod
    def of(
        automata: Sequence[TokenAutomaton | None], canvas: Canvas, first: int, last: Tensor | None = None
    ) -> Fitting:
        """Return the languages of rows. None in `automata` means any text."""
        device, kinds = (
            canvas.tokens.device,
            list(dict.fromkeys(each for each in automata if each is not None)),
        )
        which = [FREE if each is None else kinds.index(each) for each in automata]
        machines = [machine_of(each.to(device), gaps=last is not None) for each in kinds]
        return Fitting(tuple(map(Part, machines)), torch.tensor(which, device=device), first, last)

    def take(self, rows: Tensor | slice) -> Fitting:
        """Return the languages of some rows."""
        return self._each(lambda tensor: tensor[rows])

    def repeat(self, copies: int) -> Fitting:
        """Return the languages of rows that are each repeated in place."""
        return self._each(lambda tensor: tensor.repeat_interleave(copies, dim=0))

    def to(self, device: torch.device | str) -> Fitting:
        """Return the same languages on another device, without a window."""
        where = torch.device(device)
        gaps = self.last is not None
        parts = [Part(machine_of(part.machine.automaton.to(where), gaps=gaps)) for part in self.parts]
        last = None if self.last is None else self.last.to(where)
        outside = None if self.outside is None else self.outside.to(where)
        which = self.which.to(where)
        return replace(self, parts=tuple(parts), which=which, last=last, outside=outside, window=None)

    def _each(self, work: Callable[[Tensor], Tensor]) -> Fitting:
        sides = [
            [side if side is None else work(side) for side in (part.left, part.right)] for part in self.parts
        ]
        parts = [Part(part.machine, *both) for part, both in zip(self.parts, sides, strict=True)]
        outside = None if self.outside is None else work(self.outside)
        return replace(self, parts=tuple(parts), which=work(self.which), outside=outside)

    def focus(self, canvas: Canvas, closed: Tensor | None, window: slice) -> Fitting:
        """Return the languages after reading the columns outside the window, which must not change."""
        rows, end = canvas.tokens.shape
        parts = []
        for part in self.parts:
            machine = part.machine
            start = torch.zeros(rows, machine.states, dtype=machine.dtype, device=canvas.tokens.device)
            start[:, 0] = 1
            accept = machine.accept.to(machine.dtype).expand(rows, -1)
            before = self._columns(machine, canvas, closed, slice(self.first, window.start))
            behind = self._columns(machine, canvas, closed, slice(window.stop, end))
            left, right = before.end(machine, start), behind.backward(machine, accept)[:, 0]
            parts.append(Part(machine, left, right))
        return replace(self, parts=tuple(parts), window=window)

    def allowed(self, canvas: Canvas, closed: Tensor | None) -> Allowed:
        """Return the tokens that each column of the window can have in some text that fits."""
        most = max(part.machine.next.shape[1] for part in self.parts)
        window, free = self._window, self.which == FREE
        classes = free[:, None, None].expand(-1, window.stop - window.start, most)
        for number, part in enumerate(self.parts):
            columns = self._columns(part.machine, canvas, closed, window)
            before, behind = (
                columns.forward(part.machine, _of(part.left)),
                columns.backward(part.machine, _of(part.right)),
            )
            own = columns.classes(part.machine, before, behind)
            padded = torch.nn.functional.pad(own, (0, most - own.shape[-1]))
            classes = torch.where((self.which == number)[:, None, None], padded, classes)
        kinds = torch.stack([part.machine.kinds for part in self.parts])
        return Allowed(classes, kinds, self.which.clamp(min=0))

    def admit(
        self,
        canvas: Canvas,
        closed: Tensor | None,
        tokens: Tensor,
        wanted: Tensor,
        confidence: Callable[[], Tensor],
    ) -> Tensor:
        """Return the wanted columns [B, W] whose tokens [B, W] fit together, the most confident first.

        The canvas has masks where it may change. Each token fits on its own, so a row that wants some gets at
        least one.
        """
        window = self._window
        now = canvas.tokens[:, window]
        wanted_tokens = torch.where(wanted, tokens, now)
        if bool(self._fits(canvas, closed, wanted_tokens).all()):
            return wanted
        score = confidence().to(now.device).masked_fill(~wanted, -torch.inf)
        order = score.argsort(dim=-1, descending=True, stable=True)
        admitted = torch.zeros_like(wanted)
        for column in order[:, : int(wanted.sum(-1).max())].T:
            chosen = torch.zeros_like(wanted).scatter(1, column[:, None], True) & wanted
            trial = torch.where(chosen, tokens, now)
            fits = self._fits(canvas, closed, trial)[:, None]
            now = torch.where(fits, trial, now)
            admitted = admitted | (chosen & fits)
        return admitted

    def shortest(self, canvas: Canvas, closed: Tensor | None) -> list[int | None]:
        """Return the fewest tokens that each row's language needs, or None if a text fits the row."""
        end = canvas.tokens.shape[1]
        whole = self.focus(canvas, closed, slice(end, end))
        fits = whole._fits(canvas, closed, canvas.tokens[:, end:]).tolist()
        needs = [int(part.machine.distance[0]) for part in self.parts]
        return [None if fit else needs[which] for fit, which in zip(fits, self.which.tolist(), strict=True)]

    def _fits(self, canvas: Canvas, closed: Tensor | None, tokens: Tensor) -> Tensor:
        """Return the rows [B] that still have a text that fits, with these tokens [B, W] in the window."""
        fits = self.which == FREE
        for number, part in enumerate(self.parts):
            trial = canvas.commit(self._window, torch.ones_like(tokens, dtype=torch.bool), tokens)
            columns = self._columns(part.machine, trial, closed, self._window)
            reached = columns.end(part.machine, _of(part.left))
            own = (reached * _of(part.right)).sum(-1) > 0
            fits = torch.where(self.which == number, own, fits)
        return fits

    def _columns(self, machine: Machine, canvas: Canvas, closed: Tensor | None, window: slice) -> Columns:
        tokens = canvas.tokens[:, window]
        if closed is None:
            closed = torch.zeros(1, canvas.tokens.shape[1], dtype=torch.bool, device=tokens.device)
        last = None if self.last is None else self.last[window]
        outside = None if self.outside is None else self.outside[:, window]
        return Columns.read(machine, tokens, canvas.mask_id, closed[:, window], last, outside)

    @property
    def _window(self) -> slice:
        assert self.window is not None, "focus comes first"
        return self.window


def _of(sets: Tensor | None) -> Tensor:
    assert sets is not None, "focus comes first"
    return sets


def machine_of(automaton: TokenAutomaton, *, gaps: bool) -> Machine:
    """Return the machine of an automaton, the same one every time."""
    if gaps not in automaton.machines:
        automaton.machines[gaps] = Machine(automaton, gaps=gaps)
    machine: Machine = automaton.machines[gaps]
    return machine
