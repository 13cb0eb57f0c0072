"""Which tokens are banned from which columns, whatever the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.decoding.summary import ban


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that fit each column, as classes of tokens.

    Attributes:
        classes: [B, W, C] bool, the classes that fit.
        kinds: [A, V], the class of each token in each of A languages.
        which: [B], the language of each row.
    """

    classes: Tensor
    kinds: Tensor
    which: Tensor

    def take(self, rows: Tensor | slice) -> Allowed:
        """Return the tokens that fit some rows."""
        return replace(self, classes=self.classes[rows], which=self.which[rows])

    def to(self, device: torch.device | str) -> Allowed:
        """Return the same tokens on another device."""
        return Allowed(*(part.to(device) for part in (self.classes, self.kinds, self.which)))

    @staticmethod
    def join(parts: Sequence[Allowed]) -> Allowed:
        """Stack rows of the same width."""
        most = max(part.classes.shape[-1] for part in parts)
        classes = [
            torch.nn.functional.pad(part.classes, (0, most - part.classes.shape[-1])) for part in parts
        ]
        first = torch.tensor([0, *(len(part.kinds) for part in parts[:-1])]).cumsum(0)
        which = [part.which + start for part, start in zip(parts, first.tolist(), strict=True)]
        return Allowed(torch.cat(classes), torch.cat([part.kinds for part in parts]), torch.cat(which))

    def apply(self, logits: Tensor) -> Tensor:
        """Set the logits [B, W, V] of tokens that do not fit to -inf, in place."""
        refused = ~self.classes
        if len(self.kinds) == 1:
            return logits.masked_fill_(refused[..., self.kinds[0]], -torch.inf)
        kinds = self.kinds[self.which][:, None].expand(-1, logits.shape[1], -1)
        return logits.masked_fill_(refused.gather(-1, kinds), -torch.inf)


class Language(Protocol):
    """The texts that the rows of a batch may become; see fitting.py and grammar.py in unmask/constraints."""

    def take(self, rows: Tensor | slice) -> Language: ...

    def repeat(self, copies: int) -> Language: ...

    def to(self, device: torch.device | str) -> Language: ...

    def focus(self, canvas: Canvas, closed: Tensor | None, window: slice) -> Language:
        """Return the language after reading the columns outside the window, which will not change."""
        ...

    def allowed(self, canvas: Canvas, closed: Tensor | None) -> Allowed:
        """Return the tokens that fit each column of the window."""
        ...

    def admit(
        self,
        canvas: Canvas,
        closed: Tensor | None,
        tokens: Tensor,
        wanted: Tensor,
        confidence: Callable[[], Tensor],
    ) -> Tensor:
        """Return those of the wanted columns [B, W] whose tokens fit together.

        A language that is read from left to right may add the first mask.
        """
        ...


@dataclass(frozen=True, slots=True)
class Bans:
    """Banned tokens: `ids` in every column, and `ends` in the `closed` columns, where no text may end.

    Attributes:
        ids: Tokens that no column may hold.
        ends: Tokens that closed columns may not hold.
        closed: [1 or B, N] bool, for the columns of a canvas or of a window. None means that none is closed.
        language: The texts that the rows may become. None means any.
        allowed: The tokens that fit each column of a window of the current canvas. None means all.
        raw: The sampler also sees the logits of tokens that do not fit, but only tokens that fit are drawn.
    """

    ids: tuple[int, ...]
    ends: tuple[int, ...] = ()
    closed: Tensor | None = None
    language: Language | None = None
    allowed: Allowed | None = None
    raw: bool = False

    def within(self, window: slice) -> Bans:
        """Return the bans of some columns."""
        return self if self.closed is None else replace(self, closed=self.closed[:, window])

    def focus(self, canvas: Canvas, window: slice) -> Bans:
        """Return the bans of a canvas of which only the window will change."""
        if self.language is None:
            return self
        return replace(self, language=self.language.focus(canvas, self.closed, window))

    def on(self, canvas: Canvas, window: slice) -> Bans:
        """Return the bans of the window's columns for the current canvas."""
        if self.language is None:
            return self.within(window)
        return replace(self.within(window), language=None, allowed=self.language.allowed(canvas, self.closed))

    def take(self, rows: Tensor | slice) -> Bans:
        """Return the bans of some rows."""
        language = None if self.language is None else self.language.take(rows)
        allowed = None if self.allowed is None else self.allowed.take(rows)
        return replace(self._each(lambda tensor: tensor[rows]), language=language, allowed=allowed)

    def repeat(self, copies: int) -> Bans:
        """Return the bans with each row repeated in place."""
        language = None if self.language is None else self.language.repeat(copies)
        return replace(self._each(lambda tensor: tensor.repeat_interleave(copies, dim=0)), language=language)

    def _each(self, work: Callable[[Tensor], Tensor]) -> Bans:
        shared = self.closed is None or len(self.closed) == 1
        return self if shared or self.closed is None else replace(self, closed=work(self.closed))

    def to(self, device: torch.device | str) -> Bans:
        """Return the same bans on another device."""
        return replace(
            self,
            closed=None if self.closed is None else self.closed.to(device),
            language=None if self.language is None else self.language.to(device),
            allowed=None if self.allowed is None else self.allowed.to(device),
        )

    @staticmethod
    def join(parts: Sequence[Bans]) -> Bans:
        """Stack the bans of several rows, which ban the same tokens and have the same width."""
        closed = [part.closed for part in parts if part.closed is not None]
        allowed = [part.allowed for part in parts if part.allowed is not None]
        return replace(
            parts[0],
            closed=torch.cat(closed) if closed else None,
            allowed=Allowed.join(allowed) if allowed else None,
        )

    def apply(self, logits: Tensor) -> Tensor:
        """Set the logits [B, W, V] of banned tokens to -inf, in place."""
        ban(logits, self.ids)
        if self.closed is not None:
            for token in self.ends:
                logits[..., token].masked_fill_(self.closed, -torch.inf)
        return logits if self.allowed is None else self.allowed.apply(logits)
