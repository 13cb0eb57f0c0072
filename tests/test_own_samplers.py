"""A sampler of the user by name: registered, in a file, or in an installed package."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.checkpoints import write_checkpoint
from tests.evals.conftest import PARITY, SHORT
from tests.raises import raises_field
from tests.serving.conftest import listening
from tests.test_docs import programs
from tests.text.conftest import tiny
from unmask import LESS, EndLast, Threshold
from unmask.cli.options import SamplerOptions
from unmask.evals import evaluate
from unmask.evals.manifest import sources
from unmask.plugins import plugins
from unmask.samplers import SAMPLERS
from unmask.samplers.registry import all_samplers, find_sampler, known_sampler
from unmask.types import Decision, Needs, Observation

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-sampler.md"
SOURCE = next(iter(programs(PAGE.read_text(encoding="utf-8"))))  # the sampler that the docs show
NAME = "MarginThreshold"


@pytest.fixture
def margin(tmp_path: Path) -> str:
    """FILE.py:Class of a user's sampler."""
    (tmp_path / "margin.py").write_text(SOURCE)
    return f"{tmp_path / 'margin.py'}:{NAME}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("own") / "llada", "llada_tiny"))


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """Forget the samplers and entry points of a test."""
    before = dict(SAMPLERS)
    yield
    for name in SAMPLERS.keys() - before.keys():
        del SAMPLERS[name]
    plugins.cache_clear()


@dataclass(frozen=True)
class Calm:
    """A sampler that does as Threshold does."""

    min_confidence: float = 0.7

    @property
    def needs(self) -> Needs:
        return Needs(top_k=2)

    def decide(self, obs: Observation) -> Decision:
        return Threshold(min_confidence=self.min_confidence).decide(obs)


@pytest.mark.parametrize("factory", [Calm, Calm(), lambda: Calm()], ids=["class", "value", "function"])
def test_a_registered_sampler_is_used_by_name(factory: Any) -> None:
    unmask.register_sampler("calm", factory)
    assert unmask.make_sampler("calm", min_confidence=0.9) == Calm(min_confidence=0.9)
    model = tiny("llada_tiny")
    assert unmask.generate(model, "the", "calm", SHORT) == unmask.generate(model, "the", Calm(), SHORT)
    set_by_option = SamplerOptions(sampler="calm", settings=["min_confidence=0.8"]).build()
    assert set_by_option == Calm(min_confidence=0.8)
    with raises_field("min_confidense", 1, "did you mean 'min_confidence'?"):
        unmask.make_sampler("calm", min_confidense=1)


def test_a_sampler_may_be_registered_again_but_not_as_a_preset() -> None:
    unmask.register_sampler("calm", Calm)
    unmask.register_sampler("calm", Calm(min_confidence=0.5))
    assert unmask.make_sampler("calm") == Calm(min_confidence=0.5)
    with raises_field("name", "less"):
        unmask.register_sampler("less", Calm)
    with raises_field("name", "a:b"):
        unmask.register_sampler("a:b", Calm)
    assert SAMPLERS["less"] == LESS()


class Plain:
    needs = Needs()

    def decide(self, obs: Observation) -> Decision: ...


@pytest.mark.parametrize(
    ("factory", "words"),
    [(3, "a class"), (Needs, "decide"), (Plain, "dataclass"), (lambda x: x, "without arguments")],
    ids=["number", "needs", "plain", "argument"],
)
def test_what_cannot_be_a_sampler_is_refused_when_it_is_registered(factory: Any, words: str) -> None:
    with raises_field(*(("factory", 3) if factory == 3 else ("sampler", "mine")), words):
        unmask.register_sampler("mine", factory)
    assert "mine" not in SAMPLERS


