"""A grid of models: planned, trained in processes, skipped when it is there."""

from __future__ import annotations

import _thread
import json
import shutil
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.raises import raises_field
from tests.training.toy import write_recipe
from unmask import load
from unmask.cli.app import app
from unmask.errors import FieldError
from unmask.models.checkpoint import hub
from unmask.models.checkpoint.hub import find_folder
from unmask.training.grid import (
    Grid,
    Member,
    estimate,
    find_grid,
    members,
    read_grid,
    read_summary,
    train_grid,
)
from unmask.training.recipe import Recipe, parse

SMALL = {"n_layers": 1, "d_model": 32, "n_heads": 1, "mlp_hidden_size": 32}


@pytest.fixture
def grid_file(tmp_path: Path) -> Path:
    write_recipe(tmp_path / "toy")
    table = {
        "recipes": {"llada": "toy/recipe.json"},
        "jobs": 2,
        "changes": {"schedule": {"steps": 6}},
        "sizes": [
            {"name": "small", "seeds": [1, 2], "max_seconds": 30, "config": {"llada": SMALL}},
        ],
    }
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(table))
    return path


def names(path: Path, **changes: object) -> list[str]:
    table = {**json.loads(path.read_text()), **changes}
    (path.parent / "changed.json").write_text(json.dumps(table))
    return [one.name for one in members(read_grid(path.parent / "changed.json"))]


def test_names_depend_on_recipe_and_data_and_on_nothing_else(grid_file):
    first = names(grid_file)
    assert len(set(first)) == 2
    assert names(grid_file, jobs=1) == first
    assert not set(names(grid_file, changes={"schedule": {"steps": 7}})) & set(first)
    phases = [{"until": 1, "shares": {"double": 1}}]
    assert not set(names(grid_file, changes={"schedule": {"steps": 6}, "data": {"phases": phases}})) & set(
        first
    )


@pytest.mark.slow
def test_a_grid_is_trained_once_and_a_lost_model_again(grid_file, tmp_path):
    grid, out, lines = read_grid(grid_file), tmp_path / "out", []
    everyone = train_grid(grid, out, device="cpu", watch=lines.append)
    assert [one.state(out) for one in everyone] == ["done", "done"]
    assert sum("starts" in line for line in lines) == 2
    trained = read_summary(out)
    assert {(one.family, one.size, one.seed, one.steps) for one in trained} == {
        ("llada", "small", seed, 6) for seed in (1, 2)
    }
    assert load(out / trained[0].name, device="cpu").tokenizer is not None
    before = (out / trained[0].name / "config.json").stat().st_mtime_ns
    lines.clear()
    train_grid(grid, out, device="cpu", watch=lines.append)
    assert lines == []
    assert (out / trained[0].name / "config.json").stat().st_mtime_ns == before
    (out / trained[0].name / "recipe.json").unlink()  # as if killed while saving
    assert [one.state(out) for one in everyone] == ["new", "done"]


def test_the_shipped_grid_has_both_families_three_sizes_and_seeds_and_fits_its_time():
    grid = read_grid(find_grid("evidence"))
    everyone = members(grid)
    assert {(one.family, one.size) for one in everyone} >= {
        (family, size) for family in ("llada", "dream") for size in ("4m", "15m", "50m")
    }
    starts = {one.start for one in everyone}
    for one in everyone:
        if one.name not in starts:
            assert one.parameters == pytest.approx(float(one.size.partition("m")[0]) * 1e6, rel=0.1)
        parse(Recipe, one.table, one.name)
    assert estimate(everyone, grid.jobs) < 20 * 60
    shorter = grid.within(8)
    assert 7 * 60 < estimate(members(shorter), shorter.jobs) < 8.5 * 60
    for minutes in (1, 0, float("nan")):
        with raises_field("minutes"):
            grid.within(minutes)


