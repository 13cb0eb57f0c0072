"""Load batches while the model trains: processes draw them, and a thread copies them to the device ahead."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from unmask.models.text.tokens import Tokenizer
from unmask.training.data import (
    BatchStream,
    DataSpec,
    Encoder,
    Layout,
    PackedBatch,
    Position,
    Source,
    open_source,
    validation_batches,
)

START: Position = (0, ())
AHEAD_PER_WORKER = 4  # batches queued per worker
AHEAD_ON_DEVICE = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of rows on the device."""

    tokens: Tensor  # [B, N] int64
    prompts: Tensor  # [B] int64, length of each prompt
    answers: Tensor  # [B] int64, length of each answer, with its end token
    window: slice  # columns that may belong to an answer or its tail

    @classmethod
    def unpack(cls, packed: PackedBatch, device: torch.device) -> Batch:
        """Copy a packed batch to the device without waiting for the copy."""
        tokens = torch.frombuffer(bytearray(packed.tokens), dtype=torch.int32).view(-1, packed.columns)
        lengths = torch.tensor([packed.prompts, packed.answers], dtype=torch.int32)
        if device.type == "cuda":
            tokens, lengths = tokens.pin_memory(), lengths.pin_memory()
        tokens = tokens.to(device, non_blocking=True).long()
        prompts, answers = lengths.to(device, non_blocking=True).long()
        return cls(tokens, prompts, answers, slice(packed.window_start, packed.columns))

    def split(self, parts: int) -> list[Batch]:
        """Split the rows into `parts` batches."""
        columns = zip(*(t.chunk(parts) for t in (self.tokens, self.prompts, self.answers)), strict=True)
        return [Batch(tokens, prompts, answers, self.window) for tokens, prompts, answers in columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """Everything a worker process needs to draw its batches; picklable."""

    data: DataSpec
    tokenizer: str  # folder
    seed: int
    batch_size: int
    total: int  # items of the whole run

    def source(self) -> Source:
        return open_source(self.data, seed=self.seed, total=self.total)

    def encoder(self) -> Encoder:
        return Encoder(Tokenizer.from_folder(self.tokenizer))

    def layout(self) -> Layout:
        return Layout(self.data.lengths, self.data.canvas, self.batch_size, self.data.long_lengths)

    def stream(self, worker: int) -> BatchStream:
        workers = max(1, self.data.workers)
        return BatchStream(self.source(), self.encoder(), self.layout(), worker=worker, workers=workers)

    def validation(self, device: torch.device) -> list[Batch]:
        """Return the validation rows, one batch per length."""
        batches = validation_batches(self.source(), self.encoder(), self.layout())
        return [Batch.unpack(packed, device) for packed in batches]


class Loader:
    """A context manager that yields batches in a fixed order: one from each worker in turn.

    `positions` holds the position of every worker's stream after the batches yielded so far.
    """

    def __init__(
        self,
        spec: StreamSpec,
        device: torch.device,
        *,
        positions: list[Position] | None = None,
        turn: int = 0,
    ) -> None:
        workers = max(1, spec.data.workers)
        self.positions = [START] * workers if positions is None else list(positions)
        self.turn = turn
        if len(self.positions) != workers:
            raise ValueError(
                f"the checkpoint was written with {len(self.positions)} workers; set data.workers to that"
            )
        self._spec = spec
        self._device = device
        self._processes: list[BaseProcess] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Loader:
        if self._spec.data.workers == 0:
            self._packed = self._spec.stream(0).batches(self.positions[0])
            return self
        context = multiprocessing.get_context("spawn")  # a forked child cannot use CUDA
        self._queues: list[Any] = [context.Queue(AHEAD_PER_WORKER) for _ in self.positions]
        for worker, position in enumerate(self.positions):
            arguments = (self._spec, worker, position, self._queues[worker])
            process = context.Process(target=_run_worker, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)
        self._ready: queue.Queue[tuple[Batch, Position] | BaseException] = queue.Queue(AHEAD_ON_DEVICE)
        self._thread = threading.Thread(target=self._copy_ahead, args=(self.turn,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            while self._thread.is_alive():
                _drain(self._ready)
                self._thread.join(0.05)
        for process, waiting in zip(self._processes, getattr(self, "_queues", []), strict=True):
            process.terminate()
            process.join()
            waiting.close()
            waiting.cancel_join_thread()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._thread is None:
            packed = next(self._packed)
            batch, position = Batch.unpack(packed, self._device), packed.position
        else:
            ready = self._ready.get()
            if isinstance(ready, BaseException):
                raise ready
            batch, position = ready
        self.positions[self.turn] = position
        self.turn = (self.turn + 1) % len(self.positions)
        return batch

    def _copy_ahead(self, turn: int) -> None:
        while not self._stop.is_set():
            ready: tuple[Batch, Position] | BaseException
            try:
                packed = self._receive(turn)
                ready = Batch.unpack(packed, self._device), packed.position
            except RuntimeError as error:  # raised again in __next__
                ready = error
            while not self._stop.is_set():
                try:
                    self._ready.put(ready, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(ready, BaseException):
                return
            turn = (turn + 1) % len(self._queues)

    def _receive(self, worker: int) -> PackedBatch:
        ended = False
        while True:
            try:
                packed: PackedBatch = self._queues[worker].get(timeout=0.1)
                return packed
            except queue.Empty:
                if self._stop.is_set():
                    raise RuntimeError("the loader was closed") from None
                if ended:
                    code = self._processes[worker].exitcode
                    raise RuntimeError(
                        f"data worker {worker} ended with exit code {code}; see its error above"
                    ) from None
                ended = not self._processes[worker].is_alive()  # check once more: it may have sent a batch


def _drain(waiting: queue.Queue[Any]) -> None:
    while True:
        try:
            waiting.get_nowait()
        except queue.Empty:
            return


def _run_worker(spec: StreamSpec, worker: int, position: Position, out: Any) -> None:
    """Run in a worker process: put batches on the queue until terminated."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers already use every core
    torch.set_num_threads(1)
    for packed in spec.stream(worker).batches(position):
        out.put(packed)