def test_a_class_of_a_file_is_a_sampler_wherever_a_name_is_taken(margin: str) -> None:
    sampler = unmask.make_sampler(margin, min_margin=0.3)
    assert (type(sampler).__name__, sampler.min_margin) == (NAME, 0.3)
    assert sampler == unmask.make_sampler(margin, min_margin=0.3)
    model = tiny("llada_tiny")
    assert unmask.generate(model, "the", margin, SHORT).text
    chosen = SamplerOptions(sampler=margin, settings=["min_margin=0.3"])
    assert (chosen.build(), chosen.title) == (sampler, f"{NAME} min_margin=0.3")


def test_a_file_that_changed_is_read_again(margin: str) -> None:
    before = find_sampler(margin)
    path = Path(margin.rpartition(":")[0])
    path.write_text(SOURCE.replace("min_margin: float = 0.5", "min_margin: float = 0.25"))
    assert (before.min_margin, find_sampler(margin).min_margin) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        (None, "none.py:Sampler", "exists"),
        (SOURCE, "own.py", f"own.py:{NAME}"),
        (SOURCE, "own.py:Margin", f"own.py:{NAME}"),
        ("import nowhere", "own.py:Sampler", "No module named 'nowhere'"),
        ("class Sampler:\n", "own.py:Sampler", "line 1"),
        (SOURCE.replace(" = 0.5", ""), f"own.py:{NAME}", "default"),
        ("x = 3", "own.py:x", "a class"),
    ],
)
def test_a_file_without_a_sampler_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if source is not None:
        Path("own.py").write_text(source)
    with raises_field("sampler", name, words):
        unmask.make_sampler(name)


def test_a_preset_file_runs_no_other_file(margin: str, tmp_path: Path) -> None:
    preset = tmp_path / "preset.json"
    preset.write_text(json.dumps({"sampler": margin}))
    with raises_field("sampler", margin):
        unmask.make_sampler(str(preset))


def test_a_sampler_of_a_file_with_a_computed_field_reaches_another_process(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    computed = (
        "    limit: float = field(init=False, default=0.0)\n\n"
        "    def __post_init__(self):\n        object.__setattr__(self, 'limit', 2 * self.min_margin)\n\n"
    )
    source = SOURCE.replace("import dataclass", "import dataclass, field")
    own.write_text(source.replace("    @property\n", f"{computed}    @property\n", 1))
    sampler = unmask.make_sampler(f"{own}:MarginThreshold", min_margin=0.25)
    assert pickle.loads(pickle.dumps(sampler)) == sampler
    assert sampler.limit == 0.5


def test_a_sampler_of_a_file_reaches_another_process(margin: str) -> None:
    sampler = EndLast(unmask.make_sampler(margin, min_margin=0.3))
    assert pickle.loads(pickle.dumps(sampler)) == sampler
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer))"
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, input=pickle.dumps(sampler), capture_output=True, check=True)
    assert done.stdout.decode().strip() == str(sampler)
    path = Path(margin.rpartition(":")[0])
    kept = pickle.dumps(sampler)
    path.write_text(SOURCE + "\n# changed\n")
    with raises_field("sampler", margin, "same file"):
        pickle.loads(kept)


# stored runs


def test_a_run_is_resumed_only_with_the_same_file(margin: str, tmp_path: Path) -> None:
    model, out = tiny("llada_tiny"), tmp_path / "run"
    first = evaluate(model, PARITY, margin, SHORT, out=out, limit=2)
    kept = json.loads((out / "run.json").read_text())["configuration"]["sampler"]
    assert (kept["kind"], kept["min_margin"]) == (NAME, 0.5)
    assert evaluate(model, PARITY, margin, SHORT, out=out, limit=2).accuracy == first.accuracy
    Path(margin.rpartition(":")[0]).write_text(SOURCE + "\n# changed\n")
    with pytest.raises(ValueError, match=f"sampler.sources.{NAME}"):
        evaluate(model, PARITY, margin, SHORT, out=out, limit=2)


def test_the_samplers_of_unmask_are_stored_as_before_and_others_with_their_file(margin: str) -> None:
    assert sources(EndLast(LESS())) == {}
    assert list(sources(EndLast(find_sampler(margin)))["sources"]) == [NAME]
    assert list(sources(Calm())["sources"]) == ["Calm"]  # a class of this test


