"""One run: the model is loaded and compiled here, and watchers see each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import typer

from unmask.cli.keys import no_echo, stopping_between_steps
from unmask.cli.live import FRAMES_PER_SECOND, Throttle, can_show, showing
from unmask.cli.options import ModelOptions, OutputOptions
from unmask.cli.picture import Picture
from unmask.progress import progress

if TYPE_CHECKING:
    from unmask.decoding.canvas import Canvas
    from unmask.models.trunk import Trunk
    from unmask.text.config import GenerationConfig
    from unmask.text.generate import PreparedRun
    from unmask.types import Sampler, Step

Watcher = Callable[["Step"], None]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The model, the sampler and the settings of a run, with the names that the user gave them."""

    model: Trunk
    model_name: str
    sampler: Sampler
    sampler_name: str
    config: GenerationConfig
    trace_errors: list[OSError] = field(default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", self.config.seeded())  # one seed for all runs and their traces

    @property
    def shown_seed(self) -> int | None:
        """The seed of all prompts, or None if no token is drawn."""
        return self.config.seeds(1)[0] if self.config.temperature > 0 else None

    def check_trace(self) -> None:
        """Raise if a trace could not be written. Call it after the text is printed."""
        for error in self.trace_errors:
            raise error

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones included."""
        from unmask.text.tracing import spell

        return spell(self.model, tokens)


def load_model(options: ModelOptions) -> Trunk:
    """Load the model, to be compiled if the options say so; `compile_now` warms it up."""
    from unmask.fast.load import load_model as load

    with progress(f"loading {options.model}"):
        return load(options.model, device=options.device, dtype=options.dtype, compile=options.compile)


def worker_loader(options: ModelOptions) -> Callable[[], Trunk]:
    """Return a loader that a Ray worker can call from another working folder."""
    from unmask.fast.load import load_model as load
    from unmask.models.checkpoint.load import absolute_name

    source = absolute_name(options.model)
    return partial(load, source, device=options.device, dtype=options.dtype, compile=options.compile)


def compile_now(
    model: Trunk, name: str, warm_up: Callable[[], float], say: Callable[[str], object] | None = None
) -> None:
    """Run `warm_up` if the model is compiled, and print how long it took."""
    from unmask.fast.load import is_compiled

    if not is_compiled(model):
        return
    with progress(f"compiling {name}"):
        seconds = warm_up()
    (say or say_dimly)(f"compiled {name} ({_shape(model)}): {seconds:.1f} s")


def say_dimly(line: str) -> None:
    """Print a line on standard error, like every progress line."""
    typer.secho(line, dim=True, err=True)


def _shape(model: Trunk) -> str:
    """Return the layers, the dtype and the device of a model in a few words."""
    import torch

    weight = model.norm.weight
    device = torch.cuda.get_device_name(weight.device) if weight.is_cuda else weight.device.type.upper()
    return f"{len(model.layers)} layers, {str(weight.dtype).removeprefix('torch.')}, {device}"


@contextmanager
def watching(
    setup: Setup, run: PreparedRun, output: OutputOptions, *, first: int = 0, bar: bool = True
) -> Iterator[Iterator[Step]]:
    """Yield the steps of a run, shown and recorded as the options say.

    A live picture begins with the column `first`; without one, a bar shows the progress.
    """
    with ExitStack() as stack:
        stack.enter_context(no_echo())
        watchers: list[Watcher] = [stack.enter_context(stopping_between_steps())]
        if output.trace is not None:
            from unmask.text.tracing import header_of
            from unmask.trace import recording

            header = header_of(run.run, sampler=setup.sampler_name, model=setup.model_name)
            record = recording(
                output.trace,
                header,
                text=lambda token: setup.decode([token]),
                failed=setup.trace_errors.append,
            )
            watchers.append(stack.enter_context(record))
        if can_show(output.live):
            watchers.append(stack.enter_context(_live(setup, run, first)))
        elif bar:
            watchers.append(stack.enter_context(token_bar(run.canvas)))
        yield watched(run.steps, watchers)


def watched(steps: Iterator[Step], watchers: Sequence[Watcher]) -> Iterator[Step]:
    """Yield steps after each watcher has seen them."""
    for step in steps:
        for watch in watchers:
            watch(step)
        yield step


@contextmanager
def _live(setup: Setup, run: PreparedRun, first: int) -> Iterator[Watcher]:
    from rich.console import Console

    title = f"unmask · {setup.sampler_name} · {setup.model_name}"
    picture = Picture(run.canvas, run.plan, setup.decode, setup.model.info.eos_ids, title, first)
    with showing(picture, Console()) as watch:
        yield watch


@contextmanager
def token_bar(canvas: Canvas, patience: float | None = None) -> Iterator[Watcher]:
    """Show a bar of committed tokens after `patience` seconds."""
    total = int((canvas.tokens == canvas.mask_id).sum())
    throttle = Throttle(FRAMES_PER_SECOND)
    with progress("decoding", total, patience) as update:

        def watch(step: Step) -> None:
            if throttle.due():  # counting waits for the device
                update(total - int((step.tokens == canvas.mask_id).sum()))

        yield watch
