"""`unmask serve`: serve a model through OpenAI's HTTP interface."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.options import (
    DecodingOptions,
    ModelArgument,
    ModelArgumentOptions,
    ModelOptions,
    SamplerOptions,
    build_config,
)
from unmask.cli.runs import compile_now, load_model, worker_loader
from unmask.errors import FieldError
from unmask.plugins import short_name

if TYPE_CHECKING:
    from unmask.serving.limits import Limits
    from unmask.serving.settings import Settings

log = logging.getLogger(__name__)
KEY = "UNMASK_API_KEY"
RENAMED = {"max_batch": "max_rows"}  # options whose field has another name
_PANEL, _LIMITS, _CLUSTER = "Server", "Limits", "Cluster"


@dataclass(frozen=True, kw_only=True)
class ServerOptions(ModelArgumentOptions):
    """The model, the address and the access rules of the server."""

    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the model in requests.",
            show_default="MODEL, without the path of a folder",
            rich_help_panel=_PANEL,
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="one fewer than there are cores",
            help="CPU threads of the model.",
            rich_help_panel="Model",
        ),
    ] = None
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--batched",
            show_default="exact on a CPU",
            help="Run each row alone, so that others do not affect its rounding; or batch similar rows.",
            rich_help_panel="Model",
        ),
    ] = None
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=_PANEL)] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, rich_help_panel=_PANEL)] = 8000
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar=KEY,
            show_envvar=True,
            show_default="none: everybody is let in",
            help="Key that requests must carry.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Let pages of this origin call the server; may be repeated.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Accept requests to this host name, besides --host; * accepts any. May be repeated.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    special_tokens: Annotated[
        bool,
        typer.Option(
            "--special-tokens",
            help="Let prompts and messages contain special tokens, which can end a turn.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    log_prompts: Annotated[
        bool,
        typer.Option(
            "--log-prompts",
            help="Log prompts, texts and error messages.",
            rich_help_panel=_PANEL,
        ),
    ] = False

    log_json: Annotated[
        bool,
        typer.Option(
            "--log-json",
            show_default="only if standard error is not a terminal",
            help="Log JSON lines.",
            rich_help_panel=_PANEL,
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.api_key is not None and not self.api_key.strip():
            raise ValueError("--api-key must not be empty; leave it out to let everybody in")
        if self.api_key is None and KEY in os.environ:  # typer drops an empty one
            raise ValueError(f"{KEY} must not be empty; unset it to let everybody in")

    @property
    def logs_json(self) -> bool:
        """Whether to log JSON lines: if asked to, or if standard error is not a terminal."""
        return self.log_json or not sys.stderr.isatty()


def _limit(default: str, about: str) -> Any:
    """Return an option for a limit; a test compares `default` with that of Limits or Settings."""
    return typer.Option(show_default=default, help=about, rich_help_panel=_LIMITS)


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """Limits of the server; one left out keeps the default of Limits or Settings."""

    max_batch: Annotated[int | None, _limit("16", "Rows decoded together.")] = None
    max_batch_tokens: Annotated[int | None, _limit("32768", "Tokens of all rows.")] = None
    max_queue: Annotated[int | None, _limit("256", "Requests that may wait.")] = None
    max_streams: Annotated[int | None, _limit("512", "Answers streamed at the same time.")] = None
    max_connections: Annotated[int | None, _limit("1024", "Open connections.")] = None
    max_prompt_tokens: Annotated[int | None, _limit("4096", "Tokens of a prompt.")] = None
    max_new_tokens: Annotated[int | None, _limit("1024", "Tokens that a request may decode.")] = None
    max_steps: Annotated[int | None, _limit("1024", "Steps that a request may take.")] = None
    max_state_mb: Annotated[
        int | None, _limit("8192", "MiB that samplers may keep between steps, over all requests.")
    ] = None
    max_memory_mb: Annotated[
        int | None, _limit("what a GPU has free", "MiB of device memory that all requests may take.")
    ] = None
    max_body: Annotated[int | None, _limit("1048576", "Bytes of a request.")] = None
    deadline: Annotated[float | None, _limit("600", "Seconds from a request to its answer.")] = None

    def fields_of(self, kind: Any) -> dict[str, Any]:
        """Return the fields of Limits or Settings that the user set."""
        values = {RENAMED.get(name, name): value for name, value in asdict(self).items()}
        own = {item.name for item in fields(kind)}
        return {name: value for name, value in values.items() if name in own and value is not None}


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Replicas on a Ray cluster instead of this process."""

    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|local",
            help="Serve on a Ray cluster; local starts one here.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None
    replicas: Annotated[
        int | None,
        typer.Option(
            show_default="1", help="Replicas of the model; limits hold for each.", rich_help_panel=_CLUSTER
        ),
    ] = None
    max_replicas: Annotated[
        int | None,
        typer.Option(
            show_default="as many as --replicas",
            help="Start up to this many while requests wait.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None
    gpus_per_replica: Annotated[
        float | None,
        typer.Option(
            show_default="1 where the cluster has GPUs",
            help="GPUs of each replica, at most 1; with a fraction, replicas share a GPU.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None

    def __post_init__(self) -> None:
        for name in ("replicas", "max_replicas", "gpus_per_replica"):
            if getattr(self, name) is not None and self.ray is None:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(f"{option} needs a cluster; add --ray local or --ray ADDRESS")


def serve(
    server: ServerOptions,
    choice: SamplerOptions,
    decoding: DecodingOptions,
    bounds: LimitOptions,
    cluster: ClusterOptions,
    model: ModelArgument = None,
) -> None:
    """Serve a model over HTTP, for OpenAI's clients."""
    try:
        from unmask.serving.logs import log_lines
        from unmask.serving.server import serve as run
        from unmask.serving.server import warm_up_server
        from unmask.serving.settings import Settings
        from unmask.serving.sockets import bound
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == "unmask":
            raise
        raise ValueError(f"serving needs {error.name}; pip install 'unmask[serve]'") from None
    from unmask.serving.limits import Limits

    source = server.model(model)
    sampler, config = choice.build(), build_config(decoding)
    with _as_options():
        limits = Limits(**bounds.fields_of(Limits))
        settings = Settings(
            model_name=server.name or _public_name(source.model),
            sampler=sampler,
            sampler_name=choice.name,
            config=config,
            api_key=server.api_key,
            host=server.host,
            allowed_hosts=tuple(server.allowed_host or ()),
            cors=tuple(server.cors or ()),
            log_prompts=server.log_prompts,
            special_tokens=server.special_tokens,
            **bounds.fields_of(Settings),
        )
    limits.check_config(config)
    if cluster.ray is not None:
        _serve_on_ray(source, server, settings, limits, cluster)
        return
    with bound(server.host, server.port) as sockets:
        loaded = load_model(source)
        _set_threads(server.threads)
        log_lines(json=server.logs_json)
        warm_up = partial(warm_up_server, loaded, settings=settings, limits=limits, exact=server.exact)
        compile_now(loaded, source.model, warm_up, log.info)
        run(loaded, settings.within(loaded.info, limits), limits, sockets=sockets, exact=server.exact)


def _public_name(model: str) -> str:
    """Return the name of a model in requests; for a folder, its name without the path."""
    path = Path(model.removeprefix("hf:"))
    return path.resolve().name if path.is_dir() else short_name(model)


@contextmanager
def _as_options() -> Iterator[None]:
    """Name the option instead of the field in errors."""
    options = {own: name for name, own in RENAMED.items()}
    try:
        yield
    except FieldError as error:
        name = options.get(error.root, error.root)
        raise error.renamed(f"--{name.replace('_', '-')}") from None


def _serve_on_ray(
    model: ModelOptions, server: ServerOptions, settings: Settings, limits: Limits, cluster: ClusterOptions
) -> None:
    from unmask.fast.load import load_and_prepare
    from unmask.serving.ray_serve import Fleet, serve_on_ray
    from unmask.serving.server import warm_up_server

    fleet = Fleet(
        address=str(cluster.ray),
        replicas=1 if cluster.replicas is None else cluster.replicas,
        max_replicas=cluster.max_replicas,
        gpus=0 if server.device == "cpu" else cluster.gpus_per_replica,
        threads=server.threads or 1,
        exact=server.exact,
    )
    warm_up = partial(warm_up_server, settings=settings, limits=limits, exact=server.exact)
    load = worker_loader(model)
    loader = partial(load_and_prepare, load, warm_up) if model.compile else load
    serve_on_ray(
        loader, settings, limits, fleet, host=server.host, port=server.port, log_json=server.logs_json
    )


def _set_threads(threads: int | None) -> None:
    """Leave a core to HTTP: on a busy machine, threads that wait for each other are many times slower."""
    import torch

    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) - 1))
