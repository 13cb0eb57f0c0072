"""What the package needs: the core torch alone, models and text no transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
GOLDENS = Path(__file__).parent / "goldens"


def run(code: str, *blocked: str) -> None:
    program = BLOCK.format(blocked=set(blocked)) + code
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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


def test_a_checkpoint_loads_and_decodes_without_transformers() -> None:
    run(TOKENS.format(folder=str(GOLDENS / "dream_tiny")), "transformers", "tokenizers", "huggingface_hub")
