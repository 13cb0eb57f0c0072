from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.raises import raises_field
from unmask import LESS
from unmask.cli.app import app
from unmask.cli.options import SamplerOptions
from unmask.experiments import EXPERIMENTS, get_experiment
from unmask.experiments.page import figures_folder, write_page
from unmask.experiments.qualitative import PROMPTS
from unmask.experiments.report import write
from unmask.samplers import make_sampler
from unmask.samplers.presets import Preset, write_preset
from unmask.samplers.registry import find_sampler, known_sampler

QUICK = ("drop-one", "flip-rate", "flops")


def written(lab, names, folder):
    """Everything that experiments write, by file."""
    reports, outcomes = {}, {}
    for name in names:
        experiment = get_experiment(name)
        reports[experiment], made = experiment.make(lab)
        outcomes.update(made)
        write(reports[experiment], folder / "tables", figures_folder(folder / "results.md"))
    write_page(folder / "results.md", lab, reports, list(outcomes.values()))
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_same_records_give_the_same_bytes(make_lab, tmp_path):
    first = written(make_lab(tasks=("mini-gsm8k",), limit=1), QUICK, tmp_path / "first")
    again = written(make_lab(tasks=("mini-gsm8k",), limit=1, records_only=True), QUICK, tmp_path / "again")
    assert first == again
    assert {name.suffix for name in first} == {".md", ".csv", ".png"}
    pictures = [content for name, content in first.items() if name.suffix == ".png"]
    assert len(pictures) == len(set(pictures)) == len(QUICK)
    page = (tmp_path / "first" / "results.md").read_text()
    for name in QUICK:
        assert f"`unmask reproduce {name}`" in page
    for line in page.splitlines():
        if line.startswith("!["):
            assert (tmp_path / "first" / line.partition("](")[2].rstrip(")")).is_file()


def test_every_experiment_has_its_own_name_and_module():
    found = [get_experiment(name) for name in EXPERIMENTS]
    assert [experiment.name for experiment in found] == list(EXPERIMENTS)


def test_runs_are_shared_between_experiments(make_lab):
    lab = make_lab()
    ablation, policy = (set(get_experiment(name).runs(lab).values()) for name in ("drop-one", "policy"))
    assert len(ablation & policy) == 2  # full LESS on both tasks


def test_an_unknown_experiment_is_answered_with_the_nearest():
    with raises_field("experiment", "headlin", "did you mean 'headline'?"):
        get_experiment("headlin")


def test_the_command_prints_a_table_and_keeps_its_files(checkpoint, tmp_path):
    arguments = ["reproduce", "drop-one", "-m", str(checkpoint), "--tasks", "mini-gsm8k", "--limit", "1"]
    done = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "LESS without confidence is worse than full LESS: " in " ".join(done.output.split())
    assert "…" not in done.output  # a table that is too wide goes on below
    names = {file.name for file in (tmp_path / "reports").iterdir()}
    assert names == {"drop-one-llada.md", "drop-one-llada.csv", "drop-one.png"}


def test_what_lacks_records_is_named_and_the_rest_is_built(checkpoint, tmp_path):
    settings = ["-m", str(checkpoint), "--tasks", "mini-gsm8k", "--limit", "1", "--device", "cpu"]
    settings += ["--out", str(tmp_path)]
    made = CliRunner().invoke(app, ["reproduce", "drop-one", *settings])
    assert made.exit_code == 0, made.output
    built = CliRunner().invoke(app, ["reproduce", "all", *settings, "--records-only", "--pack"])
    assert built.exit_code == 0, built.output
    assert "headline is not complete: " in built.output
    assert "drop-one is not complete" not in built.output
    page = (tmp_path / "results.md").read_text()
    assert "`unmask reproduce drop-one`" in page
    assert "records are missing: headline, single-signal, policy, cache," in page
    assert not (tmp_path / "records").exists()  # all packed
    again = CliRunner().invoke(app, ["reproduce", "drop-one", *settings, "--records-only"])
    assert again.exit_code == 0, again.output
    nothing = CliRunner().invoke(app, ["reproduce", "headline", *settings, "--records-only"])
    assert nothing.exit_code != 0
    assert "headline is not complete" in " ".join(nothing.output.split())


def test_a_preset_file_is_a_sampler_for_the_command_line(tmp_path):
    path = tmp_path / "mine.json"
    write_preset(path, Preset(sampler="less", fields={"min_confidence": 0.9, "policy": "all"}, about="x"))
    assert find_sampler(str(path)) == LESS(min_confidence=0.9, policy="all")
    assert find_sampler("less-paper") == make_sampler("less-paper")
    changed = SamplerOptions(sampler=str(path), settings=["max_jsd=0.1"]).build()
    assert changed == LESS(min_confidence=0.9, policy="all", max_jsd=0.1)


def test_a_name_that_comes_over_a_network_opens_no_file(tmp_path):
    path = tmp_path / "mine.json"
    write_preset(path, Preset(sampler="less"))
    with raises_field("sampler", str(path)):
        known_sampler(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "is not a preset"),
        ("[]", r"is not a preset \(it must be a JSON object, got a list\)"),
        (json.dumps({"sampler": "less", "field": {}}), "is not a preset"),
        (json.dumps({"sampler": "lesss"}), "did you mean 'less'"),
        (json.dumps({"sampler": "less", "fields": {"max_jds": 1}}), "did you mean 'max_jsd'"),
        (json.dumps({"sampler": "less", "fields": []}), "is not a preset"),
    ],
)
def test_a_wrong_preset_is_refused_with_a_sentence(tmp_path, content, message):
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        find_sampler(str(path))


def test_a_missing_preset_is_named(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        find_sampler(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("name", "text", "right"),
    [
        ("sum", "It is 5,050.", True),
        ("sum", "It is 15050.", False),
        ("equation", "so x = 5", True),
        ("equation", "so x = 5.5 or x = 50", False),
        ("reverse", "Here:\n```python\ndef turn(s):\n    return s[::-1]\nprint(turn(input()))\n```", True),
        ("reverse", "```python\ndef turn(s):\n    return s\n```", False),
        (
            "fibonacci",
            "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\n\nn = int(input())\n",
            True,
        ),
        ("fibonacci", "def f(n):\n    return 0 if n < 2 else 1 if n == 2 else f(n - 1) + f(n - 2)\n", False),
        (
            "reverse",
            "def turn(s):\n    return s[::STEP]\nSTEP = -1\nwhile True:\n  print(turn(input()))\n",
            True,
        ),
        ("reverse", "I cannot.", False),
        ("equation", "So x = \\boxed{5}.", True),
        ("equation", "Now x = 15 / 3 = 5.\nSo x = \\boxed{6}.", False),
        ("sum", "101 * 50 = 5050.\nThe is \\boxed{5000}.", False),
    ],
)
def test_answers_to_the_papers_prompts_are_judged_by_what_they_say(name, text, right):
    assert PROMPTS[name][1](text) is right
