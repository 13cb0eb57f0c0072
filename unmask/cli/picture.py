"""A picture of the canvas: the state of every position, the frontier, and the mean of every signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from unmask.cli.printable import printable
from unmask.text.display import plural

if TYPE_CHECKING:
    from torch import Tensor

    from unmask.decoding.canvas import Canvas
    from unmask.decoding.plan import Plan
    from unmask.types import Step

FRAME_LINES = 6  # borders, status and signals
BAR_WIDTH, BAR_FROM = 24, 88  # the bar needs a terminal of at least so many columns

Place = Literal[
    "given",
    "rule",
    "rule now",
    "forced",
    "forced now",
    "leftover",
    "rewritten",
    "rewritten now",
    "revoked",
    "eligible",
    "waiting",
    "later",
    "frontier",
]
STYLES: dict[Place, str] = {
    "given": "dim",
    "rule": "default",
    "rule now": "black on green",
    "forced": "dark_orange",
    "forced now": "black on dark_orange",
    "leftover": "red",
    "rewritten": "blue",
    "rewritten now": "black on blue",
    "revoked": "bold red",
    "eligible": "cyan",
    "waiting": "grey50",
    "later": "grey30",
    "frontier": "bold magenta",
}
GLYPHS: dict[Place, str] = {"revoked": "✗", "eligible": "▒", "waiting": "░", "later": "░", "frontier": "▶"}
FADES: dict[Place, Place] = {"rule now": "rule", "forced now": "forced", "rewritten now": "rewritten"}
COMMITTED: tuple[Place, ...] = ("rule now", "forced now", "leftover")
MASKED: tuple[Place, ...] = ("eligible", "waiting", "frontier")
END = "∎"  # stands for every end token


class _Changes(NamedTuple):
    """The columns that a step changed, left on the device until a frame is drawn."""

    window: slice
    commit: Tensor  # [B, W] bool
    revoke: Tensor | None  # [B, W] bool
    rewrite: Tensor | None  # [B, W] bool
    forced: Tensor  # [B] bool
    leftover: bool


@dataclass(slots=True)
class Picture:
    """The canvas after the last step."""

    canvas: Canvas
    plan: Plan
    decode: Callable[[Sequence[int]], str]
    end_ids: tuple[int, ...]
    title: str
    first: int  # the first column to draw
    places: list[list[Place]] = field(init=False)  # [B][N], of columns that were given or changed
    step: Step | None = None
    forwards: int = 0
    revoked: int = 0
    rewritten: int = 0
    _pending: list[_Changes] = field(default_factory=list)
    _since: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.places = [["given"] * len(row) for row in self.canvas.tokens.tolist()]

    def watch(self, step: Step) -> None:
        """Note the changes of a step, without waiting for the device."""
        decision = step.decision
        self._pending.append(
            _Changes(
                step.window,
                decision.commit,
                decision.revoke,
                decision.rewrite,
                decision.forced,
                step.leftover,
            )
        )
        self.forwards += step.forward
        self.step = step

    def render(self, width: int, height: int) -> RenderableType:
        """Draw the picture at this size."""
        self._settle()
        rows = len(self.places)
        legends = self._legends()
        lines = max(1, (height - FRAME_LINES - len(legends)) // rows - (rows > 1))
        texts = [self._around_frontier(self._row(row), width - 4, lines) for row in range(rows)]
        spaced = [part for text in texts for part in (text, Text())][: 2 * rows - 1]
        return Panel(
            Group(*spaced, Text(), self._status(width), self._signals(), *legends),
            title=Text(self.title),
            title_align="left",
            border_style="grey50",
        )

    def _settle(self) -> None:
        """Apply the changes since the last frame; only these are drawn as new."""
        self.places = [[FADES.get(place, place) for place in row] for row in self.places]
        for changes in self._pending:
            start = changes.window.start
            self.revoked += self._mark(changes.revoke, start, ["revoked"] * len(self.places))
            self.rewritten += self._mark(changes.rewrite, start, ["rewritten now"] * len(self.places))
            commits: list[Place] = [
                "leftover" if changes.leftover else "forced now" if forced else "rule now"
                for forced in changes.forced.tolist()
            ]
            self._mark(changes.commit, start, commits)
        self._pending.clear()

    def _mark(self, where: Tensor | None, start: int, places: Sequence[Place]) -> int:
        """Set the place of some columns [B, W] bool to that of their row; return how many there are."""
        columns = [] if where is None else where.nonzero().tolist()
        for row, offset in columns:
            self.places[row][start + offset] = places[row]
        return len(columns)

    def _row(self, row: int) -> Text:
        """Draw a row as coloured text."""
        tokens = (self.canvas if self.step is None else self.step).tokens[row].tolist()
        places = self._masked_places(row, tokens)
        text = Text()
        shown = zip(places[self.first :], tokens[self.first :], strict=True)
        for place, group in groupby(shown, key=lambda pair: pair[0]):
            text.append(self._piece(place, [token for _, token in group]), STYLES[place])
        return text

    def _masked_places(self, row: int, tokens: list[int]) -> list[Place]:
        """Return the row's places, with those of its masks filled in."""
        places = list(self.places[row])
        block = self.plan.blocks[0 if self.step is None else self.step.block].columns
        eligible: set[int] = set()
        if self.step is not None:
            offsets = self.step.decision.eligible[row].nonzero()[:, 0].tolist()
            eligible = {self.step.window.start + offset for offset in offsets}
        masks = [column for column, token in enumerate(tokens) if token == self.canvas.mask_id]
        for column in masks:
            if places[column] == "revoked":
                continue
            inside = column < block.stop
            places[column] = "eligible" if column in eligible else "waiting" if inside else "later"
        if masks:
            places[masks[0]] = "frontier"
        return places

    def _piece(self, place: Place, tokens: list[int]) -> str:
        """Return the text of neighbouring tokens that share a place."""
        if place in GLYPHS:
            return GLYPHS[place] * len(tokens)
        runs = groupby(tokens, key=lambda token: token in self.end_ids)
        return "".join(
            END * len(list(run)) if ends else printable(self.decode(list(run))) for ends, run in runs
        )

    def _around_frontier(self, text: Text, width: int, lines: int) -> Text:
        """Keep as many lines as fit, including the one with the frontier."""
        wrapped = list(text.wrap(Console(width=width), width, overflow="fold"))
        at = next((i for i, line in enumerate(wrapped) if _has_frontier(line)), len(wrapped) - 1)
        first = max(0, min(at - lines // 2, len(wrapped) - lines))
        return Text("\n").join(wrapped[first : first + lines])

    def _status(self, width: int) -> RenderableType:
        """Draw the progress of the run."""
        blocks = len(self.plan.blocks)
        total = int((self.canvas.tokens == self.canvas.mask_id).sum())
        left = 0 if self.step is None else int((self.step.tokens == self.canvas.mask_id).sum())
        done = 0 if self.step is None else total - left
        number, block = (0, 1) if self.step is None else (self.step.index, self.step.block + 1)
        taken_back = self.revoked + self.rewritten
        facts = [
            f"step {number}",
            plural(self.forwards, "forward"),
            f"block {block}/{blocks}",
            f"{done}/{total} tokens",
            *([f"{taken_back} revoked"] if taken_back else []),
            f"{monotonic() - self._since:.1f} s",
        ]
        status = Text(" · ".join(facts), no_wrap=True, overflow="ellipsis")
        if width < BAR_FROM:
            return status
        grid = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=total, completed=done, width=BAR_WIDTH, complete_style="green")
        grid.add_row(bar, status)
        return grid

    def _signals(self) -> Text:
        """Draw the mean of every signal over the positions that the last step found masked."""
        means = {} if self.step is None else _signal_means(self.step, self.canvas.mask_id)
        words = "mean " + " · ".join(f"{printable(name)} {mean}" for name, mean in means.items())
        return Text(words if means else "", "dim", no_wrap=True, overflow="ellipsis")

    def _legends(self) -> list[Text]:
        """Explain the colours and glyphs, with a second line once a token was revoked or rewritten."""
        lines = [_legend(COMMITTED, MASKED)]
        if self.revoked or self.rewritten:
            lines.append(_legend(("rewritten now",), ("revoked",)))
        return lines


def _has_frontier(line: Text) -> bool:
    return any(span.style == STYLES["frontier"] for span in line.spans)


def _legend(committed: Sequence[Place], masked: Sequence[Place]) -> Text:
    legend = Text(no_wrap=True, overflow="ellipsis")
    for place in committed:
        legend.append(f" {place.removesuffix(' now')} ", STYLES[place]).append("  ")
    for place in masked:
        legend.append(GLYPHS[place], STYLES[place]).append(f" {place}  ", "dim")
    return legend


def _signal_means(step: Step, mask_id: int) -> dict[str, str]:
    """Return the mean of each signal of a step as text; a yes-or-no signal gives a share."""
    import torch

    masked = (step.tokens[:, step.window] == mask_id) & step.running[:, None]
    looked_at = masked | step.decision.commit
    means = {}
    for name, values in step.decision.signals.items():
        known = values[looked_at & values.isfinite()]
        if len(known):
            mean = float(known.float().mean())
            means[name] = f"{mean:.0%}" if known.dtype == torch.bool else f"{mean:.3g}"
    return means
