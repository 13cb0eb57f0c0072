"""Rows together: one forward over all of them, one decision for those that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.decoding.checks import checked_logits
from unmask.decoding.draw import NoiseSource, RowNoise
from unmask.decoding.observe import decide, fill, settle
from unmask.decoding.rows import predict
from unmask.decoding.turns import View
from unmask.serving.row import Row, Ruling, Seat, gather
from unmask.types import MaskedLM, ModelInfo, Prediction

SHORTEST = 0.75  # of the longest row of a forward


class Lane(NamedTuple):
    """One row of a forward."""

    tokens: Tensor  # [N] on the CPU
    window: slice  # the columns whose logits are wanted


def forward(model: MaskedLM, lanes: Sequence[Lane], device: torch.device) -> list[Tensor]:
    """Logits [W, V] of every lane's window.

    Lanes end in the same column, so the canvas is as short as the longest of them and its window lies within
    the longest generation.
    """
    length = max(len(lane.tokens) for lane in lanes)
    shifts = [length - len(lane.tokens) for lane in lanes]
    tokens = torch.full((len(lanes), length), model.info.pad_id)
    for row, (lane, shift) in enumerate(zip(lanes, shifts, strict=True)):
        tokens[row, shift:] = lane.tokens
    attend = torch.arange(length) >= torch.tensor(shifts)[:, None] if any(shifts) else None
    moved = [
        slice(lane.window.start + shift, lane.window.stop + shift)
        for lane, shift in zip(lanes, shifts, strict=True)
    ]
    window = slice(min(part.start for part in moved), max(part.stop for part in moved))
    with torch.no_grad():
        said = model(tokens.to(device), None if attend is None else attend.to(device), window, None)
    logits = checked_logits(said, len(lanes), window.stop - window.start, model.info)
    return [
        row[part.start - window.start : part.stop - window.start]
        for row, part in zip(logits, moved, strict=True)
    ]


def by_length(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that are worth one forward: none is much shorter than the longest, to which all are padded."""
    groups: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: row.length, reverse=True):
        if groups and row.length >= SHORTEST * groups[-1][0].length:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def run_model(model: MaskedLM, rows: Sequence[Row], device: torch.device) -> None:
    """One forward over all rows; each takes its logits."""
    lanes = [[Lane(tokens, row.next.window) for tokens in row.lanes()] for row in rows]
    said = iter(forward(model, [lane for own in lanes for lane in own], device))
    for row, own in zip(rows, lanes, strict=True):
        row.hear([next(said) for _ in own])


class Group:
    """Rows that are decided together, and what they see."""

    def __init__(self, rows: Sequence[Row], info: ModelInfo, device: torch.device) -> None:
        new, old = (
            [row for row in rows if row.logits is not None],
            [row for row in rows if row.logits is None],
        )
        self.rows = [*new, *old]
        self._info, self._device = info, device
        parts = [self._predict(new)] if new else []
        parts += [row.now for row in old if row.now is not None]
        self.now = parts[0] if len(parts) == 1 else Prediction.join(parts)
        self._draws = self._draw()

    def _predict(self, rows: Sequence[Row]) -> Prediction:
        """What the logits of these rows say; the rows let go of them."""
        first = rows[0]
        options = first.work.options
        prediction = predict(
            torch.stack([row.logits for row in rows if row.logits is not None]),
            top_k=first.work.sampler.needs.top_k,
            banned=options.banned(self._info),
            early=first.early,
            eos_ids=self._info.eos_ids,
        )
        for row in rows:
            row.logits = None
        return prediction

    def _draw(self) -> list[Tensor]:
        """The random numbers of this step, drawn once: a decision that is taken again must see the same."""
        first = self.rows[0]
        wanted = 0 if first.next.leftover else _draws(first)
        noise = RowNoise.join([row.noise for row in self.rows])
        everyone = torch.ones(len(self.rows), dtype=torch.bool)
        return [noise(everyone, first.width).to(self._device) for _ in range(wanted)]

    def decide(self) -> Tensor:
        """The decision on all rows, packed for one transfer, [rows, 3 W + 2]; rows remember it."""
        return self._decide(self.rows, self.now, self._draws)

    def decide_alone(self, row: Row) -> Tensor:
        """The decision on one of the rows, [1, 3 W + 2]."""
        place = self.rows.index(row)
        at = torch.tensor([place], device=self.now.lse.device)
        return self._decide([row], self.now.take(at), [noise[place : place + 1] for noise in self._draws])

    def _decide(self, rows: Sequence[Row], now: Prediction, draws: Sequence[Tensor]) -> Tensor:
        work, view = rows[0].work, _view(rows, self._device)
        if rows[0].next.leftover:
            decision, written = fill(now, view)
        else:
            memory = gather(rows)
            decision, written = decide(
                work.sampler,
                now,
                memory,
                view,
                torch.cat([row.next.started for row in rows]).to(self._device),
                torch.cat([row.next.hand for row in rows]).to(self._device),
                schedule=work.options.schedule or self._info.schedule,
                selection=work.options.selection,
                noise=_replay(draws),
                blockwise=work.plan.blockwise,
                eos_ids=self._info.eos_ids,
            )
            memory = memory.push(now, decision.carry, work.sampler.needs)
            for place, row in enumerate(rows):
                row.seat = Seat(memory, place)
        for place, row in enumerate(rows):
            row.see(now, decision, place)
        _, broken = settle(decision.commit, now.lse, view.running)
        flags = torch.stack([decision.forced, broken], dim=-1)
        return torch.cat([decision.commit.long(), decision.eligible.long(), written, flags.long()], dim=-1)

    def keep(self, row: Row) -> None:
        """Let a row that did not change use this prediction once more."""
        unchanged = row.turn is not None and not row.turn.view.forward
        at = torch.tensor([self.rows.index(row)], device=self.now.lse.device)
        row.now = self.now.take(at) if unchanged else None


def read_rulings(packed: Sequence[Tensor]) -> Iterator[list[Ruling]]:
    """The rulings of every packed decision, all brought to the host in one read."""
    flat = torch.cat([pack.flatten() for pack in packed]).cpu()
    edges = [0]
    for pack in packed:
        edges.append(edges[-1] + pack.numel())
    for (first, last), pack in zip(pairwise(edges), packed, strict=True):
        yield [_ruling(row) for row in flat[first:last].view(pack.shape)]


def _ruling(packed: Tensor) -> Ruling:
    """[3 W + 2] -> a ruling on one row."""
    width = (len(packed) - 2) // 3
    commit, eligible, written, flags = torch.tensor_split(packed[None], (width, 2 * width, 3 * width), -1)
    return Ruling(commit.bool(), eligible.bool(), written, flags[:, 0].bool(), flags[:, 1].bool())


def _draws(row: Row) -> int:
    """How many numbers per position a step of this row takes."""
    return int(not row.work.options.selection.greedy) + int(row.work.sampler.needs.noise)


def _replay(draws: Sequence[Tensor]) -> NoiseSource:
    """A source of the numbers that were drawn."""
    left = iter(draws)
    return lambda running, width: next(left)


def _view(rows: Sequence[Row], device: torch.device) -> View:
    """What is left to do in all rows."""
    views = [row.next.view for row in rows]
    both = torch.stack(
        [torch.cat([view.masked for view in views]), torch.cat([view.active for view in views])]
    )
    masked, active = both.to(device)
    running = torch.ones(len(rows), dtype=torch.bool, device=device)
    return View(masked, active, running, running, len(rows), len(rows))
