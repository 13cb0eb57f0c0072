"""Hub ids: the local cache serves them offline, and what cannot be had gets a sentence."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.raises import raises_field
from unmask.models import load
from unmask.models.checkpoint.hub import PATTERNS

from .goldens import GOLDENS

hub = pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty hub cache, and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def put(cache: Path, repo: str, checkpoint: str) -> Path:
    """Lay a checkpoint into the cache as a download would."""
    base = cache / f"models--{repo.replace('/', '--')}"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text(COMMIT)
    return Path(shutil.copytree(GOLDENS / checkpoint, base / "snapshots" / COMMIT))


@pytest.mark.parametrize("source", ["tiny/dream", f"tiny/dream@{COMMIT}"])
def test_a_cached_checkpoint_loads_offline(offline: Path, source: str) -> None:
    snapshot = put(offline, "tiny/dream", "dream_tiny")
    assert load(source, device="cpu").folder == snapshot


def test_an_absent_checkpoint_offline_gets_a_sentence(offline: Path) -> None:
    with raises_field("source", "tiny/absent", "cache"):
        load("tiny/absent")


def test_a_folder_wins_over_a_hub_id(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDENS.parent)
    assert load("goldens/dream_tiny", device="cpu").folder == Path("goldens/dream_tiny")


def test_no_code_and_no_pickles_are_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def download(repo: str, **options: object) -> str:
        asked.update(options, repo=repo)
        return str(GOLDENS / "dream_tiny")

    monkeypatch.setattr(hub, "snapshot_download", download)
    load("tiny/dream@v1", device="cpu")
    assert asked == {"repo": "tiny/dream", "revision": "v1", "allow_patterns": PATTERNS}
    assert not any(pattern.endswith((".py", ".bin", ".pt")) for pattern in PATTERNS)


def test_an_unknown_repository_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing(hub.errors.RepositoryNotFoundError):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            """The real one wants an HTTP response."""

    def download(repo: str, **options: object) -> str:
        raise Missing

    monkeypatch.setattr(hub, "snapshot_download", download)
    with raises_field("source", "tiny/dream", "hf auth login"):
        load("tiny/dream")


def test_a_broken_connection_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, **options: object) -> str:
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(hub, "snapshot_download", download)
    with raises_field("source", "tiny/dream", "reset by peer"):
        load("tiny/dream")


def test_without_the_hubs_library_the_extra_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with raises_field("source", "tiny/dream", "pip install 'unmask[models]'"):
        load("tiny/dream")
