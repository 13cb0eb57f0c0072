"""Completion as a shell asks for it: through the environment of a process, names on its output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint
from unmask.catalog import DEVICES, DTYPES, EXPERIMENTS, MODELS, PRESETS, TASKS

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.argv = ["unmask"]
from unmask.cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules, "a shell must not wait for torch"
"""


def complete(*words: str, folder: Path = ROOT) -> list[str]:
    """The names that a shell offers for the last word."""
    environment = {
        "_UNMASK_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("unmask", *words)),
        "COMP_CWORD": str(len(words)),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def beginning(names: object, start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("generate", "--sampler", "le"), beginning(PRESETS, "le")),
        (("samplers", "klass-d"), beginning(PRESETS, "klass-d")),
        (("compare", "-s", "less,first-mask-a"), ["less,first-mask-accurate", "less,first-mask-along",
                                                  "less,first-mask-always"]),
        (("chat", "-m", "mini"), list(MODELS)),
        (("serve", "mini-d"), ["mini-dream"]),
        (("generate", "--cache", ""), ["prefix", "dual", "append", "none"]),
        (("generate", "--block-length", "a"), ["auto"]),
        (("generate", "--end-tokens", "l"), ["last"]),
        (("eval", "gsm"), ["gsm8k"]),
        (("eval", "gsm8k", "mini-m"), beginning(TASKS, "mini-m")),
        (("compare", "--task", "mini-math,mini-mb"), ["mini-math,mini-mbpp"]),
        (("reproduce", "head"), ["headline"]),
        (("reproduce", "headline", "p"), beginning(EXPERIMENTS, "p")),
        (("infill", "--device", "c"), beginning(DEVICES, "c")),
        (("generate", "--dtype", ""), list(DTYPES)),
        (("train", "mini-l"), ["mini-llada"]),
        (("generate", "--sampler", "no-such-name"), []),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_shell_completes_names(words, names):
    assert complete(*words) == names


def test_a_shell_completes_checkpoint_folders_and_preset_files(tmp_path):
    write_checkpoint(tmp_path / "mini-own", "dream_tiny")
    (tmp_path / "mini-empty").mkdir()
    (tmp_path / "lenient.json").write_text("{}")
    assert complete("generate", "-m", "mini-", folder=tmp_path) == [*MODELS, "mini-own"]
    assert complete("generate", "-m", f"{tmp_path}/mini-o") == [f"{tmp_path}/mini-own"]
    assert "lenient.json" in complete("generate", "-s", "le", folder=tmp_path)
