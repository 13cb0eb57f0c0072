"""Every python block of the README and the docs runs as it is written, every command of a bash block parses,
every link leads somewhere, and the site builds without a warning.

A hub id stands for a tiny checkpoint, and 256 tokens for 16. A block right after a line `<!-- fragment -->`
is no program of its own and is left out.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from typer.main import get_command

from tests.checkpoints import write_checkpoint
from unmask.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [*PAGES, ROOT / "benchmarks" / "README.md", *sorted((ROOT / "unmask" / "mini").rglob("*.md"))]
FRAGMENT = "<!-- fragment -->"
BLOCK = re.compile(r"(?P<before>[^\n]*)\n+(?P<indent> *)```python\n(?P<code>.*?)\n(?P=indent)```", re.DOTALL)
OUTPUT = re.compile(r"\n+```\n(.*?)```", re.DOTALL)
SHELL = re.compile(r"^(?P<indent> *)```bash\n(?P<code>.*?)\n(?P=indent)```", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^ *```.*?^ *```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r'(?:\]\(|(?:src|href)=")([^)"\s]+)')
in_a_clone = pytest.mark.skipif(
    not (ROOT / "benchmarks" / "results").is_dir(), reason="a source distribution has no recorded results"
)
HUB_IDS = {r"[\w-]+/LLaDA-[\w.-]+": "llada_tiny", r"Dream-org/[\w.-]+": "dream_tiny"}


def programs(page: str) -> dict[str, str | None]:
    """The python blocks of a page that are not marked as fragments, each with the output shown after it."""
    page = "\n" + page
    found = [block for block in BLOCK.finditer(page) if block["before"].strip() != FRAGMENT]
    outputs = [OUTPUT.match(page, block.end()) for block in found]
    return {dedent(block["code"]): output and output[1] for block, output in zip(found, outputs, strict=True)}


def shortened(code: str, folders: dict[str, Path]) -> str:
    """The program on tiny checkpoints, with few new tokens."""
    for pattern, folder in folders.items():
        code = re.sub(rf"([\"']){pattern}\1", repr(str(folder)), code)
    return re.sub(r"\b256\b", "16", code)


def documented() -> dict[str, tuple[str, str | None]]:
    """The programs of all pages with the outputs shown, by page and number."""
    return {
        f"{page.name}-{number}": program
        for page in PAGES
        for number, program in enumerate(programs(page.read_text(encoding="utf-8")).items(), 1)
    }


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny checkpoint for each kind of hub id."""
    place = tmp_path_factory.mktemp("docs")
    return {pattern: write_checkpoint(place / name, name) for pattern, name in HUB_IDS.items()}


def test_every_documented_program_runs_and_prints_the_output_shown(folders):
    asked = documented()
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs"],
        cwd=ROOT,
        input=json.dumps([shortened(code, folders) for code, _ in asked.values()]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (name, (_, shown)), (status, printed, errors) in zip(
        asked.items(), json.loads(done.stdout), strict=True
    ):
        assert status == 0, f"{name}: {errors}"
        assert shown in (None, printed), name


def test_fragments_are_left_out_and_programs_found():
    page = f"""```python
a
```
text

```python
b

b
```

```
output
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
    assert programs(page) == {"a": None, "b\n\nb": "output\n", "if d:\n    d": None}


def test_hub_ids_and_lengths_are_replaced(folders):
    code = 'load("GSAI-ML/LLaDA-8B-Instruct", "Dream-org/Dream-v0-Base-7B", n=256, m=2560)'
    llada, dream = folders.values()
    assert shortened(code, folders) == f"load({str(llada)!r}, {str(dream)!r}, n=16, m=2560)"


def commands(page: str) -> list[list[str]]:
    """The arguments of every `unmask` command in the bash blocks of a page."""
    lines = [
        line
        for block in SHELL.finditer(page)
        for line in block["code"].replace("\\\n", " ").splitlines()
        if "unmask " in line and not line.lstrip().startswith(("pip ", "#"))
    ]
    parts = [part for line in lines for part in re.split(r"&&|;|\|", line)]
    words = [shlex.split(part, comments=True) for part in parts]
    return [arguments for line in words if (arguments := after(line)) is not None]


def after(words: list[str]) -> list[str] | None:
    """The arguments of `unmask`, which only words such as `timeout 5` may precede, or None."""
    for index, word in enumerate(words):
        if word.startswith("-"):
            return None
        if word.rpartition("/")[2] == "unmask":
            return [word for word in words[index + 1 :] if word != "&"]
    return None


def parse(arguments: list[str]) -> None:
    """Parse a command as the command line does, without running it."""
    command, context = get_command(app), None
    name = "unmask"
    while hasattr(command, "resolve_command"):  # a group
        context = command.make_context(name, arguments, parent=context)
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(name, arguments, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_parse(page):
    for arguments in commands(page.read_text(encoding="utf-8")):
        parse(arguments)


def test_commands_are_found_and_wrong_ones_refused():
    page = """```bash
pip install unmask
unmask-lm-eval --model unmask --tasks gsm8k
timeout 5 unmask generate "a b" --cache dual \\
  --json && .venv/bin/unmask samplers   # a comment
```
1. indented

   ```bash
   unmask bench gpu
   ```
"""
    first = ["generate", "a b", "--cache", "dual", "--json"]
    assert commands(page) == [first, ["samplers"], ["bench", "gpu"]]
    for arguments in (["generate", "--no-such-option"], ["bench", "moon"], ["eval"]):
        with pytest.raises(Exception, match=r"(?i)no such|missing|no-such"):
            parse(arguments)


def heading_ids(page: Path) -> set[str]:
    """The anchors of the headings of a page, as code hosts and the site make them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    """The links of a page to files or headings that do not exist."""
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in heading_ids(target)):
            yield link


@in_a_clone
@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page):
    assert list(broken_links(page)) == []


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A b: `c`\n[x](#a-b) [x](#none) [x](none.md) ![x](page.md#a-b-) [x](https://a.b) `[x](y)`"
    )
    assert list(broken_links(page)) == ["#none", "none.md", "page.md#a-b-"]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_inside_a_list_are_indented_enough_for_the_site(page):
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"\n\n( {1,3}\S.*)", text) == []


@in_a_clone
def test_the_site_builds_without_a_warning_and_asks_no_other_host(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {
        page.relative_to(tmp_path).as_posix(): page.read_text("utf-8") for page in tmp_path.rglob("*.html")
    }
    assert {"index.html", "results.html", "api/unmask.html", "benchmarks/index.html"} <= pages.keys()
    loads = re.compile(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*")
    assert {name: loads.findall(page) for name, page in pages.items() if loads.search(page)} == {}
    assert "unmask.generate" in pages["api/unmask.html"]


@pytest.mark.parametrize("page", ["README.md", "docs/design.md"])
def test_the_loop_is_shown_as_it_is(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    [shown] = re.findall(r"```\w*\n((?: {4}\S.*\n)* {4}while turn .*?)```", text, re.DOTALL)
    assert shown in (ROOT / "unmask" / "decoding" / "loop.py").read_text(encoding="utf-8")


def test_the_files_that_the_design_page_names_exist():
    design = (ROOT / "docs" / "design.md").read_text()
    table = design.split("## Where to change what")[1].split("Imports go one way")[0]
    named = set(re.findall(r"`([\w/]+/[\w]+\.py)", table)) - {
        name for name in re.findall(r"`([\w/]+/NAME\.py)", table)
    }
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / "unmask" / name).exists()] == []
