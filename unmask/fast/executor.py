"""The executor of a compiled model, which starts the next forward early.

While the host waits to learn what is left, the GPU runs the first layers of the next forward. Decisions are
compiled into a few kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from unmask.decoding.bans import Bans
from unmask.decoding.checks import check_written, extra_needs
from unmask.decoding.executor import Executor, broken_logits, has_head, inside, left_to_do
from unmask.decoding.observe import Outcome, decide
from unmask.decoding.plan import Block
from unmask.decoding.rows import History, Rows, Written
from unmask.decoding.transfer import to_device
from unmask.decoding.turns import Clock, Todo, Turn
from unmask.fast.graphs import GraphRunner, Pending, allow_shapes
from unmask.types import Prediction

INDUCTOR: dict[str, Any] = {
    "emulate_precision_casts": True,  # round after every product and sum, as eager torch does
    "unroll_reductions_threshold": 9,  # sum eight candidates in the kernel that computed them
}
Args = ParamSpec("Args")
Out = TypeVar("Out")


@dataclass(slots=True)
class GraphExecutor(Executor):
    """An executor for a model whose layers run as CUDA graphs."""

    runner: GraphRunner | None = None  # starts forwards early; None means no forward starts early
    compiled: bool = True  # whether to compile decisions
    sizes: int = 2  # sizes that a batch may shrink through; each is a shape to compile and capture
    all_fresh: bool = False  # all running rows changed in the last step, so all will probably run again

    def look(self, rows: Rows, window: slice, block: Block) -> Todo:
        """Return what is left to decode. Start the next forward while the host waits for the answer."""
        self.launched = None
        if self.speculator is not None:
            self.speculator.recall(rows)
        flags = self.flags(rows, window, block)
        pending = self.submit(rows, window) if self.all_fresh and block is self.block else None
        todo, broken = flags()
        if broken:
            raise broken_logits(broken, rows.steps)
        self.all_fresh = todo.num_fresh == len(todo.running)
        if pending is None or not self.all_fresh:
            return self.prepare(rows, window, block, todo)
        rows.prediction = None  # free the last logits before the next ones are computed
        bans, canvas = rows.bans or self.bans, rows.canvas
        if bans.language is None or not canvas.tokens.is_cuda:
            self.launched = self.read(pending.result(), bans.on(canvas, window))
        else:
            device = canvas.tokens.device
            self.launched = self.read(*ban_meanwhile(pending.result, lambda: bans.on(canvas, window), device))
        return todo

    def submit(self, rows: Rows, window: slice) -> Pending | None:
        """Start the first layers of the next forward, or return None if it cannot start early."""
        if self.runner is None or self.runner.model is not self.model or not has_head(self.model):
            return None
        if self.speculator is not None or extra_needs(self.sampler):  # captured forwards do not support these
            return None
        canvas = rows.canvas
        try:
            return self.runner.submit(canvas.tokens, canvas.attend, window, self.cache)
        except IndexError:  # nn.Embedding raises it for a token outside the vocabulary
            check_written(canvas.tokens, self.model.info)
            raise

    def flags(self, rows: Rows, window: slice, block: Block) -> Callable[[], tuple[Todo, list[int]]]:
        """Start computing what is left. The returned function waits for it, and also returns broken rows."""
        canvas = rows.canvas
        masked, active, running, fresh, packed = maybe_compile(_left_to_do, when=self.compiled)(
            canvas.tokens[:, window].contiguous(),  # one compilation for canvases of any length
            rows.ending_in(block).contiguous(),
            inside(rows, window, block),
            rows.idle,
            rows.open,
            rows.changed if rows.reuse else None,
            rows.broken,
            mask_id=canvas.mask_id,
            eos_ids=rows.eos_ids,
        )
        arrived = send_to_host(packed)
        urgent = None if rows.open_blocks is None else rows.open_blocks.urgent(masked)

        def wait() -> tuple[Todo, list[int]]:
            bits = arrived()
            num_running, num_fresh = (sum(row >> bit & 1 for row in bits) for bit in (0, 1))
            broken = [number for number, row in enumerate(bits) if row >> 2]
            return Todo(masked, active, running, fresh, num_running, num_fresh, urgent), broken

        return wait

    def ask(self, turn: Turn, prediction: Prediction, history: History, written: Written | None) -> Outcome:
        """Ask the sampler, in compiled kernels if possible.

        Decisions with random draws are not compiled, because their random streams are on the host. Decisions
        on attention maps are not compiled either, because every canvas length would be a new shape.
        """
        plain = self.sampler.needs.noise or self.draws or self.sampler.needs.attention
        if not self.compiled or plain or turn.leftover:
            return Executor.ask(self, turn, prediction, history, written)
        scene = self.scene(turn, written)
        if isinstance(scene.clock, Clock):  # Python numbers would be compiled in as constants
            scene = scene._replace(clock=upload(scene.clock, turn.started.device))
        return maybe_compile(decide, when=True)(self.sampler, prediction, history, scene, self.context)


def _left_to_do(
    *inputs: Any, mask_id: int, eos_ids: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return `left_to_do`, and one number per row with the bits: is running, is fresh, is broken."""
    *others, broken = inputs
    masked, active, running, fresh = left_to_do(*others, mask_id=mask_id, eos_ids=eos_ids)
    packed = running.long() | fresh.long() << 1
    if broken is not None:
        packed = packed | broken.long() << 2
    # clone, as torch.compile specialises on whether the inputs of the next function share storage
    return masked, active.clone(), running, fresh.clone(), packed


def upload(clock: Clock, device: torch.device) -> Tensor:
    """Copy a clock to the device as one tensor [1, 4], without waiting for the copy."""
    return to_device(torch.tensor([clock], dtype=torch.float64), device)


def send_to_host(packed: Tensor) -> Callable[[], list[int]]:
    """Start a copy to the host. The returned function waits for this copy only and returns the numbers."""
    if not packed.is_cuda:
        return packed.tolist
    stream = side_stream(packed.device)
    stream.wait_stream(torch.cuda.current_stream(packed.device))
    with torch.cuda.stream(stream):
        copied = packed.to("cpu", non_blocking=True)
    packed.record_stream(stream)
    arrived = stream.record_event()

    def wait() -> list[int]:
        arrived.synchronize()
        numbers: list[int] = copied.tolist()
        return numbers

    return wait


def ban_meanwhile(
    forward: Callable[[], Tensor], ban: Callable[[], Bans], device: torch.device
) -> tuple[Tensor, Bans]:
    """Return the results of both. The GPU runs the many small kernels of `ban` during the forward."""
    main, stream = torch.cuda.current_stream(device), side_stream(device)
    ready = main.record_event()
    output = forward()  # first, to keep the GPU busy
    stream.wait_event(ready)
    with torch.cuda.stream(stream):
        bans = ban()
    main.wait_stream(stream)
    if bans.allowed is not None:
        for part in (bans.allowed.classes, bans.allowed.kinds, bans.allowed.which):
            part.record_stream(main)
    return output, bans


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]


def maybe_compile(work: Callable[Args, Out], *, when: bool) -> Callable[Args, Out]:
    """Return `work`, compiled for every shape it meets if `when`. It must be a module-level function."""
    if not when:
        return work
    allow_shapes()
    return _compiled(work)


@cache
def _compiled(work: Callable[Args, Out]) -> Callable[Args, Out]:
    return torch.compile(work, dynamic=False, options=INDUCTOR)
