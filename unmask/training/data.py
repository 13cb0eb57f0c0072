"""Draw training items, tokenise them and pack them into batches, independently of the model and the device.

A row holds the prompt from column 0 on, the answer, and end tokens up to a fixed length. It has no padding,
so a canvas looks the same in training as when a single prompt is decoded. Item `i` depends only on the seed
and on `i`. A stream of batches resumes from a position of a few numbers.
"""

from __future__ import annotations

import importlib
import json
import random
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from unmask.errors import FieldError, at_least, within
from unmask.files import read_utf8
from unmask.models.text.tokens import Tokenizer

DRAWN_TOGETHER = 128  # items tokenised at once
CHECKED = 1000  # items after which a stream raises if most of them do not fit


class Item(Protocol):
    """A prompt and the answer that the model learns."""

    @property
    def prompt(self) -> str: ...

    @property
    def answer(self) -> str: ...


Draw = Callable[[random.Random, Mapping[str, float]], Item]


@dataclass(frozen=True, slots=True)
class Pair:
    """A line of a JSON-lines file."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The mix of tasks in one part of the run.

    Attributes:
        until: Share of the run at which the phase ends, 0 to 1.
        shares: Weight of each task, >= 0; they need not add up to 1.
    """

    until: float
    shares: Mapping[str, float]

    def __post_init__(self) -> None:
        within("until", self.until, 0, 1)
        for name, share in self.shares.items():
            at_least(f"shares.{name}", share, 0)
        if not sum(self.shares.values()) > 0:
            raise FieldError("shares", dict(self.shares), "must have a positive sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Where items come from and how they become rows.

    Attributes:
        source: "module:function" of the type Draw, or a JSON-lines file of {"prompt": ..., "answer": ...}.
        phases: Task mixes in order, for a function as source. The last phase ends at 1.
        lengths: Row lengths in columns, in rising order. A row gets the first with room for the canvas.
        canvas: Minimum number of columns after the prompt, >= 1.
        long_lengths: Row lengths for answers longer than the canvas, in rising order. A row gets the first
            with room for its answer. If empty, such an answer must fit into its row of `lengths`.
        workers: Processes that draw items, or 0 to draw them in the training process. The number changes the
            order of the items.
        validation_rows: Rows held out, at most a tenth of a file.
    """

    source: str
    phases: tuple[Phase, ...] = ()
    lengths: tuple[int, ...] = (160, 224, 288)
    canvas: int = 128
    long_lengths: tuple[int, ...] = ()
    workers: int = 0
    validation_rows: int = 256

    def __post_init__(self) -> None:
        at_least("canvas", self.canvas, 1)
        at_least("workers", self.workers, 0)
        at_least("validation_rows", self.validation_rows, 0)
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise FieldError("lengths", self.lengths, "must be given in rising order")
        if list(self.long_lengths) != sorted(set(self.long_lengths)):
            raise FieldError("long_lengths", self.long_lengths, "must be given in rising order")
        if self.lengths[0] <= self.canvas:
            problem = f"must leave room for a prompt beside canvas = {self.canvas}"
            raise FieldError("lengths", self.lengths, problem)
        bounds = [phase.until for phase in self.phases]
        if bounds and (bounds != sorted(set(bounds)) or bounds[-1] != 1):
            raise FieldError("phases", bounds, "must have rising `until` that end at 1")


class Source(Protocol):
    """Items by number."""

    def item(self, index: int) -> Item: ...

    def validation(self, index: int) -> Item: ...

    @property
    def held_out(self) -> int:
        """The number of validation items."""
        ...


class DrawnItems:
    """Items drawn by a function, each with its own random seed."""

    def __init__(self, draw: Draw, spec: DataSpec, *, seed: int, total: int) -> None:
        if not spec.phases:
            raise FieldError("data.phases", spec.phases, f"must say what to draw from {spec.source}")
        self.held_out = spec.validation_rows
        self._draw = draw
        self._phases = spec.phases
        self._seed = seed
        self._total = total  # items of the whole run

    def item(self, index: int) -> Item:
        done = index / self._total
        phase = next((phase for phase in self._phases if done < phase.until), self._phases[-1])
        return self._draw(random.Random(f"{self._seed}/{index}"), phase.shares)

    def validation(self, index: int) -> Item:
        return self._draw(random.Random(f"{self._seed}/validation/{index}"), self._phases[-1].shares)


class FileItems:
    """Items of a JSON-lines file, in a new order each epoch."""

    def __init__(self, path: Path, spec: DataSpec, *, seed: int) -> None:
        pairs = read_pairs(path)
        random.Random(f"{seed}/split").shuffle(pairs)
        self.held_out = min(spec.validation_rows, len(pairs) // 10)
        self._validation, self._pairs = pairs[: self.held_out], pairs[self.held_out :]
        self._seed = seed

    def item(self, index: int) -> Item:
        epoch, index = divmod(index, len(self._pairs))
        return self._pairs[_order(len(self._pairs), f"{self._seed}/{epoch}")[index]]

    def validation(self, index: int) -> Item:
        return self._validation[index]


@lru_cache(maxsize=2)
def _order(count: int, seed: str) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def read_pairs(path: Path) -> list[Pair]:
    """Read the prompt/answer pairs of a JSON-lines file."""
    pairs = []
    for number, line in enumerate(read_utf8(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number} is not valid JSON: {error}") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(k), str) for k in ("prompt", "answer")):
            raise ValueError(f'{path}, line {number} must be {{"prompt": "...", "answer": "..."}}')
        pairs.append(Pair(row["prompt"], row["answer"]))
    if not pairs:
        raise ValueError(f"{path} holds no pairs")
    return pairs


def open_source(spec: DataSpec, *, seed: int, total: int) -> Source:
    """Open the source that `spec.source` names, for a run over `total` items."""
    module, _, name = spec.source.partition(":")
    if spec.source.endswith((".jsonl", ".json")):
        return FileItems(Path(spec.source), spec, seed=seed)
    if not name:
        raise FieldError("data.source", spec.source, "must be 'module:function' or a .jsonl file")
    draw: Draw = getattr(importlib.import_module(module), name)
    return DrawnItems(draw, spec, seed=seed, total=total)


@dataclass(frozen=True, slots=True)
class Row:
    """The token ids of an item."""

    prompt: list[int]
    answer: list[int]  # with the end token


class Encoder:
    """Turns items into rows. If there is a chat template, prompts become user messages."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not tokenizer.special.ends:
            raise ValueError(f"{tokenizer.origin} names no end token (eos_token in tokenizer_config.json)")
        self.end_id = tokenizer.special.ends[-1]  # end of turn if there is one
        self.fill_id = tokenizer.special.ends[0]
        self._tokenizer = tokenizer
        self._frame = self._render("probe").split("probe") if tokenizer.has_chat_template else ["", ""]

    def rows(self, items: Sequence[Item]) -> list[Row]:
        """Tokenise items."""
        prompts = self._tokenizer.encode_batch([self._framed(item.prompt) for item in items])
        answers = self._tokenizer.encode_batch([item.answer for item in items])
        return [Row(p, [*a, self.end_id]) for p, a in zip(prompts, answers, strict=True)]

    def _framed(self, prompt: str) -> str:
        # rendering is slow, and a template adds the same frame to every prompt that it does not trim
        if len(self._frame) == 2 and prompt == prompt.strip():
            return prompt.join(self._frame)
        return self._render(prompt)

    def _render(self, prompt: str) -> str:
        return self._tokenizer.render_chat([{"role": "user", "content": prompt}])


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows are grouped into batches by length."""

    lengths: tuple[int, ...]
    canvas: int
    batch_size: int
    long_lengths: tuple[int, ...] = ()

    @property
    def columns(self) -> tuple[int, ...]:
        """The row length of each bucket."""
        return (*self.lengths, *self.long_lengths)

    def bucket(self, row: Row) -> int | None:
        """Return the index in `columns` for a row, or None if it does not fit."""
        prompt, answer = len(row.prompt), len(row.answer)
        if self.long_lengths and answer > self.canvas:
            fitting = (place for place, length in enumerate(self.long_lengths) if prompt + answer <= length)
            place = next(fitting, None)
            return None if place is None else len(self.lengths) + place
        for bucket, length in enumerate(self.lengths):
            if length - prompt >= self.canvas:
                return bucket if answer <= length - prompt else None
        return None

    def window_start(self, bucket: int) -> int:
        """Return the first column that can follow a prompt in this bucket."""
        first = bucket == 0 or bucket >= len(self.lengths)
        return 1 if first else self.lengths[bucket - 1] - self.canvas + 1


Position = tuple[int, tuple[int, ...]]  # next item of a stream, and earlier items not yet in a batch


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch as plain numbers, cheap to send between processes."""

    tokens: bytes  # int32, [B * N]
    prompts: tuple[int, ...]  # length of each prompt
    answers: tuple[int, ...]  # length of each answer, with its end token
    columns: int  # N
    window_start: int  # no answer begins before this column
    position: Position  # the stream's position after this batch


def pack(
    rows: Sequence[Row], *, columns: int, window_start: int, fill_id: int, position: Position
) -> PackedBatch:
    """Pack rows into a batch, filling each up to `columns` with end tokens."""
    tokens = array("i")
    for row in rows:
        tokens.extend(row.prompt)
        tokens.extend(row.answer)
        tokens.extend([fill_id] * (columns - len(row.prompt) - len(row.answer)))
    return PackedBatch(
        tokens.tobytes(),
        tuple(len(row.prompt) for row in rows),
        tuple(len(row.answer) for row in rows),
        columns,
        window_start,
        position,
    )


class BatchStream:
    """The endless batches of one worker. Workers take items in turn."""

    def __init__(
        self, source: Source, encoder: Encoder, layout: Layout, *, worker: int = 0, workers: int = 1
    ) -> None:
        self._source = source
        self._encoder = encoder
        self._layout = layout
        self._worker = worker
        self._workers = workers

    def batches(self, position: Position = (0, ())) -> Iterator[PackedBatch]:
        """Yield batches from a position on. Equal positions give equal batches."""
        waiting: list[list[tuple[int, Row]]] = [[] for _ in self._layout.columns]
        for index, bucket, row in self._bucketed(position):
            waiting[bucket].append((index, row))
            if len(waiting[bucket]) < self._layout.batch_size:
                continue
            full, waiting[bucket] = waiting[bucket], []
            pending = sorted(index for rows in waiting for index, _ in rows)
            yield pack(
                [row for _, row in full],
                columns=self._layout.columns[bucket],
                window_start=self._layout.window_start(bucket),
                fill_id=self._encoder.fill_id,
                position=(index + 1, tuple(pending)),
            )

    def _bucketed(self, position: Position) -> Iterator[tuple[int, int, Row]]:
        """Yield (index, bucket, row) of the worker's items that fit, from a position on."""
        seen = unfit = 0
        for indices in _groups(position):
            items = [self._source.item(index * self._workers + self._worker) for index in indices]
            for index, row in zip(indices, self._encoder.rows(items), strict=True):
                bucket = self._layout.bucket(row)
                seen, unfit = seen + 1, unfit + (bucket is None)
                if bucket is not None:
                    yield index, bucket, row
            if seen >= CHECKED and 2 * unfit > seen:
                raise ValueError(
                    f"{unfit} of {seen} items do not fit into rows of {self._layout.columns[-1]} columns "
                    f"with a canvas of {self._layout.canvas}; raise data.lengths or data.canvas"
                )


def _groups(position: Position) -> Iterator[list[int]]:
    """Yield item indices in groups that are tokenised together."""
    start, pending = position
    if pending:
        yield list(pending)
    while True:
        yield list(range(start, start + DRAWN_TOGETHER))
        start += DRAWN_TOGETHER


def validation_batches(source: Source, encoder: Encoder, layout: Layout) -> list[PackedBatch]:
    """Pack all validation items that fit, one batch per length."""
    items = [source.validation(index) for index in range(source.held_out)]
    rows: list[list[Row]] = [[] for _ in layout.columns]
    for row in encoder.rows(items):
        bucket = layout.bucket(row)
        if bucket is not None:
            rows[bucket].append(row)
    return [
        pack(
            group,
            columns=layout.columns[bucket],
            window_start=layout.window_start(bucket),
            fill_id=encoder.fill_id,
            position=(0, ()),
        )
        for bucket, group in enumerate(rows)
        if group
    ]
