"""Train a grid of models: families times sizes times seeds, several at a time on one device.

    OUT/NAME-HASH/       a trained model, or one under way
    OUT/recipes/         the recipe of each
    OUT/logs/            the output of each training
    OUT/grid.json        a line about every finished model

The hash is of the recipe, the tokenizer and the first items, so a rerun skips a model that is there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal

import torch

from unmask.errors import FieldError, at_least, one_of, positive
from unmask.models.checkpoint.config import read_config
from unmask.models.checkpoint.hub import SHIPPED, find_folder
from unmask.models.checkpoint.load import build, model_class
from unmask.models.text.tokens import Tokenizer
from unmask.training.data import open_source
from unmask.training.recipe import Recipe, find_named, parse, read_recipe, read_table
from unmask.training.setup import complete, deeper_config, vocabulary_size
from unmask.training.trainer import CHECKPOINT, LOG

FILE = "grid.json"
STARTUP = 45.0  # seconds before the first step: processes, drawing and compiling
ITEMS = 128  # training items in a hash
POLL = 0.2  # seconds
State = Literal["done", "resumes", "new"]
Watch = Callable[[str], None]  # called with a line about every start and end


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of model.

    Attributes:
        name: Its name in the names of models: "15m".
        seeds: A model is trained for each.
        max_seconds: Time limit of one training.
        config: Family -> changes of the recipe's config.json.
        changes: Changes of any part of the recipe: table -> field -> value.
        families: Families that have this size; empty: all.
        shipped: Go on from the shipped model of the family, with new items, instead of fresh weights.
        layers: With shipped: add layers up to this number, which change nothing at first.
    """

    name: str
    seeds: tuple[int, ...]
    max_seconds: float
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    shipped: bool = False
    layers: int | None = None

    def __post_init__(self) -> None:
        positive("max_seconds", self.max_seconds)
        if self.layers is not None and not self.shipped:
            raise FieldError("layers", self.layers, "must be left out without shipped", "use config")
        if self.shipped and self.config:
            raise FieldError("config", dict(self.config), "must be left out with shipped", "use layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Models to train.

    Attributes:
        recipes: Family -> recipe file, relative to the grid's folder.
        sizes: The sizes of every family.
        changes: Changes of every recipe: table -> field -> value.
        jobs: Trainings at a time, >= 1.
    """

    recipes: Mapping[str, str]
    sizes: tuple[Size, ...]
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    jobs: int = 1

    def __post_init__(self) -> None:
        at_least("jobs", self.jobs, 1)
        for family in (family for size in self.sizes for family in size.families):
            one_of("families", family, list(self.recipes))

    def only(self, names: Sequence[str]) -> Grid:
        """Return the grid with some of its sizes."""
        known = [size.name for size in self.sizes]
        for name in names:
            one_of("size", name, known)
        return replace(self, sizes=tuple(size for size in self.sizes if size.name in names))

    def families(self, size: Size) -> list[str]:
        """Return the families that have a size."""
        return [family for family in self.recipes if family in (size.families or self.recipes)]

    def within(self, minutes: float) -> Grid:
        """Return the grid with all time limits changed by one factor, to end in about so many minutes."""
        positive("minutes", minutes)
        limits = [size.max_seconds for size in self.sizes for _ in size.seeds for _ in self.families(size)]
        longest = 60 * minutes - STARTUP * -(-len(limits) // self.jobs)
        factor = longest / _makespan(limits, self.jobs)
        if factor <= 0:
            raise FieldError(
                "minutes", minutes, "must leave time to train", "raise it, or train fewer models"
            )
        sizes = tuple(
            replace(size, max_seconds=float(round(factor * size.max_seconds))) for size in self.sizes
        )
        return replace(self, sizes=sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A model of a grid."""

    family: str
    size: str
    seed: int
    table: Mapping[str, Any]  # its recipe, with an absolute path to the tokenizer
    seconds: float
    digest: str

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.family}-{self.size}-{self.seed}-{self.digest}"

    def state(self, out: Path) -> State:
        """Return whether it is trained, under way, or not begun."""
        folder = out / self.name
        if (folder / "recipe.json").is_file():
            return "done"
        return "resumes" if (folder / CHECKPOINT).is_file() else "new"

    @property
    def parameters(self) -> int:
        """The number of its weights."""
        spec = parse(Recipe, self.table, self.name).model
        if spec.load is not None:
            config = read_config(find_folder(spec.load))
            config = config if spec.layers is None else deeper_config(config, spec.layers)
        else:
            tokenizer = Tokenizer.from_folder(str(spec.tokenizer))
            config = complete(spec.config, tokenizer, vocabulary_size(tokenizer))
        with torch.device("meta"):
            model = build(config)
        return sum(p.numel() for p in model.parameters())


