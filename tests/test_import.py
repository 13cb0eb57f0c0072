"""What the package needs: the core torch alone, models and text no transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint

BLOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
TOKENS = """
import unmask
model = unmask.load({folder!r}, device="cpu")
canvas = unmask.blank([[7, 42, 99], [5]], 16, mask_id=model.info.mask_id, pad_id=model.info.pad_id)
result = unmask.decode(model, canvas, unmask.LESS(), unmask.plan(canvas.start, 16, steps=16))
assert not (result.generated == model.info.mask_id).any()
"""
TEXT = """
import unmask
model = unmask.load({folder!r}, device="cpu")
[answer] = unmask.generate(model, ["the cat"], progress=True, max_new_tokens=16)
assert answer.finish in ("length", "eos") and isinstance(answer.text, str), answer
"""
COMMAND = """
import runpy
sys.argv = ["unmask", "generate", "-m", {folder!r}, "the cat", "--json", "-n", "16", "--device", "cpu"]
runpy.run_module("unmask", run_name="__main__", alter_sys=True)
"""
GOLDENS = Path(__file__).parent / "goldens"


def run(code: str, *blocked: str) -> str:
    """What a program prints that must succeed without these packages."""
    program = BLOCK.format(blocked=set(blocked)) + code
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(write_checkpoint(tmp_path / "dream", "dream_tiny"))


def test_the_core_imports_with_torch_alone() -> None:
    run(
        "import unmask",
        "safetensors",
        "tokenizers",
        "jinja2",
        "huggingface_hub",
        "transformers",
        "typer",
        "rich",
    )


def test_importing_the_core_says_nothing_without_numpy() -> None:
    program = BLOCK.format(blocked={"numpy"}) + "import unmask; print(unmask.trace.read_trace.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("read_trace\n", "")


def test_a_checkpoint_loads_and_decodes_without_transformers() -> None:
    run(TOKENS.format(folder=str(GOLDENS / "dream_tiny")), "transformers", "tokenizers", "huggingface_hub")


def test_text_goes_in_and_comes_out_without_transformers(folder: str) -> None:
    run(TEXT.format(folder=folder), "transformers", "rich")


def test_the_command_line_generates_without_transformers(folder: str) -> None:
    answer = json.loads(run(COMMAND.format(folder=folder), "transformers"))
    assert (answer["prompt"], answer["model"]) == ("the cat", folder)
    assert 1 <= answer["steps"] <= 16
