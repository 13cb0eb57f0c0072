"""Serve on a Ray cluster: Ray Serve's proxies in front of replicas, each with its own engine.

Limits apply per replica. Ray restarts a replica that dies; its running requests fail, the others continue.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

from unmask.errors import FieldError, whole
from unmask.ray_cluster import connected
from unmask.serving.app import create_app
from unmask.serving.engine import Engine, exact_costs_little
from unmask.serving.limits import Limits
from unmask.serving.logs import log_lines
from unmask.serving.metrics import Metrics
from unmask.serving.settings import Settings
from unmask.text.prompts import TextModel

log = logging.getLogger(__name__)
NAME = "unmask"  # of the application and of its deployment
SPARE = 64  # extra requests that a full replica accepts only to reject them itself
COUNT_SECONDS = 5.0  # timeout for a replica to report its metrics
LONGEST = 3600.0  # seconds for requests to finish, if there is no deadline
STARTS = 3  # attempts to start the first replica
SIGNALS = (signal.SIGINT, signal.SIGTERM)

Load = Callable[[], TextModel]  # called once by every replica
Counted = tuple[str, list[Metric]]  # id of a replica, and its metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The number of replicas, and the resources of each."""

    address: str = "local"
    replicas: int = 1
    max_replicas: int | None = None  # upper bound while requests wait; None means no autoscaling
    gpus: float | None = None  # per replica; None means one if the cluster has any
    threads: int = 1  # CPU threads per replica, which also reserves as many CPUs
    exact: bool | None = None  # None means if it costs little

    def __post_init__(self) -> None:
        whole("replicas", self.replicas, 1)
        whole("threads", self.threads, 1)
        if self.max_replicas is not None:
            whole("max_replicas", self.max_replicas, self.replicas)
        if self.gpus is not None and not 0 <= self.gpus <= 1:
            raise FieldError("gpus", self.gpus, "must be in [0, 1], because a replica uses one at most")

    def share(self, there: dict[str, float]) -> dict[str, float]:
        """Return the resources of a replica; raise if the cluster has too few."""
        gpus = float(there.get("GPU", 0) >= 1) if self.gpus is None else self.gpus
        share = {"num_cpus": float(self.threads), "num_gpus": gpus}
        for kind, each in (("CPU", share["num_cpus"]), ("GPU", gpus)):
            if self.replicas * each > there.get(kind, 0):
                total = f"{there.get(kind, 0):g} {kind}s"
                problem = f"must fit on the cluster, where each takes {each:g} of {total}"
                raise FieldError("replicas", self.replicas, problem)
        return share

    def scaling(self, rows: int) -> dict[str, Any]:
        """Return Ray Serve's scaling options; more than `rows` requests per replica add replicas."""
        if self.max_replicas is None:
            return {"num_replicas": self.replicas}
        bounds = {"min_replicas": self.replicas, "max_replicas": self.max_replicas}
        return {"autoscaling_config": {**bounds, "target_ongoing_requests": rows}}


class Replica:
    """A copy of the model with its engine and application."""

    def __init__(self, load: Load, settings: Settings, limits: Limits, fleet: Fleet) -> None:
        from ray import serve

        log_lines()
        torch.set_num_threads(fleet.threads)
        model = load()
        exact = exact_costs_little(model) if fleet.exact is None else fleet.exact
        self.id = str(serve.get_replica_context().replica_id.unique_id)
        self.settings = settings.within(model.info, limits)
        self.metrics = Metrics()
        self.engine = Engine(model, limits, self.metrics, exact=exact)
        self.engine.start()

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application; called by Ray Serve."""
        return create_app(self.engine, self.settings, count=_count_all, answer_id=False)

    def count(self) -> Counted:
        """Return the metrics of this replica."""
        return self.id, list(self.metrics.registry.collect())

    def check_health(self) -> None:
        """Raise if the engine has ended; Ray Serve then replaces the replica."""
        if not self.engine.is_ready:
            raise RuntimeError("the engine has ended")

    def __del__(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close(now=True)  # Ray Serve has already waited for the requests


class Page(CollectorRegistry):
    """A registry that merges the metrics of all replicas."""

    def __init__(self, counted: Iterable[Counted]) -> None:
        super().__init__()
        self._counted = list(counted)

    def collect(self) -> Iterator[Metric]:
        """Yield each metric once, with its samples labelled by replica."""
        merged: dict[str, Metric] = {}
        for replica, metrics in self._counted:
            for metric in metrics:
                own = merged.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                own.samples += [
                    sample._replace(labels={**sample.labels, "replica": replica}) for sample in metric.samples
                ]
        yield from merged.values()


async def _count_all() -> bytes:
    """Return the metrics of all replicas in the Prometheus format; skip replicas that do not answer."""
    from ray import serve

    responses = serve.get_deployment_handle(NAME, NAME).broadcast("count")
    counts = await responses.results_async(timeout_s=COUNT_SECONDS, return_exceptions=True)
    return generate_latest(Page(one for one in counts if not isinstance(one, Exception)))


def serve_on_ray(
    load: Load,
    settings: Settings,
    limits: Limits,
    fleet: Fleet,
    *,
    host: str,
    port: int,
    log_json: bool = True,
) -> None:
    """Serve until a signal arrives; the first lets running requests finish, the second does not."""
    with connected(fleet.address, "ray.serve", log_to_driver=True) as ray, _signalled() as stop:
        serve, share = ray.serve, fleet.share(ray.cluster_resources())
        log_lines(json=log_json)
        logging.getLogger("ray.serve").setLevel("WARNING")
        _listen(serve, host, port)
        _deploy(serve, load, settings, limits, fleet, share)
        log.info("serving", extra={"url": f"http://{host}:{port}", "replicas": fleet.replicas})
        stop.wait()
        with suppress(KeyboardInterrupt):
            _delete(serve)


def _listen(serve: Any, host: str, port: int) -> None:
    """Start Ray Serve's proxies."""
    try:
        serve.start(http_options={"host": host, "port": port}, logging_config=_quiet())
    except RuntimeError as error:
        reason = _last_line(str(error))
        raise ValueError(f"host and port must be free, got {host}:{port} ({reason})") from None


def _deploy(
    serve: Any, load: Load, settings: Settings, limits: Limits, fleet: Fleet, share: dict[str, float]
) -> None:
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        ray_actor_options=share,
        max_ongoing_requests=limits.max_rows + limits.max_queue + SPARE,
        graceful_shutdown_timeout_s=limits.deadline or LONGEST,
        max_constructor_retry_count=STARTS,
        logging_config=_quiet(),
        **fleet.scaling(limits.max_rows),
    )
    try:
        serve.run(deployment.bind(load, settings, limits, fleet), name=NAME, route_prefix="/")
    except RuntimeError:
        reason = _last_line(serve.status().applications[NAME].deployments[NAME].message)
        serve.delete(NAME)
        raise ValueError(f"the replicas could not start: {reason}") from None


def _last_line(text: str) -> str:
    """Return the last line of a traceback: the exception."""
    return text.strip().rpartition("\n")[2]


def _delete(serve: Any) -> None:
    """Remove the application from the cluster; replicas finish their requests first."""
    log.info("closing")
    while NAME in serve.status().applications:
        try:
            serve.delete(NAME)
        except TimeoutError:  # Ray waits at most a minute
            continue


def _quiet() -> dict[str, Any]:
    """Return options that log only Ray Serve's warnings; we log requests ourselves."""
    return {"log_level": "WARNING", "enable_access_log": False}


@contextmanager
def _signalled() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets; the second raises KeyboardInterrupt."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
