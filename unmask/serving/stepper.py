"""One reverse step of many requests: predict, decide, commit.

A large batch has two halves that take turns. While the host commits a step of one, the device runs the other.
A failing request ends alone, unless the device is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from time import perf_counter
from typing import NamedTuple, TypeVar

import torch
from torch import OutOfMemoryError, Tensor

from unmask.decoding.observe import Outcome
from unmask.serving.batch import Decided, decide, run_forward, start_reading
from unmask.serving.job import Job, Snapshot
from unmask.serving.look import look
from unmask.serving.monitor import Tick
from unmask.serving.request import RunningRequest
from unmask.serving.scheduler import decide_groups, forward_groups
from unmask.text.prompts import TextModel
from unmask.types import Prediction, Step

log = logging.getLogger(__name__)
OVERLAP_COLUMNS = 1536  # of all rows; from here on, half a batch is as fast per column as the whole
Result = TypeVar("Result")


class BegunStep(NamedTuple):
    """Requests whose first forward is queued on the device."""

    requests: Sequence[RunningRequest]
    groups: Sequence[Sequence[RunningRequest]]  # groups whose forward is not queued yet
    evaluations: int  # queued forwards
    forwards: int  # rows of the queued forwards


class PendingStep(NamedTuple):
    """Requests whose next step is queued on the device."""

    requests: Sequence[RunningRequest]
    decided: Sequence[Decided]
    predictions: Sequence[Sequence[Prediction]]  # of each request, by decision
    read: Callable[[], list[list[Outcome]]]  # waits for the decisions
    evaluations: int
    forwards: int


class Stepper:
    """Takes the steps of the requests that run on a model."""

    def __init__(
        self,
        model: TextModel,
        device: torch.device,
        *,
        exact: bool,
        overlap: bool,
        reclaim: Callable[[], None],
        fail: Callable[[Iterable[Job], Exception], None],
    ) -> None:
        """Make a stepper. `reclaim` frees memory of the device, `fail` ends jobs with an error."""
        self.model = model
        self.device = device
        self.exact = exact  # run the model on rows alone
        self.overlap = overlap  # let large batches run as two halves
        self.reclaim = reclaim
        self.fail = fail
        self.pending: PendingStep | None = None  # the half that the device works on
        self.busy_since = 0.0  # when the last step was committed, or the device got work after a pause

    def step(self, running: Sequence[RunningRequest], committed: Callable[[Tick], None]) -> None:
        """Take one step of every request, or of one half while the other is queued.

        Call `committed` when the step is committed. Only the first forward of the other half is queued before
        that, because a long queue would hold up the host. The rest is queued afterwards.
        """
        began = perf_counter()
        first, self.pending = self.pending, None
        if first is None or not any(map(is_live, first.requests)):
            self.busy_since = began
            first = self._queue(running[::2] if self._is_large(running) else running)
        taken = {id(request) for request in first.requests}
        rest = [request for request in running if id(request) not in taken]
        even = 0 < len(rest) <= 2 * len(first.requests)  # otherwise split the batch anew in the next step
        second = self._begin(rest) if even and self._is_large(running) else None
        steps, now = self._commit(first), perf_counter()
        seconds, self.busy_since = now - self.busy_since, now
        committed(
            Tick(
                rows=len(steps),
                seconds=seconds,
                evaluations=first.evaluations,
                forwards=first.forwards,
                **count_tokens(steps),
            )
        )
        if second is not None and any(map(is_live, second.requests)):
            self.pending = self._decide(second)

    def forget(self) -> None:
        """Drop the half that the device works on, because its requests have failed or left."""
        self.pending = None

    def _is_large(self, running: Sequence[RunningRequest]) -> bool:
        """Return whether half of the requests keep the device busy.

        Requests with caches are not split. With block caches, the halves of a compiled model would keep
        swapping keys and values in its store. With exact caches, a forward takes as long as loading the
        weights, so two halves take twice as long.
        """
        if not self.overlap or any(request.cache is not None for request in running):
            return False
        columns = sum(request.request.num_rows * request.length for request in running)
        return len(running) > 1 and columns >= OVERLAP_COLUMNS

    def _queue(self, requests: Sequence[RunningRequest]) -> PendingStep:
        """Queue the whole step of some requests."""
        return self._decide(self._begin(requests))

    def _begin(self, requests: Sequence[RunningRequest]) -> BegunStep:
        """Queue the first forward of some requests."""
        fresh = [request for request in requests if request.is_fresh]
        groups = forward_groups(self.model, fresh, alone=self.exact)
        queued = self._run_forwards(groups[:1])
        return BegunStep(requests, groups[1:], queued, sum(map(len, groups[:1])))

    def _decide(self, step: BegunStep) -> PendingStep:
        """Queue the remaining forwards and the decisions of a step, without requests that have ended."""
        groups = [live for group in step.groups if (live := list(filter(is_live, group)))]
        evaluations = step.evaluations + self._run_forwards(groups)
        for request in step.requests:
            request.count_step()
        live = list(filter(is_live, step.requests))
        work = partial(decide, self.model, device=self.device, alone=self.exact)
        ask = partial(self._with_memory, work)
        parts = [self._isolate("a sampler failed", ask, group) for group in decide_groups(live)]
        decided = list(chain.from_iterable(parts))
        read = start_reading(decided)
        predictions = list(map(predictions_of, decided))
        forwards = step.forwards + sum(map(len, groups))
        return PendingStep(step.requests, decided, predictions, read, evaluations, forwards)

    def _commit(self, step: PendingStep) -> list[Step]:
        """Wait for the decisions of a step, and commit them row by row."""
        steps = []
        for decided, predictions, outcomes in zip(step.decided, step.predictions, step.read(), strict=True):
            rows = zip(decided.requests, predictions, outcomes, strict=True)
            for row, (request, prediction, outcome) in enumerate(rows):
                if is_live(request):
                    commit = partial(commit_row, decided, row, prediction, outcome)
                    steps += self._isolate("a step failed", commit, [request])
        return steps

    def _run_forwards(self, groups: Sequence[Sequence[RunningRequest]]) -> int:
        """Queue a forward for each group, and return their number."""
        work = partial(run_forward, self.model, device=self.device, alone=self.exact)
        forward = partial(self._with_memory, work)
        return sum(len(self._isolate("a forward failed", forward, group)) for group in groups)

    def _with_memory(
        self, work: Callable[[Sequence[RunningRequest]], Result], requests: Sequence[RunningRequest]
    ) -> Result:
        """Run `work` on all requests. If the device is out of memory, free some and run it again."""
        with suppress(OutOfMemoryError):
            return work(requests)
        log.warning("the device is out of memory; captured forwards are dropped")
        self.reclaim()
        return work(requests)

    def _isolate(
        self,
        failure: str,
        work: Callable[[Sequence[RunningRequest]], Result],
        requests: Sequence[RunningRequest],
    ) -> list[Result]:
        """Run `work` on all requests. If it fails, run it on each alone, and end those that fail again."""
        try:
            return [work(requests)]
        except Exception as error:
            raise_if_lost(error, self.device)
            log.exception(failure, extra={"jobs": [request.job.id for request in requests]})
            if len(requests) == 1:
                self.fail([requests[0].job], error)
                return []
        return [result for request in requests for result in self._isolate(failure, work, [request])]


def raise_if_lost(error: Exception, device: torch.device) -> None:
    """Raise the error again if it ended the work of the device, as an illegal access does.

    All later work would fail with the same error. Only a new process can use the device again. Errors of
    the same type that leave it usable, as that of a failed capture, pass.
    """
    if not isinstance(error, getattr(torch, "AcceleratorError", ())):  # new in torch 2.8
        return
    try:
        torch.cuda.synchronize(device)
    except Exception:
        raise error from None


def predictions_of(decided: Decided) -> Sequence[Prediction]:
    """Return the prediction of each request, or copies of the first if no request reads its own."""
    count = len(decided.requests)  # a compiled batch may have more rows, to fill it up
    if decided.requests[0].reads_prediction:
        return decided.prediction.split()[:count]
    return [decided.prediction.take(slice(0, 1))] * count


def commit_row(
    decided: Decided,
    row: int,
    prediction: Prediction,
    outcome: Outcome,
    requests: Sequence[RunningRequest],
) -> Step:
    """Commit the decision of one request, and show it to its sender."""
    [request] = requests
    job, block = request.job, request.turn.number
    if job.candidates:
        seen = replace(decided.prediction, logits=decided.logits)
        request.look = look(seen, decided.decision, row, candidates=job.candidates, before=request.look)
    step = request.commit(prediction, outcome)
    if request.look is not None:
        request.look = request.look.with_constraint(step.decision)
    if job.is_watched:
        shown = (None, None) if request.look is None else (step, request.look)
        snapshot = Snapshot(step.index, step.tokens[0], step.window, step.drawn[0], *shown)
        job.publish(snapshot._replace(revocable=step.revocable))
    if not request.is_done and request.turn.number != block and not request.rows.needs.span:
        request.look = None  # a new block starts a new history
    return step


def is_live(request: RunningRequest) -> bool:
    """Return whether the job of a request goes on: it was not cancelled and has not failed."""
    return not request.job.future.done()


def count_tokens(steps: Iterable[Step]) -> dict[str, int]:
    """Return how many tokens single-row steps committed, by what committed them."""
    commits: dict[str, list[Tensor]] = {"accepted": [], "forced": [], "leftovers": []}
    for step in steps:
        by = "leftovers" if step.leftover else "forced" if step.decision.forced else "accepted"
        commits[by].append(step.decision.commit)
    return {by: int(torch.cat(parts, dim=-1).sum()) if parts else 0 for by, parts in commits.items()}