# installed packages


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two entry points, one of them broken."""
    place = tmp_path / "site"
    info = place / "margins-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: margins\nVersion: 1\n")
    points = f"[unmask.samplers]\nmargin = margins_of_a_test:{NAME}\nbroken = margins_of_a_test:Gone\n"
    (info / "entry_points.txt").write_text(points)
    (place / "margins_of_a_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(place)
    monkeypatch.delitem(sys.modules, "margins_of_a_test", raising=False)
    plugins.cache_clear()
    return place


def test_an_entry_point_is_a_sampler_and_is_imported_when_it_is_used(installed: Path) -> None:
    assert unmask.make_sampler("less") == LESS()
    assert "margins_of_a_test" not in sys.modules
    assert unmask.make_sampler("margin", min_margin=0.2).min_margin == 0.2
    with raises_field("sampler", "margim", "did you mean 'margin'?"):
        unmask.make_sampler("margim")


def test_a_broken_entry_point_is_an_error_only_for_its_user(installed: Path) -> None:
    assert "margin" in all_samplers()
    assert "broken" not in all_samplers()
    with raises_field("sampler", "broken", "margins_of_a_test:Gone"):
        known_sampler("broken")


# the server


def test_a_request_names_the_samplers_that_the_server_started_with(margin: str, tmp_path: Path) -> None:
    unmask.register_sampler("calm", Calm)
    own = unmask.make_sampler(margin, min_margin=0.3)
    body = {"prompt": "the", "max_tokens": 4}
    with listening(tiny("llada_tiny"), sampler=own, sampler_name=NAME) as server:
        for name in (None, NAME, "calm", "less"):
            answer = server.post("/v1/completions", {**body, "sampler": name})
            assert answer.status_code == 200, answer.text
            assert answer.json()["unmask"]["sampler"] == (name or NAME)
        facts = server.get("/v1/models/tiny").json()["unmask"]
        assert {NAME, "calm"} <= set(facts["samplers"])
        assert facts["sampler_fields"][NAME] == {"min_margin": 0.3}
        changed = {"sampler": NAME, "sampler_fields": {"min_margin": 0.9}}
        assert server.post("/v1/completions", {**body, **changed}).status_code == 200
        unmask.register_sampler("late", Calm)
        assert server.post("/v1/completions", {**body, "sampler": "late"}).status_code == 400


def test_a_request_never_runs_a_file(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"__import__('os').mkdir({str(ran)!r})\n{SOURCE}")
    name = f"{tmp_path / 'evil.py'}:{NAME}"
    body = {"prompt": "the", "max_tokens": 4}
    with listening(tiny("llada_tiny")) as server:
        for fields in (
            {"sampler": name},
            {"sampler": name.partition(":")[0]},
            {"sampler": "prophet", "sampler_fields": {"base": name}},
        ):
            answer = server.post("/v1/completions", {**body, **fields})
            assert answer.status_code == 400, answer.text
    assert not ran.exists()
    unmask.make_sampler(name)
    assert ran.exists()


# commands


def test_the_commands_take_a_class_of_a_file(
    margin: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from unmask.cli.app import app

    monkeypatch.chdir(tmp_path)
    name = f"margin.py:{NAME}"

    def call(*arguments: str) -> str:
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        return done.stdout

    model = ("-m", folder, "--device", "cpu")
    [line] = call(
        "generate", *model, "the", "-n", "8", "-s", name, "--set", "min_margin=0.2", "--json"
    ).splitlines()
    assert json.loads(line)["sampler"] == name
    lines = call("compare", *model, "the", "-n", "8", "-s", f"base,{name}", "--json").splitlines()
    assert [json.loads(one)["sampler"] for one in lines] == ["base", name]
    assert "min_margin" in call("samplers", name)
    call("eval", "mini-math", *model, "-s", name, "--limit", "1", "-n", "4", "--json")
    [kept] = (tmp_path / "runs").rglob("run.json")
    assert f"{NAME}-" in str(kept)
