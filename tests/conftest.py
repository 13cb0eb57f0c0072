"""Options shared by all tests."""

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

# Tensors in the tests are tiny, so a second thread only spins, here and in the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
# Without cached bytecode, each of these processes would compile torch from source.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import torch  # noqa: E402  # reads OMP_NUM_THREADS

GOLDENS = Path(__file__).parent / "goldens"
OWN_SETS = [GOLDENS, GOLDENS / "frontier", GOLDENS / "families"]
if not torch.cuda.is_available():  # then Triton interprets its kernels, if it is told so before its import
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--goldens",
        action="append",
        metavar="DIR",
        help="folder of golden data; may be repeated (default: the project's own)",
    )
    parser.addoption("--device", default="cpu", help="device of the conformance tests")


def pytest_configure(config: pytest.Config) -> None:
    for folder in golden_folders(config):
        if not folder.is_dir():
            raise pytest.UsageError(
                f"--goldens must name a folder of golden data, but there is none at {folder}"
            )


def golden_folders(config: pytest.Config) -> list[Path]:
    """The golden sets that the conformance tests replay."""
    return [Path(folder) for folder in config.getoption("--goldens") or OWN_SETS]


@pytest.fixture(autouse=True, scope="session")
def one_thread_per_worker() -> None:
    """Limit torch to one thread, even if a plugin imported it first."""
    torch.set_num_threads(1)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is compiled goes through torch's tracer alone, whose limits no earlier test has used up."""
    from unmask.fast import executor

    torch._dynamo.reset()
    by_tracer = cache(lambda work: torch.compile(work, dynamic=False, backend="eager"))
    monkeypatch.setattr(executor, "_compiled", by_tracer)
    with torch._dynamo.config.patch(cache_size_limit=64):
        yield
    torch._dynamo.reset()