def test_the_command_prints_the_plan_and_trains_nothing(grid_file, tmp_path):
    arguments = ["train", "--grid", str(grid_file), "--out", str(tmp_path / "out"), "--dry-run"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "2 of 2 models" in done.output
    assert not (tmp_path / "out").exists()
    assert CliRunner().invoke(app, ["train", "--out", str(tmp_path / "out")]).exit_code != 0


@pytest.mark.parametrize("option", [("--dry-run",), ("--minutes", "1"), ("--size", "4M")])
def test_an_option_of_grids_is_refused_with_a_recipe(tmp_path, option):
    arguments = ["train", str(write_recipe(tmp_path)), "--out", str(tmp_path / "out"), *option]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "needs --grid" in done.output
    assert not (tmp_path / "out").exists()


def test_a_plan_needs_no_folder_and_a_training_does(grid_file, tmp_path):
    call = partial(CliRunner().invoke, app)
    done = call(["train", "--grid", str(grid_file), "--device", "cpu", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "2 at a time" in done.output
    assert "hardly learn" in done.output
    assert "out must be given" in call(["train", "--grid", str(grid_file)]).output
    done = call(["train", "--grid", str(grid_file), "--out", str(grid_file), "--dry-run"])
    assert "must be a folder" in done.output


@pytest.mark.parametrize("text", ["{bad", '{"models": 3}', "[3]", '[{"name": "x"}]'])
def test_a_broken_summary_names_the_file(tmp_path, text):
    (tmp_path / "grid.json").write_text(text)
    with pytest.raises(FieldError, match=r"grid\.json"):
        read_summary(tmp_path)


def test_a_size_can_be_trained_alone_with_the_one_that_it_starts_from():
    grid = read_grid(find_grid("evidence"))
    assert {one.size for one in members(grid.only(["15m"]))} == {"15m", "first"}
    with raises_field("size", "5m"):
        grid.only(["5m"])


def test_a_size_may_belong_to_one_family():
    grid = read_grid(find_grid("evidence")).only(["first"])
    alone = replace(grid, sizes=(replace(grid.sizes[0], families=("dream",)),))
    assert [one.family for one in members(alone)] == ["dream"]


def with_a_start(path: Path, **changes: object) -> Grid:
    """A grid whose small models start from a first one."""
    table = json.loads(path.read_text())
    first = {**table["sizes"][0], "name": "first", "seeds": [1]}
    first["config"] = {"llada": {**SMALL, "n_layers": 2}}
    late = {"name": "late", "seeds": [1, 2], "max_seconds": 30, "start": "first", **changes}
    table["sizes"] = [late, first]
    path.write_text(json.dumps(table))
    return read_grid(path)


def test_a_model_waits_for_the_one_that_it_starts_from_which_is_no_model_of_the_grid_even_if_it_is_alone(
    grid_file, tmp_path
):
    grid, out, lines = with_a_start(grid_file, layers=3), tmp_path / "out", []
    [first, *late] = members(grid)
    assert [one.start for one in late] == [first.name] * 2
    train_grid(grid, out, device="cpu", watch=lines.append)
    done = next(place for place, line in enumerate(lines) if "done" in line)
    assert lines[done].startswith(first.name)
    assert all("starts" not in line or line.startswith(first.name) for line in lines[:done])
    assert {one.name for one in read_summary(out)} == {one.name for one in late}
    assert len(load(out / late[0].name, device="cpu").layers) == 3
    shutil.copytree(out / first.name, tmp_path / "alone" / first.name)
    [same] = train_grid(grid.only(["first"]), tmp_path / "alone", device="cpu")
    assert (same.name, same.state(tmp_path / "alone")) == (first.name, "done")
    assert read_summary(tmp_path / "alone") == []


def test_models_are_left_out_if_the_one_that_they_start_from_fails(grid_file, tmp_path):
    with_a_start(grid_file)
    table, lines = json.loads(grid_file.read_text()), []
    table["sizes"][1]["changes"] = {"optimizer": {"lr": 1e9}}  # the loss is soon no number
    grid_file.write_text(json.dumps(table))
    [first, *late] = members(grid := read_grid(grid_file))
    with pytest.raises(ValueError, match="3 trainings failed"):
        train_grid(grid, tmp_path / "out", device="cpu", watch=lines.append)
    assert [line for line in lines if "starts" in line] == [f"{first.name}: starts"]
    assert all(any(line.startswith(f"{one.name}: left out") for line in lines) for one in late)


def test_a_start_must_be_a_size_of_the_grid_with_one_seed(grid_file):
    with raises_field("start", "third"):
        with_a_start(grid_file, start="third")


def test_a_start_must_have_every_family_that_needs_it():
    grid = read_grid(find_grid("evidence"))
    [first] = [size for size in grid.sizes if size.name == "first"]
    others = [size for size in grid.sizes if size is not first]
    with raises_field("start", "first"):
        replace(grid, sizes=(replace(first, families=("llada",)), *others))
    with raises_field("name", "shipped"):
        replace(grid, sizes=(replace(first, name="shipped"),))


def test_a_hash_follows_that_of_the_start(grid_file):
    before = {one.size: one.digest for one in members(with_a_start(grid_file))}
    table = json.loads(grid_file.read_text())
    table["sizes"][1]["max_seconds"] = 31
    grid_file.write_text(json.dumps(table))
    after = {one.size: one.digest for one in members(read_grid(grid_file))}
    assert before["late"] != after["late"]


def going_on(path: Path, **changes: object) -> list[Member]:
    """The models of a grid that go on from a shipped one."""
    size = {"name": "same", "seeds": [1], "max_seconds": 30, "start": "shipped", **changes}
    size = {name: value for name, value in size.items() if value is not None}
    table = {**json.loads(path.read_text()), "sizes": [size]}
    (path.parent / "going_on.json").write_text(json.dumps(table))
    return members(read_grid(path.parent / "going_on.json"))


def test_a_size_can_go_on_from_the_shipped_models_with_other_layers(grid_file):
    [plain], [deep], [shallow] = (going_on(grid_file, layers=layers) for layers in (None, 12, 3))
    weights = load("mini-llada", device="cpu").parameters()
    assert plain.parameters == sum(weight.numel() for weight in weights)
    assert deep.parameters > 1.4 * plain.parameters > 3 * shallow.parameters
    assert len({deep.digest, shallow.digest, plain.digest}) == 3
    for wrong in ({"layers": 1}, {"start": None, "layers": 12}):
        with raises_field("layers", wrong["layers"]):
            going_on(grid_file, **wrong)
    with raises_field("config"):
        going_on(grid_file, config={"llada": SMALL})


def test_the_hash_of_a_model_that_goes_on_follows_the_shipped_weights(grid_file, tmp_path, monkeypatch):
    shipped = shutil.copytree(find_folder("mini-llada"), tmp_path / "mini" / "mini-llada")
    monkeypatch.setattr(hub, "MINI", shipped.parent)
    [before] = going_on(grid_file)
    (shipped / "README.md").write_text("other words")
    assert going_on(grid_file)[0].digest == before.digest
    (shipped / "config.json").write_text((shipped / "config.json").read_text() + " ")
    assert going_on(grid_file)[0].digest != before.digest


def test_a_grid_needs_at_least_one_job():
    with raises_field("jobs", 0):
        Grid(recipes={}, sizes=(), jobs=0)


def test_a_folder_without_a_grid_is_refused(tmp_path):
    with raises_field("grid", str(tmp_path)):
        read_summary(tmp_path)


@pytest.fixture
def interruptible():
    """Hear interrupts even if the tests run in a background job, whose shell ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_grid_ends_its_trainings_and_would_resume_them(grid_file, tmp_path):
    table = json.loads(grid_file.read_text())
    table["changes"] = {"schedule": {"steps": 100_000}, "run": {"checkpoint_every": 1}}
    table["sizes"][0] |= {"seeds": [1], "max_seconds": 300}
    grid_file.write_text(json.dumps(table))
    grid, out = read_grid(grid_file), tmp_path / "out"
    [member] = members(grid)

    def interrupt(line: str) -> None:
        if "starts" in line:
            threading.Thread(target=wait_and_interrupt).start()

    def wait_and_interrupt() -> None:
        deadline = time.monotonic() + 120
        while member.state(out) == "new" and time.monotonic() < deadline:
            time.sleep(0.05)
        _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        train_grid(grid, out, device="cpu", watch=interrupt)
    assert member.state(out) == "resumes"

    def stop(line: str) -> None:
        raise RuntimeError(line)

    with pytest.raises(RuntimeError, match="resumes"):
        train_grid(grid, out, device="cpu", watch=stop)
