"""Run and time samplers from other code on our models, through the interface that they expect.

A sampler is given as `PATH.py:FUNCTION`, or `"PATH.py:FUNCTION NAME=VALUE ..."` with extra arguments. The
function is called with the model, the prompt's ids [1, P] and the settings of `OtherSampler.call` that it has
parameters for.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from unmask.bench.internals import unaligned_logits
from unmask.bench.step import StepTime, StepTimer
from unmask.bench.timing import seconds
from unmask.models.dream import Dream
from unmask.models.trunk import Trunk

Sampling = Callable[..., object]
TOKENIZER = "tokenizer"  # some samplers accept one before the prompt, only for their traces


class PublishedModel(nn.Module):
    """A model with the interface of transformers: unaligned logits of every column, and a config."""

    def __init__(self, model: Trunk) -> None:
        super().__init__()
        self.model = model
        info = model.info
        end = info.eos_ids[0] if info.eos_ids else None
        self.config = SimpleNamespace(
            vocab_size=info.vocab_size, mask_token_id=info.mask_id, eos_token_id=end, pad_token_id=info.pad_id
        )
        self.forwards = 0

    @property
    def shifted(self) -> bool:
        """Whether the logits of column i predict column i + 1."""
        return isinstance(self.model, Dream)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def forward(
        self, input_ids: Tensor, attention_mask: object = None, *_: object, **__: object
    ) -> SimpleNamespace:
        attend = _attend(attention_mask)
        self.forwards += 1
        return SimpleNamespace(logits=unaligned_logits(self.model, input_ids, attend))


def _attend(mask: object) -> Tensor | None:
    """Return which columns are real, [B, N] bool, or None if all are."""
    if not isinstance(mask, Tensor):  # Dream's code passes "full"
        return None
    if mask.dim() != 2:
        raise ValueError(f"attention_mask must be [B, N] or left out, got {mask.dim()} dimensions")
    return mask.bool()


@dataclass(frozen=True, slots=True)
class OtherSampler:
    """A sampler from other code and its arguments."""

    name: str
    function: Sampling
    arguments: Mapping[str, object] = field(default_factory=dict)

    @staticmethod
    def read(text: str) -> OtherSampler:
        """Load the function that `PATH.py:FUNCTION [NAME=VALUE ...]` names."""
        target, *words = shlex.split(text) or [""]
        path, _, name = target.rpartition(":")
        file = Path(path)
        if file.suffix != ".py" or not file.is_file():
            raise ValueError(f"--reference must be PATH.py:FUNCTION with an existing file, got {text!r}")
        function = getattr(_module(file), name, None)
        if not callable(function):
            raise ValueError(f"--reference: {file.name} has no function {name!r}")
        return OtherSampler(" ".join([f"{file.name}:{name}", *words]), function, dict(map(_argument, words)))

    def call(self, model: PublishedModel, prompt: Tensor, *, steps: int, length: int, block: int) -> object:
        """Generate once."""
        known = {
            "steps": steps,
            **dict.fromkeys(("gen_length", "max_new_tokens"), length),
            "block_length": block,
            "temperature": 0.0,
            **dict.fromkeys(("mask_id", "mask_token_id"), model.config.mask_token_id),
            **self.arguments,
        }
        first, asked = self._parameters()
        missing = [name for name, needed in asked.items() if needed and name not in known]
        if missing:
            raise ValueError(
                f"{self.name} needs {', '.join(missing)}, which has no value here; "
                f"add {missing[0]}=VALUE after the function's name"
            )
        settings = {name: value for name, value in known.items() if name in asked or name in self.arguments}
        before = (model, None) if TOKENIZER in first else (model,)
        try:
            return self.function(*before, prompt, **settings)
        except Exception as error:  # other code can raise anything
            raise RuntimeError(f"{self.name} failed with {type(error).__name__}: {error}") from error

    def time(self, timer: StepTimer) -> StepTime:
        """Time a step, and its forward with the head on every column.

        The time of a step is the difference between runs of T and T / 2 steps, divided by the difference in
        their forwards, so that the cost of starting a run cancels out.
        """
        model, canvas, sizes = PublishedModel(timer.model), timer.canvas(1), timer.sizes
        prompt = canvas.tokens[:, : canvas.start]

        def run(steps: int) -> int:
            before = model.forwards
            self.call(model, prompt, steps=steps, length=sizes.length, block=sizes.block)
            if model.forwards == before:
                raise ValueError(f"{self.name} did not run the model that it was given")
            return model.forwards - before

        few, many = sizes.budgets[0] // 2, sizes.budgets[0]
        more = run(many) - run(few)
        step = None
        if more > 0:
            shorter, longer = (seconds(partial(run, steps), timer.device) for steps in (few, many))
            step = (longer - shorter) * 1e3 / more
        return StepTime(forward_ms=timer.milliseconds(partial(model, canvas.tokens)), step_ms=step)

    def _parameters(self) -> tuple[list[str], dict[str, bool]]:
        """Return the parameters up to the prompt, and for each later one whether it is required."""
        parameters = {
            name: parameter.default is parameter.empty
            for name, parameter in inspect.signature(self.function).parameters.items()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }
        names = list(parameters)
        count = 3 if TOKENIZER in names[:2] else 2
        return names[:count], {name: parameters[name] for name in names[count:]}


def _argument(word: str) -> tuple[str, object]:
    name, is_there, text = word.partition("=")
    if not (name.isidentifier() and is_there):
        raise ValueError(f"--reference: an argument must be NAME=VALUE, got {word!r}")
    try:
        return name, ast.literal_eval(text)
    except (SyntaxError, ValueError):  # a plain word
        return name, text


def _module(file: Path) -> Any:
    """Import the file. Its own imports are also searched in its folder and in the folder above."""
    spec = importlib.util.spec_from_file_location(f"reference_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _importing_from(file.resolve().parent, file.resolve().parent.parent):
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            raise ValueError(f"--reference: {file.name} cannot be imported: {error}") from error
    return module


@contextmanager
def _importing_from(*folders: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path[:0] = map(str, folders)
    try:
        yield
    finally:
        sys.path[:] = before
