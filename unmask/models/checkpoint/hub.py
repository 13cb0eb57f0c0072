"""Find checkpoints: local folders, shipped models, and the Hugging Face hub with its cache."""

from __future__ import annotations

import re
from functools import partial
from os import PathLike
from pathlib import Path

from unmask.errors import FieldError

SHIPPED = ("mini-llada", "mini-dream")  # small models inside the package
REMEDY = f"shipped models: {', '.join(SHIPPED)}"
MINI = Path(__file__).parents[2] / "mini"
PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.jinja"]  # weights, configs and tokenizers; never code
HUB_ID = re.compile(r"(?!.*\.\.)[\w.-]+/[\w.-]+(@[\w./-]+)?")


def find_folder(source: str | Path) -> Path:
    """Return the folder of a local path, a shipped model or a hub snapshot "owner/name[@revision]"."""
    if not isinstance(source, (str, PathLike)) or not str(source):
        raise FieldError("source", source, "must be a folder or a hub id such as 'owner/name'", REMEDY)
    if Path(source).is_dir():
        return Path(source)
    if str(source).removeprefix("unmask/") in SHIPPED:
        return MINI / str(source).removeprefix("unmask/")
    if not isinstance(source, str) or HUB_ID.fullmatch(source) is None or source.startswith("."):
        problem = "must be a folder that exists or a hub id such as 'owner/name'"
        raise FieldError("source", str(source), problem, REMEDY)
    return _download(source)


def _download(source: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
    except ImportError:
        problem = "must be a folder that exists, because hub ids need huggingface_hub"
        raise FieldError("source", source, problem, "pip install 'unmask[models]'") from None
    repo, _, revision = source.partition("@")
    # the base classes include the HTTP library's error, which differs between versions
    failures: tuple[type[Exception], ...] = (*HfHubHTTPError.__bases__, OSError, ValueError)
    fetch = partial(snapshot_download, repo, revision=revision or None, allow_patterns=PATTERNS)
    try:
        return Path(fetch())
    except RepositoryNotFoundError:
        problem = "must be a folder that exists or a repository that the hub shows you"
        raise FieldError("source", repo, problem, "a private or gated one needs `hf auth login`") from None
    except failures as error:
        try:  # fall back to an earlier download in the cache
            return Path(fetch(local_files_only=True))
        except failures:
            problem = "must be a folder that exists, or a hub id that can be downloaded or was before"
            raise FieldError("source", source, problem, f"the download failed: {error}") from error
