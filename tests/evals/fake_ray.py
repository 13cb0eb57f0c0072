"""The few calls of Ray that runs make, in one process, so that their own code is tested without Ray."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class RayTaskError(Exception):
    """An error of a task; Ray sends the cause as a pickle."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = pickle.loads(pickle.dumps(cause))


class RayActorError(Exception):
    """A worker died; none does here."""


class Handle:
    """A remote function, class, object or method."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Handle:
        return Handle(getattr(self._target, name))

    def options(self, **resources: Any) -> Handle:
        return self

    def remote(self, *arguments: Any) -> Any:
        try:
            result = self._target(*arguments)
        except Exception as error:
            raise RayTaskError(error) from None
        return Handle(result) if isinstance(self._target, type) else result


class Rows:
    """A dataset that is mapped by one worker."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items = items

    def map(self, worker: type, fn_constructor_args: tuple[Any, ...], **settings: Any) -> Rows:
        *sent, attempts = fn_constructor_args
        worker_of_this = worker(*pickle.loads(pickle.dumps(sent)), attempts)
        return Rows([worker_of_this(item) for item in reversed(self.items)])  # in no particular order

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        return iter(self.items)


def make(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    ray: Any = ModuleType("ray")

    def init(address: str, runtime_env: dict[str, Any] | None = None, **settings: Any) -> None:
        ray.variables = (runtime_env or {}).get("env_vars", {})

    data: Any = ModuleType("ray.data")
    context = SimpleNamespace()
    data.DataContext = SimpleNamespace(get_current=lambda: context)
    data.ActorPoolStrategy = lambda size: size
    data.from_items = lambda items, override_num_blocks: Rows(items)
    ray.init, ray.shutdown, ray.get, ray.remote = init, lambda: None, lambda value: value, Handle
    ray.cluster_resources = lambda: {"CPU": 2.0}
    ray.exceptions = SimpleNamespace(RayTaskError=RayTaskError, RayActorError=RayActorError)
    ray.data = data
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", data)
    module: ModuleType = ray
    return module
