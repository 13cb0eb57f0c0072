"""Server-sent events: an answer while it is decoded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from unmask.serving.api_error import ApiError
from unmask.serving.job import Answer, Job
from unmask.serving.reading import Drafts, reader, settled
from unmask.serving.replies import Reply

HEARTBEAT = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"


class Wakeup:
    """An asyncio event that the engine's thread may set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the waiter. Thread-safe; does nothing after the loop has ended."""
        if not self._event.is_set():
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> None:
        """Wait until it is set and clear it, or return after this many seconds."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except asyncio.TimeoutError:
            return
        self._event.clear()


async def events(
    job: Job,
    reply: Reply,
    drafts: Drafts | None,
    *,
    usage: bool,
    heartbeat: float,
    explain: Callable[[Exception], ApiError],
) -> AsyncIterator[bytes]:
    """Yield the events of one answer: its final text as it grows, drafts in between, and its cost."""
    wakeup, text, over, sent = Wakeup(), reader(job.request), False, perf_counter()
    job.listen(wakeup.set)
    if opening := reply.opening():
        yield data(opening)
    while not over:
        over = job.future.done()  # checked before the snapshots are read, so that none is missed
        for snapshot in job.drain_snapshots():
            if drafts is not None:
                yield data(reply.draft(drafts.read(snapshot)), event="draft")
                sent = perf_counter()
            if more := text.read(settled(snapshot, job.request.run.canvas.mask_id)):
                yield data(reply.delta(more))
                sent = perf_counter()
        if not over:
            await wakeup.wait(max(0.0, sent + heartbeat - perf_counter()))
        if perf_counter() - sent >= heartbeat:  # many steps may yield no text
            yield HEARTBEAT
            sent = perf_counter()
    try:
        answer = job.result()
    except Exception as error:
        yield data(explain(error).body())
        return
    if more := answer.text[text.sent :]:
        yield data(reply.delta(more))
    yield data(reply.last(answer))
    if usage:
        yield data(reply.usage(answer))
    yield DONE


def data(value: dict[str, Any], event: str | None = None) -> bytes:
    """Encode one event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


class EventStream(Response):
    """Sends events until they end or the client hangs up, then cancels the job."""

    media_type = "text/event-stream"

    def __init__(self, job: Job, body: AsyncIterator[bytes], released: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._job = job
        self._body = body
        self._released = released

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        watching = asyncio.create_task(hung_up(receive))
        try:
            await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._job.cancel()
            self._released()
            for task in (sending, watching):
                task.cancel()
            await asyncio.gather(sending, watching, return_exceptions=True)
        if sending.done() and not sending.cancelled() and not watching.done():
            sending.result()

    async def _send_all(self, send: Send) -> None:
        start: Message = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        async for event in self._body:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def hung_up(receive: Receive) -> None:
    """Return when the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def wait_for_answer(job: Job, receive: Receive) -> Answer | None:
    """Wait for the answer; cancel the job and return None if the client hangs up first."""
    answering = asyncio.wrap_future(job.future)
    watching = asyncio.ensure_future(hung_up(receive))
    both: list[asyncio.Future[Any]] = [answering, watching]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else None
    finally:
        job.cancel()
        answering.cancel()
        watching.cancel()
        await asyncio.gather(answering, watching, return_exceptions=True)