def find_grid(name: str) -> Path:
    """Return the grid file at a path, or the shipped grid of that name."""
    return find_named("grid", name, Path(__file__).parent / "grids")


def read_grid(path: Path) -> Grid:
    """Read a grid; relative paths in it start at its folder."""
    grid = parse(Grid, read_table(path), path.name)
    return replace(grid, recipes={family: str(path.parent / file) for family, file in grid.recipes.items()})


def members(grid: Grid) -> list[Member]:
    """Return all models, the longest trainings first."""
    found, data = [], dict[str, str]()
    for size in grid.sizes:
        for family, seed in product(grid.families(size), size.seeds):
            table = _recipe(Path(grid.recipes[family]), grid, size, family, seed)
            found.append(_member(table, family, size, seed, data))
    return sorted(found, key=lambda one: (-one.seconds, one.seed))


def _recipe(file: Path, grid: Grid, size: Size, family: str, seed: int) -> dict[str, Any]:
    """Return the recipe of one model as a table."""
    table = read_table(file)
    schedule = {"max_seconds": size.max_seconds}
    for changes in (grid.changes, {"schedule": schedule}, size.changes):
        for name, values in changes.items():
            table[name] = {**table.get(name, {}), **values}
    name, spec = f"{family}-{size.name}-{seed}", read_recipe(file).model
    if size.shipped:
        one_of("shipped", f"mini-{family}", SHIPPED)
        folder = find_folder(f"unmask/mini-{family}")
        model: dict[str, Any] = {"load": str(folder)}
        if size.layers is not None:
            least = model_class(config := read_config(folder)).shape_of(config).layers
            at_least("layers", size.layers, least)
            model["layers"] = size.layers
        return {**table, "name": name, "seed": seed, "model": model}
    config = {**spec.config, **size.config.get(family, {})}
    model = {"config": config, "tokenizer": str(Path(str(spec.tokenizer)).resolve())}
    return {**table, "name": name, "seed": seed, "model": model}


def _member(table: Mapping[str, Any], family: str, size: Size, seed: int, data: dict[str, str]) -> Member:
    recipe = parse(Recipe, table, str(table["name"]))
    items = json.dumps(table["data"], sort_keys=True)
    if items not in data:  # the same for all seeds
        data[items] = _data_digest(recipe)
    source = recipe.model.load
    folder = Path(str(recipe.model.tokenizer)) if source is None else find_folder(source)
    model = {**table["model"], "tokenizer" if source is None else "load": _folder_digest(folder)}
    content = json.dumps([{**table, "model": model}, data[items]], sort_keys=True)
    digest = sha256(content.encode()).hexdigest()[:12]
    return Member(
        family=family, size=size.name, seed=seed, table=table, seconds=size.max_seconds, digest=digest
    )


def _data_digest(recipe: Recipe) -> str:
    """Return a hash of the first items that a training with seed 0 would see."""
    source = open_source(recipe.data, seed=0, total=ITEMS)
    items = [source.item(index) for index in range(ITEMS)]
    return sha256("".join(f"{item.prompt}\0{item.answer}\0" for item in items).encode()).hexdigest()


def _folder_digest(folder: Path) -> str:
    """Return a hash of the config, the weights and the tokenizer in a folder."""
    files = sorted(file for file in folder.iterdir() if file.suffix in (".json", ".safetensors", ".txt"))
    return sha256(b"".join(file.name.encode() + file.read_bytes() for file in files)).hexdigest()


