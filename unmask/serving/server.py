"""The server process: the application on its sockets, and signal handling."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import FrameType
from typing import Any

import uvicorn

from unmask.fast.warm_up import STEPS, batch_sizes, dummy_prompt
from unmask.serving.app import create_app
from unmask.serving.connections import Connection, Connections, raise_descriptor_limit
from unmask.serving.engine import Engine, exact_costs_little
from unmask.serving.limits import Limits
from unmask.serving.metrics import Metrics
from unmask.serving.settings import Settings
from unmask.serving.sockets import Listener
from unmask.text.prompts import TextModel

log = logging.getLogger(__name__)
DESCRIPTORS = 256  # in addition to one per connection
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """Finish running requests on the first signal, drop them on the second, disconnect on the third."""

    def __init__(self, config: uvicorn.Config, engine: Engine, connections: Connections) -> None:
        super().__init__(config)
        self._engine = engine
        self._connections = connections
        self._signals = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, and log the URLs, which uvicorn omits for given sockets."""
        for listener in sockets or ():
            if isinstance(listener, Listener):
                listener.out_of_descriptors = self._connections.out_of_descriptors
        await super().startup(sockets=sockets)
        self._connections.fit_descriptors()
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            name = f"[{host}]" if listener.family == socket.AF_INET6 else host
            log.info("serving", extra={"url": f"http://{name}:{port}"})

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        self.should_exit = True
        self._engine.drain(now=self._signals > 1)  # waiting clients get a 503 at once
        self.force_exit = self._signals > 2

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, but do not raise them again, so the exit code is 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def make_server(engine: Engine, settings: Settings) -> Server:
    """Return the server of an engine, ready to run on bound sockets."""
    app = create_app(engine, settings)
    connections = Connections(
        settings.max_connections,
        header_seconds=settings.header_seconds,
        stall_seconds=settings.stall_seconds,
    )
    protocol: Any = partial(Connection, all_connections=connections)
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        loop="asyncio",  # it calls Listener.accept; uvloop does not
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
    )
    return Server(config, engine, connections)


def warm_up_server(
    model: TextModel, *, settings: Settings, limits: Limits, exact: bool | None = None
) -> float:
    """Compile for every batch size that the server runs, and return the seconds it took."""
    began = perf_counter()
    if exact is None:
        exact = exact_costs_little(model)
    config = settings.within(model.info, limits).config
    length = config.new_tokens(model.info)
    blocks = -(-length // (config.block_size(model.info, length) or length))
    few_steps = replace(config, steps=min(config.steps or length, blocks * STEPS), stop=())
    # the largest first, because a pool of keys and values that grows drops its captured forwards
    for rows in (1,) if exact else reversed(batch_sizes(limits.max_rows)):
        # without overlap, because decisions for all rows must be compiled too
        engine = Engine(model, limits, exact=exact, overlap=False)
        prompt = dummy_prompt(model.info, length)
        jobs = [engine.submit(prompt, settings.sampler, few_steps) for _ in range(rows)]
        with engine:  # starts after all are submitted, so that they share every step
            for job in jobs:
                job.result()
    return perf_counter() - began


def serve(
    model: TextModel,
    settings: Settings,
    limits: Limits,
    *,
    sockets: Sequence[socket.socket],
    exact: bool | None = None,
) -> None:
    """Serve on bound sockets until a signal arrives; `exact=None` means exact if it costs little."""
    if exact is None:
        exact = exact_costs_little(model)
    raise_descriptor_limit(settings.max_connections + DESCRIPTORS)
    engine = Engine(model, limits, Metrics(), exact=exact)
    server = make_server(engine, settings)
    gc.collect()
    gc.freeze()  # a full collection that also visits torch's modules would stall every request
    engine.start()
    try:
        server.run(sockets=list(sockets))
    finally:
        engine.close(now=True)  # all connections are closed, so no client waits for an answer
        gc.unfreeze()
