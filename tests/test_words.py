"""Every public name says in a sentence what it is for, and every field has a line."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pytest

import unmask
from unmask import LESS, Threshold, catalog
from unmask.describe import field_lines, read_lines, sentence, source_lines, usage
from unmask.evals import TASKS, get_task
from unmask.evals.data import Source
from unmask.experiments import EXPERIMENTS
from unmask.models.checkpoint.hub import SHIPPED
from unmask.samplers import GROUPS
from unmask.samplers.about import OTHERS, about
from unmask.samplers.wrapper import settings
from unmask.serving.limits import Limits
from unmask.serving.settings import Settings
from unmask.training.data import DataSpec, Phase
from unmask.training.masking import Masking
from unmask.training.muon import OptimizerSpec
from unmask.training.objective import LossWeights
from unmask.training.recipe import ModelSpec, Recipe, RunSpec, Schedule
from unmask.types import Speculation

MODULES = (  # those that the documentation names
    "unmask",
    "unmask.catalog",
    "unmask.describe",
    "unmask.types",
    "unmask.errors",
    "unmask.decoding.bans",
    "unmask.decoding.cache",
    "unmask.decoding.canvas",
    "unmask.decoding.draw",
    "unmask.decoding.guidance",
    "unmask.decoding.loop",
    "unmask.decoding.options",
    "unmask.decoding.plan",
    "unmask.decoding.result",
    "unmask.evals",
    "unmask.experiments",
    "unmask.samplers",
    "unmask.samplers.about",
    "unmask.samplers.policies",
    "unmask.samplers.presets",
    "unmask.samplers.signals",
    "unmask.samplers.wrapper",
    "unmask.serving.limits",
    "unmask.serving.settings",
    "unmask.text.config",
    "unmask.text.gaps",
    "unmask.text.stream",
    "unmask.trace",
    "unmask.training.muon",
    "unmask.training.objective",
    "unmask.training.recipe",
)
EXPLAINED = (  # their fields are the settings that users write
    *(unmask.GenerationConfig, unmask.Options, unmask.Selection, unmask.BlockCache),
    *(Speculation, Limits, Settings),
    *(Recipe, ModelSpec, DataSpec, Phase, Schedule, Masking, LossWeights, OptimizerSpec, RunSpec),
)


def public(module: str) -> dict[str, Any]:
    """The classes and functions of a module: those in `__all__`, or those that it defines."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [name for name in vars(found) if not name.startswith("_")]
    items = {name: getattr(found, name) for name in names}
    return {
        name: item
        for name, item in items.items()
        if (inspect.isclass(item) or inspect.isfunction(item))
        and (hasattr(found, "__all__") or item.__module__ == module)
    }


def is_sentence(text: str) -> bool:
    """Whether a text has words, begins like a sentence and ends like one."""
    begins = not text[:1].islower() or text.startswith("unmask")
    return len(text.split()) > 1 and begins and text[-1] in ".:"


def own_words(item: Any) -> str:
    """The first paragraph of a docstring; not the signature that `dataclass` writes without one."""
    text = inspect.cleandoc(item.__doc__ or "")
    written = not inspect.isclass(item) or not text.startswith(f"{item.__name__}(")
    return text.split("\n\n")[0] if written else ""


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_sentence(module):
    found = {module: importlib.import_module(module), **public(module)}
    assert [name for name, item in found.items() if not is_sentence(own_words(item))] == []


@pytest.mark.parametrize("module", MODULES)
def test_every_field_of_a_public_class_has_a_line(module):
    lacking = [
        f"{name}.{item.name}"
        for name, kind in public(module).items()
        if inspect.isclass(kind) and is_dataclass(kind)
        for item in fields(kind)
        if not is_sentence(field_lines(kind).get(item.name, ""))
    ]
    assert lacking == []


@pytest.mark.parametrize("module", MODULES)
def test_no_line_explains_a_field_that_does_not_exist(module):
    unknown = [
        f"{name}.{line}"
        for name, kind in public(module).items()
        if inspect.isclass(kind) and is_dataclass(kind)
        for line in read_lines(kind.__doc__)
        if line not in {item.name for item in fields(kind)}
    ]
    assert unknown == []


@pytest.mark.parametrize("name", [name for group in GROUPS.values() for name in group])
def test_every_sampler_says_what_it_does_and_when_to_use_it(name):
    sampler = unmask.SAMPLERS[name]
    words = about(name, sampler)
    assert name in GROUPS[words.group]
    assert is_sentence(words.summary)
    assert is_sentence(words.use)
    assert set(words.fields) == set(settings(sampler))
    assert all(is_sentence(line) for line in words.fields.values())


def test_presets_with_other_fields_have_a_sentence_of_their_own():
    sentences = [about(name, sampler).summary for group in GROUPS.values() for name, sampler in group.items()]
    assert len(set(sentences)) == len(sentences)


def test_a_sampler_of_ones_own_is_described_by_its_docstring():
    class Mine(Threshold):
        """Commit as I like."""

    words = about("mine", Mine())
    assert (words.group, words.summary, words.use) == (OTHERS, "Commit as I like.", "")
    assert words.fields["min_confidence"] == field_lines(Threshold)["min_confidence"]


def test_a_sampler_without_words_is_listed_without_them():
    @dataclass
    class Silent:
        number: int = 1

    words = about("silent", Silent())  # type: ignore[arg-type]
    assert (words.summary, words.use, words.fields) == ("", "", {"number": ""})


@pytest.mark.parametrize("kind", EXPLAINED, ids=lambda kind: kind.__name__)
def test_the_settings_that_users_write_are_explained(kind):
    names = (
        [item.name for item in fields(kind)]
        if is_dataclass(kind)
        else list(inspect.signature(kind).parameters)
    )
    assert set(names) <= set(field_lines(kind))
    assert is_sentence(sentence(kind))


def test_lines_are_read_whole_and_without_importing_the_class():
    text = """Do it.

    Use it often.

    Attributes:
        first: One line.
        second: Two
            lines: the second one.

    Raises:
        ValueError: Never.
    """
    assert read_lines(text) == {"first": "One line.", "second": "Two lines: the second one."}
    assert read_lines(None) == read_lines("Only a sentence.") == {}
    assert source_lines("unmask.samplers", "less.py", "LESS") == field_lines(LESS)
    assert usage(LESS) == usage(LESS).strip() != ""


def test_the_catalog_has_every_name_and_no_other():
    assert set(catalog.PRESETS) == {name for group in GROUPS.values() for name in group}
    assert list(catalog.TASKS) == list(TASKS)
    assert list(catalog.EXPERIMENTS) == list(EXPERIMENTS)
    assert set(catalog.MODELS) == set(SHIPPED)
    for words in (*catalog.EXPERIMENTS.values(), *catalog.MODELS.values()):
        assert is_sentence(words)


@pytest.mark.parametrize("name", TASKS)
def test_the_catalog_counts_the_items_and_names_the_protocols_of_a_task(name):
    entry = catalog.TASKS[name]
    assert is_sentence(entry.sentence)
    task = get_task(name)
    made = importlib.import_module(f"unmask.evals.tasks.{TASKS[name]}").tasks(name)
    assert entry.protocols == tuple(made)
    sources = [part for part in task.load.args if isinstance(part, Source)]  # type: ignore[attr-defined]
    assert entry.items == (sources[0].rows if sources else len(task.load(None)))