def _makespan(seconds: Sequence[float], jobs: int) -> float:
    """Return how long jobs take, the longest first, so many at a time."""
    ends = [0.0] * jobs
    for each in sorted(seconds, reverse=True):
        ends[ends.index(min(ends))] += each
    return max(ends)


def estimate(missing: Sequence[Member], jobs: int) -> float:
    """Return about how many seconds the trainings take."""
    return _makespan([one.seconds + STARTUP for one in missing], jobs)


def train_grid(grid: Grid, out: Path, *, device: str = "auto", watch: Watch = print) -> list[Member]:
    """Train the models that are not there yet; return all. Raise at the end if a training failed."""
    everyone = members(grid)
    waiting = [one for one in everyone if one.state(out) != "done"]
    running: list[tuple[Member, subprocess.Popen[bytes], float]] = []
    failed = []
    try:
        while waiting or running:
            while waiting and len(running) < grid.jobs:
                member = waiting.pop(0)
                watch(f"{member.name}: {'resumes' if member.state(out) == 'resumes' else 'starts'}")
                running.append((member, _start(member, out, device), monotonic()))
            for job in list(running):
                member, process, began = job
                if process.poll() is not None:
                    running.remove(job)
                    failed += [member.name] if process.returncode else []
                    ended = f"failed, see logs/{member.name}.txt" if process.returncode else "done"
                    watch(f"{member.name}: {ended} after {monotonic() - began:.0f} s")
                    write_summary(everyone, out)
            sleep(POLL)
    finally:
        for _, process, _ in running:
            process.send_signal(signal.SIGINT)  # it then ends its own processes
        for _, process, _ in running:
            process.wait()
    write_summary(everyone, out)
    if failed:
        raise ValueError(f"{len(failed)} trainings failed: {', '.join(failed)}; the same command tries again")
    return everyone


def _start(member: Member, out: Path, device: str) -> subprocess.Popen[bytes]:
    """Start a training in a process of its own."""
    folder = out / member.name
    if member.state(out) == "new" and folder.is_dir():  # killed before its first checkpoint or while saving
        shutil.rmtree(folder)
    recipe, log = out / "recipes" / member.name / "recipe.json", out / "logs" / f"{member.name}.txt"
    for file in (recipe, log):
        file.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(json.dumps(member.table, indent=2) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "unmask.training", str(recipe), "--out", str(folder), "--resume"]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*command, "--device", device],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A line about a finished model."""

    name: str
    family: str
    size: str
    seed: int
    parameters: int
    steps: int
    seconds: float
    tokens_per_second: float
    validation: Mapping[str, float]  # mask rate -> cross-entropy


def write_summary(everyone: Sequence[Member], out: Path) -> None:
    """Write a line about every finished model; keep the lines about other models of the folder."""
    out.mkdir(parents=True, exist_ok=True)
    names = {member.name for member in everyone}
    lines = [asdict(_trained(member, out)) for member in everyone if member.state(out) == "done"]
    if (out / FILE).is_file():
        lines += [
            asdict(one)
            for one in read_summary(out)
            if one.name not in names and (out / one.name / "recipe.json").is_file()
        ]
    fresh = out / f"{FILE}.new"
    fresh.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    fresh.replace(out / FILE)


def _trained(member: Member, out: Path) -> Trained:
    last = json.loads((out / member.name / LOG).read_text(encoding="utf-8").splitlines()[-1])
    return Trained(
        name=member.name,
        family=member.family,
        size=member.size,
        seed=member.seed,
        parameters=member.parameters,
        steps=last["step"],
        seconds=last["elapsed"],
        tokens_per_second=last["tokens_per_second"],
        validation=last.get("validation", {}),
    )


def read_summary(folder: Path) -> list[Trained]:
    """Read the lines about the finished models of a grid."""
    try:
        lines = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        remedy = "train one with `unmask train --grid`"
        raise FieldError("grid", str(folder), f"must be a folder with {FILE}", remedy) from None
    return [parse(Trained, line, FILE) for line in lines]
