"""Every python block of the README and the docs runs as it is written.

A hub id stands for a tiny checkpoint, and 256 tokens for 16. A block right after a line `<!-- fragment -->`
is no program of its own and is left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.checkpoints import write_checkpoint

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FRAGMENT = "<!-- fragment -->"
BLOCK = re.compile(r"(?P<before>[^\n]*)\n+(?P<indent> *)```python\n(?P<code>.*?)\n(?P=indent)```", re.DOTALL)
HUB_IDS = {r"[\w-]+/LLaDA-[\w.-]+": "llada_tiny", r"Dream-org/[\w.-]+": "dream_tiny"}


def programs(page: str) -> list[str]:
    """The python blocks of a page that are not marked as fragments."""
    found = BLOCK.finditer("\n" + page)
    return [dedent(block["code"]) for block in found if block["before"].strip() != FRAGMENT]


def shortened(code: str, folders: dict[str, Path]) -> str:
    """The program on tiny checkpoints, with few new tokens."""
    for pattern, folder in folders.items():
        code = re.sub(rf"([\"']){pattern}\1", repr(str(folder)), code)
    return re.sub(r"\b256\b", "16", code)


def documented() -> list:
    return [
        pytest.param(code, id=f"{page.name}-{number}")
        for page in PAGES
        for number, code in enumerate(programs(page.read_text(encoding="utf-8")), 1)
    ]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny checkpoint for each kind of hub id."""
    place = tmp_path_factory.mktemp("docs")
    return {pattern: write_checkpoint(place / name, name) for pattern, name in HUB_IDS.items()}


@pytest.mark.parametrize("code", documented())
def test_a_documented_program_runs(code, folders):
    done = subprocess.run(
        [sys.executable, "-c", shortened(code, folders)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_fragments_are_left_out_and_programs_found():
    page = f"""```python
a
```
text

```python
b

b
```
{FRAGMENT}
```python
c
```
1. a list

   ```python
   if d:
       d
   ```
   ```bash
   e
   ```
"""
    assert programs(page) == ["a", "b\n\nb", "if d:\n    d"]


def test_hub_ids_and_lengths_are_replaced(folders):
    code = 'load("GSAI-ML/LLaDA-8B-Instruct", "Dream-org/Dream-v0-Base-7B", n=256, m=2560)'
    llada, dream = folders.values()
    assert shortened(code, folders) == f"load({str(llada)!r}, {str(dream)!r}, n=16, m=2560)"


def test_the_design_page_shows_the_loop_as_it_is():
    [shown] = re.findall(
        r"```\n( {4}upcoming = .*?)```", (ROOT / "docs" / "design.md").read_text(), re.DOTALL
    )
    assert shown in (ROOT / "unmask" / "decoding" / "loop.py").read_text()


def test_the_files_that_the_design_page_names_exist():
    design = (ROOT / "docs" / "design.md").read_text()
    table = design.split("## Where to change what")[1].split("Imports go one way")[0]
    named = set(re.findall(r"`([\w/]+/[\w]+\.py)", table)) - {
        name for name in re.findall(r"`([\w/]+/NAME\.py)", table)
    }
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / "unmask" / name).exists()] == []
