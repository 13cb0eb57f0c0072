"""Train a grid of models: families times sizes times seeds, several at a time on one device.

    OUT/NAME-HASH/       a trained model, or one under way
    OUT/recipes/         the recipe of each
    OUT/logs/            the output of each training
    OUT/grid.json        a line about every finished model

The hash covers the recipe, the tokenizer or the weights to start from, and the first items. So a rerun skips
a model that is already there.
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
from unmask.models.checkpoint.load import build
from unmask.models.text.tokens import Tokenizer
from unmask.training.data import open_source
from unmask.training.recipe import Recipe, find_named, parse, read_recipe, read_table
from unmask.training.setup import complete, config_with_layers, vocabulary_size
from unmask.training.trainer import CHECKPOINT, LOG

FILE = "grid.json"
STARTUP = 45.0  # seconds before the first step, to start processes, draw items and compile
ITEMS = 128  # training items that a hash covers
POLL = 0.2  # seconds
SHIPPED_ONE = "shipped"  # a start that is not a size of the grid
State = Literal["done", "resumes", "new"]
Watch = Callable[[str], None]  # called with a line about every start and end


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of model.

    Attributes:
        name: The size's part of a model's name, such as "15m".
        seeds: Seeds, one for each model.
        max_seconds: Time limit of one training.
        config: Family -> changes to the recipe's config.json.
        changes: Changes to any part of the recipe: table -> field -> value.
        families: Families that have this size, or empty for all.
        start: Weights to start from: "shipped" for the family's shipped model, or a size of the grid with one
            seed. That size is trained first and is not a model of the grid itself. None means random weights.
        layers: Number of layers, only with start. See ModelSpec.
    """

    name: str
    seeds: tuple[int, ...]
    max_seconds: float
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    start: str | None = None
    layers: int | None = None

    def __post_init__(self) -> None:
        positive("max_seconds", self.max_seconds)
        if self.layers is not None and self.start is None:
            raise FieldError("layers", self.layers, "must be left out without start", "use config")
        if self.start is not None and self.config:
            raise FieldError("config", dict(self.config), "must be left out with start", "use layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Models to train.

    Attributes:
        recipes: Family -> recipe file, relative to the grid's folder.
        sizes: The sizes of every family.
        changes: Changes to every recipe: table -> field -> value.
        jobs: Trainings that run at a time, >= 1.
    """

    recipes: Mapping[str, str]
    sizes: tuple[Size, ...]
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    jobs: int = 1

    def __post_init__(self) -> None:
        at_least("jobs", self.jobs, 1)
        for family in (family for size in self.sizes for family in size.families):
            one_of("families", family, list(self.recipes))
        if any(size.name == SHIPPED_ONE for size in self.sizes):
            raise FieldError("name", SHIPPED_ONE, "must not name a size: it stands for the shipped models")
        firsts = {
            size.name: self.families(size)
            for size in self.sizes
            if len(size.seeds) <= 1 and size.start in (None, SHIPPED_ONE)
        }
        for size in self.sizes:
            if size.start is None:
                continue
            one_of("start", size.start, [SHIPPED_ONE, *firsts])
            missing = set(self.families(size)) - set(firsts.get(size.start, self.families(size)))
            if missing:
                problem = f"must have the families of {size.name}, and has no {', '.join(sorted(missing))}"
                raise FieldError("start", size.start, problem)

    def only(self, names: Sequence[str]) -> Grid:
        """Return the grid with only the models of these sizes and of the sizes that they start from."""
        known = {size.name: size for size in self.sizes}
        for name in names:
            one_of("size", name, list(known))
        kept = {*names, *(known[name].start for name in names)}
        return replace(
            self, sizes=tuple(size if size.name in kept else replace(size, seeds=()) for size in self.sizes)
        )

    @property
    def starts(self) -> set[str]:
        """The names of sizes that others start from."""
        return {size.start for size in self.sizes if size.start is not None}

    @property
    def stages(self) -> list[list[Size]]:
        """The sizes that can be trained right away, then those that start from one of them."""
        names = {size.name for size in self.sizes}
        waits = [size.start in names for size in self.sizes]
        return [
            [size for size, wait in zip(self.sizes, waits, strict=True) if wait is late]
            for late in (False, True)
        ]

    def families(self, size: Size) -> list[str]:
        """Return the families that have a size."""
        return [family for family in self.recipes if family in (size.families or self.recipes)]

    def within(self, minutes: float) -> Grid:
        """Return the grid with all time limits scaled by one factor, so that it ends in about `minutes`."""
        positive("minutes", minutes)
        left, needed = 60 * minutes, 0.0
        for stage in self.stages:
            limits = [size.max_seconds for size in stage for _ in size.seeds for _ in self.families(size)]
            left -= STARTUP * -(-len(limits) // self.jobs)
            needed += _makespan(limits, self.jobs)
        factor = left / needed
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
    table: Mapping[str, Any]  # its recipe, with absolute paths; model.load may be another member's name
    config: Mapping[str, Any]  # the content of its config.json
    seconds: float
    digest: str
    start: str | None = None  # name of the member that it starts from

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
        """The number of weights."""
        with torch.device("meta"):
            model = build(self.config)
        return sum(p.numel() for p in model.parameters())


def find_grid(name: str) -> Path:
    """Return the grid file at a path, or the shipped grid of that name."""
    return find_named("grid", name, Path(__file__).parent / "grids")


def read_grid(path: Path) -> Grid:
    """Read a grid. Paths in it are relative to its folder."""
    grid = parse(Grid, read_table(path), path.name)
    return replace(grid, recipes={family: str(path.parent / file) for family, file in grid.recipes.items()})


def members(grid: Grid) -> list[Member]:
    """Return all models, those that start from another last. In each part, longer trainings come first."""
    found, data = list[Member](), dict[str, str]()
    for stage in grid.stages:
        firsts = {(one.size, one.family): one for one in found}
        for size in stage:
            for family, seed in product(grid.families(size), size.seeds):
                found.append(_member(grid, size, family, seed, firsts.get((str(size.start), family)), data))
    return sorted(found, key=lambda one: (one.start is not None, -one.seconds, one.seed))


def _member(
    grid: Grid, size: Size, family: str, seed: int, first: Member | None, data: dict[str, str]
) -> Member:
    """Return one model with its recipe. `data` caches the hashes of items, the same for all seeds."""
    file = Path(grid.recipes[family])
    table, spec = read_table(file), read_recipe(file).model
    schedule = {"max_seconds": size.max_seconds}
    for changes in (grid.changes, {"schedule": schedule}, size.changes):
        for name, values in changes.items():
            table[name] = {**table.get(name, {}), **values}
    model: dict[str, Any]
    if first is not None:
        model, config, weights = {"load": first.name}, first.config, first.digest
    elif size.start is not None:
        one_of("start", f"mini-{family}", SHIPPED)
        folder = find_folder(f"unmask/mini-{family}")
        model, config, weights = {"load": str(folder)}, read_config(folder), _folder_digest(folder)
    else:
        folder = Path(str(spec.tokenizer)).resolve()
        model = {"config": {**spec.config, **size.config.get(family, {})}, "tokenizer": str(folder)}
        tokenizer, weights = Tokenizer.from_folder(folder), _folder_digest(folder)
        config = complete(model["config"], tokenizer, vocabulary_size(tokenizer))
    if size.layers is not None:
        model["layers"], config = size.layers, config_with_layers(config, size.layers)
    table |= {"name": f"{family}-{size.name}-{seed}", "seed": seed, "model": model}
    recipe = parse(Recipe, table, str(table["name"]))
    items = json.dumps(table["data"], sort_keys=True)
    if items not in data:
        data[items] = _data_digest(recipe)
    hashed = {**table, "model": {**model, "load" if "load" in model else "tokenizer": weights}}
    digest = sha256(json.dumps([hashed, data[items]], sort_keys=True).encode()).hexdigest()[:12]
    return Member(
        family=family,
        size=size.name,
        seed=seed,
        table=table,
        config=config,
        seconds=size.max_seconds,
        digest=digest,
        start=None if first is None else first.name,
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
    """Return how long trainings take that run `jobs` at a time, the longest first."""
    ends = [0.0] * jobs
    for each in sorted(seconds, reverse=True):
        ends[ends.index(min(ends))] += each
    return max(ends)


def estimate(missing: Sequence[Member], jobs: int) -> float:
    """Return about how many seconds the trainings take."""
    stages = ([one for one in missing if (one.start is not None) is late] for late in (False, True))
    return sum(_makespan([one.seconds + STARTUP for one in stage], jobs) for stage in stages)


def train_grid(grid: Grid, out: Path, *, device: str = "auto", watch: Watch = print) -> list[Member]:
    """Train the models that are missing and return all. Raise at the end if a training failed."""
    everyone = members(grid)
    waiting = [one for one in everyone if one.state(out) != "done"]
    running: list[tuple[Member, subprocess.Popen[bytes], float]] = []
    failed: list[str] = []
    try:
        while waiting or running:
            unfinished = {one.name for one in (*waiting, *(member for member, _, _ in running))}
            ready = [one for one in waiting if one.start not in unfinished]
            for member in ready[: grid.jobs - len(running)]:
                waiting.remove(member)
                if member.start in failed:
                    failed.append(member.name)
                    watch(f"{member.name}: left out, {member.start} failed")
                    continue
                watch(f"{member.name}: {'resumes' if member.state(out) == 'resumes' else 'starts'}")
                running.append((member, _start(member, out, device), monotonic()))
            for job in list(running):
                member, process, began = job
                if process.poll() is not None:
                    running.remove(job)
                    failed += [member.name] if process.returncode else []
                    ended = f"failed, see logs/{member.name}.txt" if process.returncode else "done"
                    watch(f"{member.name}: {ended} after {monotonic() - began:.0f} s")
                    write_summary([one for one in everyone if one.size not in grid.starts], out)
            sleep(POLL)
    finally:
        for _, process, _ in running:
            process.send_signal(signal.SIGINT)  # it then ends its own processes
        for _, process, _ in running:
            process.wait()
    write_summary([one for one in everyone if one.size not in grid.starts], out)
    if failed:
        raise ValueError(f"{len(failed)} trainings failed: {', '.join(failed)}; the same command tries again")
    return everyone


def _start(member: Member, out: Path, device: str) -> subprocess.Popen[bytes]:
    """Start a training in its own process."""
    folder = out / member.name
    if member.state(out) == "new" and folder.is_dir():  # killed before its first checkpoint or while saving
        shutil.rmtree(folder)
    recipe, log = out / "recipes" / member.name / "recipe.json", out / "logs" / f"{member.name}.txt"
    for file in (recipe, log):
        file.parent.mkdir(parents=True, exist_ok=True)
    table = dict(member.table)
    if member.start is not None:
        table["model"] = {**table["model"], "load": str((out / member.start).resolve())}
    recipe.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
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
    """Write a line about every finished model. Keep the lines about other models in the folder."""
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
    path, remedy = folder / FILE, "train one with `unmask train --grid`"
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FieldError("grid", str(folder), f"must be a folder with {FILE}", remedy) from None
    except (ValueError, RecursionError) as error:
        raise FieldError("grid", str(path), f"is not valid JSON ({error})", remedy) from error
    if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
        raise FieldError("grid", str(path), "must hold a list with an object for each model", remedy)
    return [parse(Trained, line, f"{path}, model {number}") for number, line in enumerate(lines, start=1)]
