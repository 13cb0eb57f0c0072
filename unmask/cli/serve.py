"""`unmask serve`: a model behind OpenAI's HTTP interface."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import DEFAULT_MODEL, DecodingOptions, ModelOptions, SamplerOptions, build_config
from unmask.cli.runs import load_model

if TYPE_CHECKING:
    from unmask.serving.limits import Limits
    from unmask.serving.settings import Settings

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="mini-llada, mini-dream, a checkpoint folder or a hub id.")
]
_PANEL, _LIMITS, _CLUSTER = "Server", "Limits", "Cluster"


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where the server listens and whom it lets in."""

    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.", rich_help_panel="Model")] = (
        "auto"
    )
    dtype: Annotated[
        str, typer.Option(help="auto, float32, bfloat16, float16 or int8.", rich_help_panel="Model")
    ] = "auto"
    name: Annotated[
        str | None,
        typer.Option(
            help="What requests call the model.", show_default="the MODEL given", rich_help_panel=_PANEL
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="one less than there are cores",
            help="CPU threads of the model.",
            rich_help_panel="Model",
        ),
    ] = None
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--batched",
            show_default="exact on a CPU",
            help="Run the model on rows alone: no rounding by neighbours. Or on rows of like length at once.",
            rich_help_panel="Model",
        ),
    ] = None
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=_PANEL)] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, rich_help_panel=_PANEL)] = 8000
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="UNMASK_API_KEY",
            show_envvar=True,
            show_default="everybody is let in",
            help="Key that requests must carry.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN", help="Let pages of this origin call; may be repeated.", rich_help_panel=_PANEL
        ),
    ] = None
    log_prompts: Annotated[
        bool,
        typer.Option("--log-prompts", help="Write prompts and texts to the log.", rich_help_panel=_PANEL),
    ] = False


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """How much is taken on."""

    max_batch: Annotated[int, typer.Option(help="Rows decoded together.", rich_help_panel=_LIMITS)] = 16
    max_batch_tokens: Annotated[
        int, typer.Option(help="Rows times the longest of them.", rich_help_panel=_LIMITS)
    ] = 32768
    max_queue: Annotated[int, typer.Option(help="Requests that may wait.", rich_help_panel=_LIMITS)] = 256
    max_streams: Annotated[
        int, typer.Option(help="Answers streamed at the same time.", rich_help_panel=_LIMITS)
    ] = 512
    max_prompt_tokens: Annotated[int, typer.Option(rich_help_panel=_LIMITS)] = 4096
    max_new_tokens: Annotated[int, typer.Option(rich_help_panel=_LIMITS)] = 1024
    max_steps: Annotated[int, typer.Option(rich_help_panel=_LIMITS)] = 1024
    max_body: Annotated[int, typer.Option(help="Bytes of a request.", rich_help_panel=_LIMITS)] = 1 << 20
    deadline: Annotated[
        float, typer.Option(help="Seconds from a request to its answer.", rich_help_panel=_LIMITS)
    ] = 600.0


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Who decodes, if it is not this process."""

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
            help="Start up to so many while requests wait.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None
    gpus_per_replica: Annotated[
        float | None,
        typer.Option(
            show_default="1 where the cluster has GPUs",
            help="GPUs of each replica, at most 1; a share lets replicas use one GPU together.",
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
    model: ModelName = DEFAULT_MODEL,
) -> None:
    """Serve a model over HTTP, in the form that OpenAI's clients speak."""
    try:
        from unmask.serving.logs import log_json
        from unmask.serving.server import serve as run
        from unmask.serving.settings import Settings
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == "unmask":
            raise
        raise ValueError(f"serving needs {error.name}; pip install 'unmask[serve]'") from None
    from unmask.serving.limits import Limits

    limits = Limits(
        max_rows=bounds.max_batch,
        max_batch_tokens=bounds.max_batch_tokens,
        max_queue=bounds.max_queue,
        max_prompt_tokens=bounds.max_prompt_tokens,
        max_new_tokens=bounds.max_new_tokens,
        max_steps=bounds.max_steps,
        deadline=bounds.deadline,
    )
    settings = Settings(
        model_name=server.name or model,
        sampler=choice.build(),
        sampler_name=choice.sampler,
        config=build_config(decoding),
        api_key=server.api_key,
        cors=tuple(server.cors or ()),
        max_body=bounds.max_body,
        max_streams=bounds.max_streams,
        log_prompts=server.log_prompts,
    )
    limits.check_config(settings.config)
    if cluster.ray is not None:
        _serve_on_ray(model, server, settings, limits, cluster)
        return
    loaded = load_model(ModelOptions(model=model, device=server.device, dtype=server.dtype))
    _set_threads(server.threads)
    log_json()
    settings = settings.within(loaded.info, limits)
    run(loaded, settings, limits, host=server.host, port=server.port, exact=server.exact)


def _serve_on_ray(
    model: str, server: ServerOptions, settings: Settings, limits: Limits, cluster: ClusterOptions
) -> None:
    from unmask.models import load
    from unmask.serving.ray_serve import Fleet, serve_on_ray

    fleet = Fleet(
        address=str(cluster.ray),
        replicas=1 if cluster.replicas is None else cluster.replicas,
        max_replicas=cluster.max_replicas,
        gpus=0 if server.device == "cpu" else cluster.gpus_per_replica,
        threads=server.threads or 1,
        exact=server.exact,
    )
    # a replica has a working folder of its own
    source = str(Path(model).resolve()) if Path(model).exists() else model
    replica = partial(load, source, device=server.device, dtype=server.dtype)
    serve_on_ray(replica, settings, limits, fleet, host=server.host, port=server.port)


def _set_threads(threads: int | None) -> None:
    """Leave a core to HTTP: threads that wait for each other on a busy machine take many times as long."""
    import os

    import torch

    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) - 1))
