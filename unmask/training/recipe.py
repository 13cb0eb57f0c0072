"""Recipes: everything that defines a training run, in one TOML (Python 3.11) or JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from unmask.errors import at_least, did_you_mean, one_of, within
from unmask.training.data import DataSpec
from unmask.training.masking import Masking
from unmask.training.muon import OptimizerSpec
from unmask.training.objective import LossWeights

Decay = Literal["linear", "cosine"]
Precision = Literal["auto", "bfloat16", "float32"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The model to train: fresh weights of a config, or a checkpoint to fine-tune."""

    config: Mapping[str, Any] = field(default_factory=dict)  # config.json; ids and vocabulary are optional
    tokenizer: str | None = None  # folder; None: the checkpoint's
    load: str | None = None  # checkpoint folder or hub id

    def __post_init__(self) -> None:
        if bool(self.config) == (self.load is not None):
            raise ValueError("model needs either a config table (fresh weights) or load (fine-tuning)")
        if self.config and self.tokenizer is None:
            raise ValueError("model.tokenizer must name a folder when the weights are fresh")
        if self.load is not None and self.tokenizer is not None:
            raise ValueError("model.tokenizer must be left out with model.load: a checkpoint brings its own")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The length of a run and its learning rate: warm up, stay flat, decay to zero."""

    steps: int
    max_seconds: float | None = None  # time limit; the learning rate reaches zero by then
    warmup_steps: int = 200
    flat_until: float = 0.4  # share of the run
    decay: Decay = "linear"

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)
        at_least("warmup_steps", self.warmup_steps, 0)
        within("flat_until", self.flat_until, 0, 1)
        one_of("decay", self.decay, get_args(Decay))
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ValueError(f"max_seconds must be > 0, got {self.max_seconds}")

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
    """How a run is executed."""

    batch_size: int = 384
    micro_batches: int = 1  # parts of a batch, run one after the other
    precision: Precision = "auto"  # auto: bfloat16 autocast on CUDA, else float32; weights stay in float32
    compile: bool = False
    ema: float = 0.0  # decay of the weight average that is saved at the end; 0: no average
    log_every: int = 50  # steps between log lines; only then does the host wait for the device
    validate_every: int = 500
    checkpoint_every: int = 2000

    def __post_init__(self) -> None:
        for name in ("batch_size", "micro_batches", "log_every", "validate_every", "checkpoint_every"):
            at_least(name, getattr(self, name), 1)
        if self.batch_size % self.micro_batches:
            raise ValueError(
                f"micro_batches must divide batch_size = {self.batch_size}, got {self.micro_batches}"
            )
        one_of("precision", self.precision, get_args(Precision))
        within("ema", self.ema, 0, 0.999999)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A training run; equal recipes on equal machines give equal models."""

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
    shipped = {path.stem: path for path in (Path(__file__).parent / "recipes").glob("*.toml")}
    if not Path(name).is_file() and name not in shipped:
        raise ValueError(
            f"{name!r} is neither a file nor a shipped recipe; shipped: {', '.join(sorted(shipped))}"
        )
    return Path(name) if Path(name).is_file() else shipped[name]


def read_recipe(path: Path) -> Recipe:
    """Read a recipe; relative paths in it start at its folder."""
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
            table = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not valid JSON: {error}") from error
        if not isinstance(table, dict):
            raise ValueError(f"{path} must hold a JSON object, got {type(table).__name__}")
        return table
    try:
        import tomllib
    except ImportError:
        raise ValueError(f"{path} is TOML, which needs Python 3.11; write the recipe as .json") from None
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def parse(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """Build a dataclass from a table, checking names and types; errors call the table `where`."""
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    known = {entry.name: entry for entry in fields(kind)}
    for name in table:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"{where}: unknown field {name!r}; {hint}available: {', '.join(sorted(known))}")
    needed = (entry for entry in known.values() if entry.default is entry.default_factory is MISSING)
    missing = [entry.name for entry in needed if entry.name not in table]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    values = {name: _convert(hints[name], value, f"{where}: {name}") for name, value in table.items()}
    try:
        made: T = kind(**values)
    except ValueError as error:
        raise error if str(error).startswith(where) else ValueError(f"{where}: {error}") from error
    return made


def _convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as the type of a field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return parse(hint, _expect(Mapping, value, where, "a table"), where)
    if origin in (Union, UnionType):
        [inner] = [kind for kind in arguments if kind is not NoneType]
        return _convert(inner, value, where)
    if origin is tuple:
        items = _expect(list, value, where, "a list")
        kinds = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else list(arguments)
        if len(kinds) != len(items):
            raise ValueError(f"{where} must have {len(kinds)} entries, got {value!r}")
        return tuple(
            _convert(kind, item, f"{where}[{i}]")
            for i, (kind, item) in enumerate(zip(kinds, items, strict=True))
        )
    if origin is not None and origin is not Literal and issubclass(origin, Mapping):
        table = _expect(Mapping, value, where, "a table")
        return {key: _convert(arguments[1], item, f"{where}.{key}") for key, item in table.items()}
    return value if hint is Any else _scalar(hint, value, where)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is bool:
        return _expect(bool, value, where, "true or false")
    if isinstance(value, bool):
        raise ValueError(f"{where} must not be true or false")
    if hint is float:
        return float(_expect((int, float), value, where, "a number"))
    if hint is int:
        return _expect(int, value, where, "a whole number")
    return _expect(str, value, where, "a string")


def _expect(kind: Any, value: Any, where: str, words: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{where} must be {words}, got {value!r}")
    return value
