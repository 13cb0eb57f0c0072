"""Which states a canvas can be in: forward from its beginning, backward from its end.

A token fits a column if it leads from a state that the columns before it reach to a state from which the
columns after it reach the end. Masks are wildcards. So each token is judged by the whole canvas, in any order
of commits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from unmask.constraints.automaton import END, TokenAutomaton
from unmask.constraints.scan import MAX_NUMBERS, Tree


class Machine:
    """An automaton over the columns of a canvas, which also reads end tokens.

    In a generation, an end token leads from an accepting state to an end state, which allows only end tokens.
    In gaps, each state has a twin. An end token leads to the twin, and the gap's last column leads back.
    """

    def __init__(self, automaton: TokenAutomaton, *, gaps: bool) -> None:
        moves, accept = automaton.next, automaton.accept
        self.gaps = gaps
        self.automaton = automaton
        self.kinds = automaton.kinds
        states, dead = len(moves), len(moves) - 1
        if gaps:
            twins = torch.full_like(moves, 2 * states - 1)
            moves = moves.masked_fill(moves == dead, 2 * states - 1)
            twin = torch.arange(states, 2 * states, device=moves.device)
            moves[:, END] = twins[:, END] = twin
            moves[dead, END] = 2 * states - 1
            self.next = torch.cat([moves, twins])
            self.accept = torch.cat([accept, torch.zeros_like(accept)])
        else:
            self.next = torch.cat([moves, moves[-1:]])  # the end state, then the dead one
            self.next = self.next.masked_fill(self.next == dead, states)
            ends = torch.where(accept, dead, states)
            self.next[:, END] = torch.cat([ends, ends.new_tensor([states])])
            self.next[dead, END] = dead
            self.accept = torch.cat([accept, torch.zeros_like(accept[:1])])
            self.accept[dead] = True

    @property
    def states(self) -> int:
        return len(self.next)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of sets of zeros and ones, and of their sums, which are only compared with zero."""
        return torch.bfloat16 if self.next.is_cuda else torch.float32

    @cached_property
    def steps(self) -> Tensor:
        """Which state leads to which, [2, S, S] float: by any token, and by any except end tokens."""
        table = torch.zeros(2, self.states, self.states, dtype=self.dtype, device=self.next.device)
        for kind, moves in enumerate(
            (self.next, torch.cat([self.next[:, :END], self.next[:, END + 1 :]], 1))
        ):
            table[kind].scatter_(1, moves, 1.0)
        table[:, :, -1] = 0
        return table

    @cached_property
    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """All pairs of states that some class connects, [E] and [E], and which classes do, [E, C] float."""
        states, classes = self.next.shape
        source = torch.arange(states, device=self.next.device)[:, None].expand(-1, classes)
        alive = self.next != states - 1
        kind = torch.arange(classes, device=self.next.device).expand(states, -1)[alive]
        pairs, which = torch.unique((source * states + self.next)[alive], return_inverse=True)
        table = torch.zeros(len(pairs), classes, dtype=self.dtype, device=self.next.device)
        table[which, kind] = 1.0
        return pairs // states, pairs % states, table

    def fold(self, sets: Tensor) -> Tensor:
        """Return the sets of states [..., S] after a gap's last column, where twins are states again."""
        half = self.states // 2
        first = (sets[..., :half] + sets[..., half:]).clamp(max=1)
        return torch.cat([first, torch.zeros_like(first)], dim=-1)

    def unfold(self, sets: Tensor) -> Tensor:
        """Return the sets of states [..., S] before a gap's last column ends, from those after it."""
        half = self.states // 2
        both = torch.cat([sets[..., :half], sets[..., :half]], dim=-1)
        both[..., -1] = 0
        return both

    @cached_property
    def distance(self) -> Tensor:
        """Fewest tokens from each state to an accepting one, [S], or -1 if there is no way."""
        far = torch.where(self.accept, 0, -1)
        step = 0
        reached = self.accept.to(self.dtype)
        while True:
            step += 1
            more = ((self.steps[1] @ reached) > 0) | (reached > 0)
            new = more & (far < 0)
            if not new.any():
                return far
            far[new] = step
            reached = more.to(self.dtype)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of some rows, as a machine reads them."""

    moves: Tensor  # [B, W, S], where the column's token moves each state
    masked: Tensor  # [B, W] bool
    closed: Tensor  # [1 or B, W] bool, columns that allow no end token
    last: Tensor | None  # [W] bool, the last column of a gap
    outside: Tensor | None  # [B, W] bool, columns that are not part of the text
    tree: Tree | None = None  # only on a GPU
    mixed: list[tuple[bool, bool]] = field(default_factory=list)  # per column: any row masked, any not

    @staticmethod
    def read(
        machine: Machine,
        tokens: Tensor,
        mask_id: int,
        closed: Tensor,
        last: Tensor | None = None,
        outside: Tensor | None = None,
    ) -> Columns:
        """Read tokens [B, W]."""
        masked = tokens == mask_id
        moves = machine.next.T[machine.kinds[tokens]]
        if outside is not None:
            masked = masked & ~outside
            same = torch.arange(machine.states, device=tokens.device)
            moves = torch.where(outside[..., None], same, moves)
        if not tokens.is_cuda:
            mixed = list(zip(masked.any(0).tolist(), (~masked).any(0).tolist(), strict=True))
            return Columns(moves, masked, closed, last, outside, mixed=mixed)
        # to know which columns are masked, the host would have to wait
        mixed = [(True, True)] * tokens.shape[1]
        columns = Columns(moves, masked, closed, last, outside, mixed=mixed)
        if 0 < moves.numel() * machine.states <= MAX_NUMBERS:
            columns = replace(columns, tree=Tree(columns.matrices(machine)))
        return columns

    def matrices(self, machine: Machine) -> Tensor:
        """Return which state leads to which in each column, [B, W, S, S]: zeros and ones."""
        fixed = torch.zeros(*self.moves.shape, machine.states, dtype=machine.dtype, device=self.moves.device)
        fixed.scatter_(-1, self.moves[..., None], 1.0)
        both = torch.where(self.masked[..., None, None], machine.steps[self.closed.long()], fixed)
        return both if self.last is None else torch.where(self.last[:, None, None], machine.fold(both), both)

    def forward(self, machine: Machine, sets: Tensor) -> Tensor:
        """Return the states before and after each column, [B, W + 1, S], from those before the first."""
        if self.tree is not None:
            return self.tree.forward(sets)
        out = [sets]
        steps = self._steps(machine)
        for column, (some_masked, some_fixed) in enumerate(self.mixed):
            after = spread = fixed = sets
            if some_masked:
                after = spread = _step(sets, steps[column])
            if some_fixed:
                after = fixed = torch.zeros_like(sets).scatter_reduce_(1, self.moves[:, column], sets, "amax")
            if some_masked and some_fixed:
                after = torch.where(self.masked[:, column, None], spread, fixed)
            if self.last is not None:
                after = torch.where(self.last[column], machine.fold(after), after)
            sets = after
            out.append(sets)
        return torch.stack(out, dim=1)

    def end(self, machine: Machine, sets: Tensor) -> Tensor:
        """Return the states after the last column, [B, S], from those before the first."""
        return self.forward(machine, sets)[:, -1] if self.tree is None else self.tree.end(sets)

    def backward(self, machine: Machine, sets: Tensor) -> Tensor:
        """Return the states before and after each column, [B, W + 1, S], from those after the last."""
        if self.tree is not None:
            return self.tree.backward(sets)
        out = [sets]
        steps = self._steps(machine)
        for column, (some_masked, some_fixed) in reversed(list(enumerate(self.mixed))):
            if self.last is not None:
                sets = torch.where(self.last[column], machine.unfold(sets), sets)
            before = spread = fixed = sets
            if some_masked:
                before = spread = _step(sets, steps[column].mT)
            if some_fixed:
                before = fixed = sets.gather(1, self.moves[:, column])
            if some_masked and some_fixed:
                before = torch.where(self.masked[:, column, None], spread, fixed)
            sets = before
            out.append(sets)
        return torch.stack(out[::-1], dim=1)

    def _steps(self, machine: Machine) -> list[Tensor]:
        """Return the matrix of each column, [S, S] or [B, S, S]."""
        opened, closing = machine.steps
        if len(self.closed) > 1:
            return [machine.steps[each.long()] for each in self.closed.T]
        flags = self.closed[0]
        if flags.is_cuda:
            return [torch.where(flag, closing, opened) for flag in flags]
        return [closing if flag else opened for flag in flags.tolist()]

    def classes(self, machine: Machine, before: Tensor, behind: Tensor) -> Tensor:
        """Return the classes of tokens that fit each column, [B, W, C] bool.

        `before` and `behind` [B, W + 1, S] are the reachable sets of `forward` and `backward`.
        """
        source, target, table = machine.edges
        behind = behind[:, 1:]
        if self.last is not None:
            behind = torch.where(self.last[:, None], machine.unfold(behind), behind)
        fits = (before[:, :-1, source] * behind[:, :, target]) @ table > 0
        fits[..., END] &= ~self.closed
        return fits if self.outside is None else fits | self.outside[..., None]


def _step(sets: Tensor, table: Tensor) -> Tensor:
    """Return the states [B, S] that a table [S, S] or [B, S, S] leads to."""
    reached = sets @ table if table.ndim == 2 else (sets[:, None] @ table)[:, 0]
    return reached.clamp_(max=1)
