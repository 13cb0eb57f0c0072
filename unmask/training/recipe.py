"""Recipes: everything that defines a training run, in one TOML (Python 3.11) or JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from unmask.errors import FieldError, at_least, known_field, one_of, positive, within
from unmask.files import read_utf8
from unmask.training.data import DataSpec
from unmask.training.masking import Masking
from unmask.training.muon import OptimizerSpec
from unmask.training.objective import LossWeights

Decay = Literal["linear", "cosine"]
Precision = Literal["auto", "bfloat16", "float32"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The model to train: fresh weights of a config, or a checkpoint to fine-tune.

    Attributes:
        config: Content of config.json for fresh weights, only without load. Ids and sizes of the vocabulary
            are optional.
        tokenizer: Folder of the tokenizer, only with config. None means the checkpoint's tokenizer.
        load: Checkpoint folder or hub id to fine-tune. None means fresh weights.
        layers: Number of layers, >= 2, only with load. None means as many as the checkpoint has. Added layers
            change nothing at first. With fewer layers, the ones kept are spread evenly.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    load: str | None = None
    layers: int | None = None

    def __post_init__(self) -> None:
        if bool(self.config) == (self.load is not None):
            problem = (
                "must be given (to fine-tune a checkpoint) or a config table (for fresh weights), not both"
            )
            raise FieldError("load", self.load, problem)
        if self.config and self.tokenizer is None:
            raise FieldError("tokenizer", None, "must name a folder when the weights are fresh")
        if self.load is not None and self.tokenizer is not None:
            problem = "must be left out beside load, because a checkpoint brings its own"
            raise FieldError("tokenizer", self.tokenizer, problem)
        if self.load is None and self.layers is not None:
            remedy = "write the number of layers into config"
            raise FieldError("layers", self.layers, "must be left out without load", remedy)
        if self.layers is not None:
            at_least("layers", self.layers, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The length of a run and its learning rate: warm up, stay flat, decay to zero.

    Attributes:
        steps: Optimiser steps, >= 1.
        max_seconds: Time limit, at which the learning rate reaches zero. None means no limit.
        warmup_steps: Steps in which the learning rate rises from zero, >= 0.
        flat_until: Share of the run after which the learning rate decays, 0 to 1.
        decay: Shape of the decay to zero: "linear" or "cosine".
    """

    steps: int
    max_seconds: float | None = None
    warmup_steps: int = 200
    flat_until: float = 0.4
    decay: Decay = "linear"

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)
        at_least("warmup_steps", self.warmup_steps, 0)
        within("flat_until", self.flat_until, 0, 1)
        one_of("decay", self.decay, get_args(Decay))
        if self.max_seconds is not None:
            positive("max_seconds", self.max_seconds)

    def progress(self, step: int, elapsed: float) -> float:
        """Return the share of the run that is over, by steps or by time, whichever is larger."""
        timed = 0.0 if self.max_seconds is None else elapsed / self.max_seconds
        return min(1.0, max(step / self.steps, timed))

    def factor(self, step: int, progress: float) -> float:
        """Return the learning rate factor of a step, counted from 0."""
        up = min(1.0, (step + 1) / (self.warmup_steps + 1))
        if progress <= self.flat_until:
            return up
        left = (1 - progress) / (1 - self.flat_until)
        return up * (left if self.decay == "linear" else (1 - math.cos(math.pi * left)) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """How a run is executed: batches, precision, logs and checkpoints.

    Attributes:
        batch_size: Rows of a step, >= 1.
        micro_batches: Parts of a batch that run one after another to save memory. Must divide batch_size.
        precision: "float32", "bfloat16" for autocast, or "auto" for bfloat16 on CUDA and float32 elsewhere.
            Weights stay in float32.
        compile: Compile the model, which makes a run slower to start and faster on a GPU from then on.
        ema: Decay of the weight average that is saved at the end, below 1, or 0 for no average.
        log_every: Steps between log lines. The host waits for the device only to log.
        validate_every: Steps between two validations.
        checkpoint_every: Steps between two checkpoints.
    """

    batch_size: int = 384
    micro_batches: int = 1
    precision: Precision = "auto"
    compile: bool = False
    ema: float = 0.0
    log_every: int = 50
    validate_every: int = 500
    checkpoint_every: int = 2000

    def __post_init__(self) -> None:
        for name in ("batch_size", "micro_batches", "log_every", "validate_every", "checkpoint_every"):
            at_least(name, getattr(self, name), 1)
        if self.batch_size % self.micro_batches:
            problem = f"must divide batch_size = {self.batch_size}"
            raise FieldError("micro_batches", self.micro_batches, problem)
        one_of("precision", self.precision, get_args(Precision))
        within("ema", self.ema, 0, 0.999999)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A training run. Equal recipes on equal machines give equal models.

    Attributes:
        name: Name of the run.
        seed: Seed of weights, items, masks and order.
        model: The model to train.
        data: Where items come from and how they become rows.
        schedule: The length of the run and its learning rate.
        masking: How answers are masked.
        weights: How much each token counts in the loss.
        optimizer: Which optimiser trains the model, and how fast.
        run: How the run is executed.
    """

    name: str
    seed: int
    model: ModelSpec
    data: DataSpec
    schedule: Schedule
    masking: Masking = field(default_factory=Masking)
    weights: LossWeights = field(default_factory=LossWeights)
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    run: RunSpec = field(default_factory=RunSpec)


def find_recipe(name: str) -> Path:
    """Return the recipe file at a path, or the shipped recipe of that name."""
    return find_named("recipe", name, Path(__file__).parent / "recipes")


def find_named(kind: str, name: str, folder: Path) -> Path:
    """Return the file at a path, or the TOML file of that name in a folder of the package."""
    shipped = {path.stem: path for path in folder.glob("*.toml")}
    if not Path(name).is_file() and name not in shipped:
        problem = f"must be a file or a shipped {kind} ({', '.join(sorted(shipped))})"
        raise FieldError(kind, name, problem)
    return Path(name) if Path(name).is_file() else shipped[name]


def read_recipe(path: Path) -> Recipe:
    """Read a recipe. Paths in it are relative to its folder."""
    recipe = parse(Recipe, read_table(path), path.name)
    model, data = recipe.model, recipe.data
    if model.tokenizer is not None:
        model = replace(model, tokenizer=str(path.parent / model.tokenizer))
    if model.load is not None and (path.parent / model.load).is_dir():  # otherwise a hub id
        model = replace(model, load=str(path.parent / model.load))
    if data.source.endswith((".jsonl", ".json")):
        data = replace(data, source=str(path.parent / data.source))
    return replace(recipe, model=model, data=data)


def read_table(path: Path) -> dict[str, Any]:
    """Read the table in a TOML or JSON file."""
    if path.suffix == ".json":
        try:
            table = json.loads(read_utf8(path))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not valid JSON: {error}") from error
        if not isinstance(table, dict):
            raise ValueError(f"{path} must hold a JSON object, got {type(table).__name__}")
        return table
    try:
        import tomllib
    except ImportError:
        raise ValueError(f"{path} is TOML, which needs Python 3.11; write the recipe as .json") from None
    try:
        return tomllib.loads(read_utf8(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def parse(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """Build a dataclass from a table and check its names and types. Errors call the table `where`."""
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    own = {entry.name: entry for entry in fields(kind)}
    needed = (entry for entry in own.values() if entry.default is entry.default_factory is MISSING)
    missing = [entry.name for entry in needed if entry.name not in table]
    try:
        for name, value in table.items():
            known_field(name, value, own, "the table")
        if missing:
            raise FieldError(", ".join(missing), None, "must be given")
        made: T = kind(**{name: _convert(hints[name], value, name) for name, value in table.items()})
    except FieldError as error:
        raise error.inside(where) from error
    return made


def _convert(hint: Any, value: Any, name: str) -> Any:
    """Return `value` as the type of the field called `name`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return parse(hint, _expect(Mapping, value, name, "a table"), name)
    if origin in (Union, UnionType):
        [inner] = [kind for kind in arguments if kind is not NoneType]
        return _convert(inner, value, name)
    if origin is tuple:
        items = _expect(list, value, name, "a list")
        kinds = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else list(arguments)
        if len(kinds) != len(items):
            raise FieldError(name, value, f"must have {len(kinds)} entries")
        return tuple(
            _convert(kind, item, f"{name}[{i}]")
            for i, (kind, item) in enumerate(zip(kinds, items, strict=True))
        )
    if origin is not None and origin is not Literal and issubclass(origin, Mapping):
        table = _expect(Mapping, value, name, "a table")
        return {key: _convert(arguments[1], item, f"{name}.{key}") for key, item in table.items()}
    return value if hint is Any else _scalar(hint, value, name)


def _scalar(hint: Any, value: Any, name: str) -> Any:
    if hint is bool:
        return _expect(bool, value, name, "true or false")
    if isinstance(value, bool):
        raise FieldError(name, value, "must not be true or false")
    if hint is float:
        return float(_expect((int, float), value, name, "a number"))
    if hint is int:
        return _expect(int, value, name, "a whole number")
    return _expect(str, value, name, "a string")


def _expect(kind: Any, value: Any, name: str, words: str) -> Any:
    if not isinstance(value, kind):
        raise FieldError(name, value, f"must be {words}")
    return value
