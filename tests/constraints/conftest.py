"""Automata go to a folder of this run, not to that of the user."""

from __future__ import annotations

import pytest

import tests.toy  # noqa: F401 the profile of hypothesis

pytest.importorskip("outlines_core")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("UNMASK_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()
