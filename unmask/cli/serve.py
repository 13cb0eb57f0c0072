"""`unmask serve`: a model behind OpenAI's HTTP interface."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.options import DEFAULT_MODEL, ModelOptions, SamplerOptions, StepOptions, build_config
from unmask.cli.runs import load_model
from unmask.errors import FieldError

if TYPE_CHECKING:
    from unmask.serving.limits import Limits
    from unmask.serving.settings import Settings

MODELS = "mini-llada, mini-dream, a checkpoint folder or a hub id."
KEY = "UNMASK_API_KEY"
RENAMED = {"max_batch": "max_rows"}  # options whose field has another name
ModelName = Annotated[str | None, typer.Argument(metavar="MODEL", show_default=DEFAULT_MODEL, help=MODELS)]
_PANEL, _LIMITS, _CLUSTER = "Server", "Limits", "Cluster"


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Which model is served and where, and whom the server lets in."""

    named: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="The same as MODEL, as other commands take it.",
            rich_help_panel="Model",
        ),
    ] = None
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
            envvar=KEY,
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

    def __post_init__(self) -> None:
        if self.api_key is not None and not self.api_key.strip():
            raise ValueError("--api-key must not be empty; leave it out to let everybody in")
        if self.api_key is None and KEY in os.environ:  # an empty one does not get here
            raise ValueError(f"{KEY} must not be empty; unset it to let everybody in")

    def model(self, given: str | None) -> str:
        """The model that the argument or the option names."""
        if given is not None and self.named is not None:
            raise ValueError(f"the model must be named once, got {given!r} and --model {self.named!r}")
        return given or self.named or DEFAULT_MODEL


def _limit(default: str, about: str | None = None) -> Any:
    """A limit; `default` repeats its owner's for the help page, and a test holds it to that."""
    return typer.Option(show_default=default, help=about, rich_help_panel=_LIMITS)


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """How much is taken on; one left out keeps the default of Limits or Settings."""

    max_batch: Annotated[int | None, _limit("16", "Rows decoded together.")] = None
    max_batch_tokens: Annotated[int | None, _limit("32768", "Rows times the longest of them.")] = None
    max_queue: Annotated[int | None, _limit("256", "Requests that may wait.")] = None
    max_streams: Annotated[int | None, _limit("512", "Answers streamed at the same time.")] = None
    max_prompt_tokens: Annotated[int | None, _limit("4096")] = None
    max_new_tokens: Annotated[int | None, _limit("1024")] = None
    max_steps: Annotated[int | None, _limit("1024")] = None
    max_body: Annotated[int | None, _limit("1048576", "Bytes of a request.")] = None
    deadline: Annotated[float | None, _limit("600", "Seconds from a request to its answer.")] = None

    def given(self, kind: Any) -> dict[str, Any]:
        """The fields of Limits or Settings that were given."""
        values = {RENAMED.get(name, name): value for name, value in asdict(self).items()}
        own = {item.name for item in fields(kind)}
        return {name: value for name, value in values.items() if name in own and value is not None}


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
    decoding: StepOptions,
    bounds: LimitOptions,
    cluster: ClusterOptions,
    model: ModelName = None,
) -> None:
    """Serve a model over HTTP, in the form that OpenAI's clients speak."""
    try:
        from unmask.serving.logs import log_json
        from unmask.serving.server import serve as run
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
        limits = Limits(**bounds.given(Limits))
        settings = Settings(
            model_name=server.name or source,
            sampler=sampler,
            sampler_name=choice.sampler,
            config=config,
            api_key=server.api_key,
            cors=tuple(server.cors or ()),
            log_prompts=server.log_prompts,
            **bounds.given(Settings),
        )
    limits.check_config(config)
    if cluster.ray is not None:
        _serve_on_ray(source, server, settings, limits, cluster)
        return
    with bound(server.host, server.port) as sockets:
        loaded = load_model(ModelOptions(model=source, device=server.device, dtype=server.dtype))
        _set_threads(server.threads)
        log_json()
        run(loaded, settings.within(loaded.info, limits), limits, sockets=sockets, exact=server.exact)


@contextmanager
def _as_options() -> Iterator[None]:
    """Errors begin with the field that is wrong; here it is called by its option."""
    options = {own: name for name, own in RENAMED.items()}
    try:
        yield
    except FieldError as error:
        name = options.get(error.root, error.root)
        raise error.renamed(f"--{name.replace('_', '-')}") from None


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
    import torch

    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) - 1))
