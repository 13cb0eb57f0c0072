"""Samplers of other code, called as their authors call them, on our model behind their model's interface.

A reference is `PATH.py:FUNCTION`, or `"PATH.py:FUNCTION NAME=VALUE ..."` where it needs more. The function
gets the model, the prompt's ids [1, P] and, of the names in `Reference.call`, those that it has.
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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from unmask.models.dream import Dream
from unmask.models.trunk import Trunk

Sampling = Callable[..., object]
TOKENIZER = "tokenizer"  # some take one before the prompt, and use it for their traces only


class Published(nn.Module):
    """A trunk as transformers would give it: logits of every column, not aligned, and the usual names."""

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
        """Whether state i predicts column i + 1."""
        return isinstance(self.model, Dream)

    @property
    def device(self) -> torch.device:
        return self.model.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.norm.weight.dtype

    def forward(
        self, input_ids: Tensor, attention_mask: object = None, *_: object, **__: object
    ) -> SimpleNamespace:
        attend = _attend(attention_mask)
        self.forwards += 1
        states = self.model.states(input_ids, attend, slice(0, input_ids.shape[1]), None)
        return SimpleNamespace(logits=self.model.logits(states))


def _attend(mask: object) -> Tensor | None:
    """Real columns [B, N]; None: all."""
    if not isinstance(mask, Tensor):  # Dream's code says "full"
        return None
    if mask.dim() != 2:
        raise ValueError(f"attention_mask must be [B, N] or left out, got {mask.dim()} dimensions")
    return mask.bool()


@dataclass(frozen=True, slots=True)
class Reference:
    """A sampler of other code and how it is called."""

    name: str
    function: Sampling
    arguments: Mapping[str, object] = field(default_factory=dict)

    @staticmethod
    def read(text: str) -> Reference:
        """The function that `PATH.py:FUNCTION [NAME=VALUE ...]` names."""
        target, *words = shlex.split(text) or [""]
        path, _, name = target.rpartition(":")
        file = Path(path)
        if file.suffix != ".py" or not file.is_file():
            raise ValueError(f"--reference must be PATH.py:FUNCTION with a file that is there, got {text!r}")
        function = getattr(_module(file), name, None)
        if not callable(function):
            raise ValueError(f"--reference: {file.name} has no function {name!r}")
        return Reference(" ".join([f"{file.name}:{name}", *words]), function, dict(map(_argument, words)))

    def call(self, model: Published, prompt: Tensor, *, steps: int, length: int, block: int) -> object:
        """One generation."""
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
                f"{self.name} needs {', '.join(missing)}, which is not known here; "
                f"add {missing[0]}=VALUE after the function's name"
            )
        settings = {name: value for name, value in known.items() if name in asked or name in self.arguments}
        before = (model, None) if TOKENIZER in first else (model,)
        try:
            return self.function(*before, prompt, **settings)
        except Exception as error:  # other people's code may fail in any way
            raise RuntimeError(f"{self.name} failed with {type(error).__name__}: {error}") from error

    def _parameters(self) -> tuple[list[str], dict[str, bool]]:
        """The names up to the prompt, and those behind it: whether they must be given."""
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
    except (SyntaxError, ValueError):  # a word
        return name, text


def _module(file: Path) -> Any:
    """The file as a module; what it imports is also looked for beside it and one folder above."""
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
