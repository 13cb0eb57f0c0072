"""Shell completion: the names that an option takes. Imports nothing heavy, so the shell never waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from glob import escape, glob

from unmask.catalog import DEVICES, DTYPES, EXPERIMENTS, MODELS, PRESETS, TASKS

Names = list[tuple[str, str]]  # with a sentence, which zsh and fish show
CONFIG = "/config.json"  # a folder that holds it is a checkpoint
SENTENCES = {name: entry.sentence for name, entry in TASKS.items()}


def samplers(incomplete: str) -> Names:
    """Complete a sampler or a preset file."""
    return [*_begin(PRESETS, incomplete), *_paths(incomplete, "*.json")]


def models(incomplete: str) -> Names:
    """Complete a shipped model or the folder of a checkpoint."""
    folders = [path.removesuffix(CONFIG) for path, _ in _paths(incomplete, f"*{CONFIG}")]
    return [*_begin(MODELS, incomplete), *((folder, "") for folder in folders)]


def recipes(incomplete: str) -> Names:
    """Complete a shipped recipe or a recipe file."""
    files = [*_paths(incomplete, "*.toml"), *_paths(incomplete, "*.json")]
    return [*_begin(MODELS, incomplete), *files]


def tasks(incomplete: str) -> Names:
    """Complete a task."""
    return _begin(SENTENCES, incomplete)


def experiments(incomplete: str) -> Names:
    """Complete an experiment."""
    return _begin({"all": "Every experiment, and the results page.", **EXPERIMENTS}, incomplete)


def devices(incomplete: str) -> Names:
    """Complete a device."""
    return _begin(dict.fromkeys(DEVICES), incomplete)


def dtypes(incomplete: str) -> Names:
    """Complete a dtype."""
    return _begin(dict.fromkeys(DTYPES), incomplete)


def sampler_list(incomplete: str) -> Names:
    """Complete the last sampler of a list with commas."""
    return _last(PRESETS, incomplete)


def task_list(incomplete: str) -> Names:
    """Complete the last task of a list with commas."""
    return _last(SENTENCES, incomplete)


def one_of(words: Iterable[str]) -> Callable[[str], Names]:
    """Return a function that completes one of these words."""
    known = dict.fromkeys(words)

    def complete(incomplete: str) -> Names:
        return _begin(known, incomplete)

    return complete


def _begin(names: Mapping[str, str | None], incomplete: str) -> Names:
    return [(name, sentence or "") for name, sentence in names.items() if name.startswith(incomplete)]


def _last(names: Mapping[str, str | None], incomplete: str) -> Names:
    """Complete the last of several names; those before it stay, and are not offered again."""
    before, comma, last = incomplete.rpartition(",")
    left = {name: sentence for name, sentence in names.items() if name not in before.split(",")}
    return [(f"{before}{comma}{name}", sentence) for name, sentence in _begin(left, last)]


def _paths(incomplete: str, ending: str) -> Names:
    """Return the paths with this start and ending; if there are none, bash completes paths itself."""
    return [(path, "") for path in sorted(glob(escape(incomplete) + ending))]
