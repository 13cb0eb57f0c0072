"""Load the user's code: classes in FILE.py, and entry points of installed packages."""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from unmask.errors import FieldError

FILE = ".py"
DIGEST = "__unmask_digest__"  # attribute of a module that was loaded from a file


def is_file_name(name: object) -> bool:
    """Return whether a name is FILE.py:Class, or FILE.py without its class."""
    return isinstance(name, str) and (f"{FILE}:" in name or name.endswith(FILE))


def short_name(name: str) -> str:
    """Return the class of FILE.py:Class, the stem of a preset file, or else the name itself."""
    if is_file_name(name):
        return name.rpartition(":")[2]
    return Path(name).stem if name.endswith(".json") else name


def load_from_file(field: str, name: str) -> Any:
    """Run FILE.py and return the Class of "FILE.py:Class". Never call this with a name from a network."""
    file, _, member = name.rpartition(":") if f"{FILE}:" in name else (name, "", "")
    module = _run_file(field, name, Path(file).expanduser().resolve())
    value = getattr(module, member, None) if member else None
    if value is None:
        own = [key for key, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__]
        remedy = f"it has {', '.join(f'{file}:{key}' for key in own)}" if own else "it defines none"
        raise FieldError(field, name, "must name a class of the file", remedy)
    return value


def call_factory(field: str, name: str, factory: Any) -> Any:
    """Call a class or a function without arguments and return the result."""
    if not callable(factory):
        raise FieldError(field, name, "must be a class or a function")
    try:
        return factory()
    except Exception as error:
        problem = f"must be made without arguments, but {type(error).__name__}: {error}"
        raise FieldError(field, name, problem, "give every argument a default") from error


def source_digest(kind: type) -> str | None:
    """Return a hash of the file that defines a class; None if it belongs to unmask or has no file."""
    if kind.__module__.partition(".")[0] == "unmask":
        return None
    module = sys.modules.get(kind.__module__)
    loaded: str | None = getattr(module, DIGEST, None)
    path = getattr(module, "__file__", None)
    return loaded or (_digest(Path(path).read_bytes()) if path and Path(path).is_file() else None)


@cache
def plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; their code does not run yet."""
    return {point.name: point for point in entry_points(group=group)}


def load_plugin(field: str, point: EntryPoint) -> Any:
    """Import the object that an entry point names."""
    try:
        return point.load()
    except Exception as error:
        problem = f"cannot be loaded from {point.value}: {type(error).__name__}: {error}"
        raise FieldError(field, point.name, problem, "repair or remove its package") from error


def _run_file(field: str, name: str, path: Path) -> ModuleType:
    """Return the module of a file; run the file only if it is new or has changed."""
    if not path.is_file():
        raise FieldError(field, name, "must name a file that exists", "write it as FILE.py:Class")
    source = path.read_bytes()
    digest = _digest(source)
    title = f"unmask_file_{path.stem}_{_digest(str(path).encode())}_{digest}"
    if title in sys.modules:
        return sys.modules[title]
    module = ModuleType(title)
    vars(module).update({"__file__": str(path), DIGEST: digest})
    sys.modules[title] = module  # dataclasses and type hints look their module up
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except Exception as error:
        del sys.modules[title]
        problem = f"cannot be loaded: {type(error).__name__}: {error}"
        raise FieldError(field, name, problem, "repair the file") from error
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == title and is_dataclass(value):
            copyreg.pickle(value, _reduce)
    return module


def _reduce(value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Pickle a value by the file of its class, so that another process can run the file itself."""
    kind = type(value)
    module = sys.modules[kind.__module__]
    held = {item.name: getattr(value, item.name) for item in fields(value) if item.init}
    return _restore, (f"{module.__file__}:{kind.__qualname__}", getattr(module, DIGEST), held)


def _restore(name: str, digest: str, held: dict[str, Any]) -> Any:
    kind = load_from_file("sampler", name)
    if source_digest(kind) != digest:
        raise FieldError("sampler", name, "must be the same file in every process", "copy it to all machines")
    return kind(**held)


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]
