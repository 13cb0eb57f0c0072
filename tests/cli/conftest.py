"""The command line on tiny checkpoints that read and write text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.checkpoints import write_checkpoint
from tests.cli.terminal import Terminal
from unmask.cli.app import app
from unmask.models import load
from unmask.models.trunk import Trunk


@pytest.fixture(scope="session")
def dream(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a model that decodes the full sequence."""
    return str(write_checkpoint(tmp_path_factory.mktemp("cli") / "dream", "dream_calm_tiny"))


@pytest.fixture(scope="session")
def llada(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a model that decodes in blocks."""
    return str(write_checkpoint(tmp_path_factory.mktemp("cli") / "llada", "llada_tiny"))


@pytest.fixture(scope="session")
def dream_model(dream: str) -> Trunk:
    return load(dream, device="cpu")


@pytest.fixture(scope="session")
def llada_model(llada: str) -> Trunk:
    return load(llada, device="cpu")


@pytest.fixture
def call() -> Callable[..., Any]:
    """Run a command in this process; its result has exit_code, stdout and stderr."""

    def run(*arguments: object, text: str | None = None) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=text)

    return run


@pytest.fixture
def lines(call: Callable[..., Any]) -> Callable[..., list[dict[str, Any]]]:
    """Run a command that must succeed; what its JSON lines hold."""

    def run(*arguments: object, text: str | None = None) -> list[dict[str, Any]]:
        result = call(*arguments, "--json", text=text)
        assert (result.exit_code, result.stderr) == (0, "")
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a checkpoint that a test may spoil."""
    import shutil

    return lambda folder: Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.fixture
def open_terminal() -> Iterator[Callable[..., Terminal]]:
    """Start `unmask` under a pseudo-terminal; kill it at the end if it still runs."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(closing(Terminal(*arguments)))
