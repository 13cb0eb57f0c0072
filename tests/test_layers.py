"""Who may import whom, read from the source with `ast` (docs/design.md)."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "unmask"

BOTTOM = {"types", "errors"}
ARITHMETIC = BOTTOM | {"decoding.canvas", "decoding.draw", "decoding.summary"}
CORE = {*BOTTOM, "catalog", "constraints", "decoding", "samplers", "text"}
WORDS = {"catalog", "describe"}
MAY_IMPORT = {  # room -> the rooms and modules of unmask that it may know
    "types": set(),
    "errors": set(),
    "catalog": set(),
    "describe": set(),
    "decoding": BOTTOM | {"decoding", "fast.kernels"},
    "files": set(),
    "plugins": {"errors"},
    "samplers": ARITHMETIC | {"files", "plugins", "samplers"},
    "samplers.about": WORDS | {"samplers", "types"},
    "constraints": ARITHMETIC | {"constraints", "decoding.bans"},
    "constraints.compiler": set(),
    "progress": set(),
    "text": CORE | {"__version__", "progress", "trace"},
    "models": BOTTOM | {"models", "plugins"},
    "models.diffusion_gemma": BOTTOM | {"decoding"},
    "fast": BOTTOM | {"decoding", "models", "fast"},
    "fast.kernels": {"fast.kernels"},
    "fast.warm_up": CORE | {"fast"},
    "trace": {"files", "types", "trace"},
    "ray_cluster": set(),
    "sandbox": {"errors", "sandbox"},
    "training": {"files", "types", "errors", "models", "sandbox", "training"},
    "serving": CORE | {"__version__", "fast", "ray_cluster", "serving", "trace"},
    "evals": CORE
    | {
        "__version__",
        "evals",
        "fast",
        "files",
        "models",
        "plugins",
        "ray_cluster",
        "sandbox",
        "trace",
        "training",
    },
    "experiments": CORE | {"evals", "experiments", "fast", "models", "sandbox", "trace", "training.grid"},
}
NO_HOST_READS = ("samplers",)


def files(module: str) -> list[Path]:
    folder = PACKAGE / module.replace(".", "/")
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def imports(source: str) -> set[str]:
    """Dotted names of everything that a file imports, wherever in it; relative imports are refused."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = str(node.module)
            found |= {f"{module}.{alias.name}" for alias in node.names} if _is_room(module) else {module}
    return found


def _is_room(module: str) -> bool:
    """Whether names imported from it may be modules themselves."""
    return module.split(".")[0] == "unmask" and (PACKAGE.parent / module.replace(".", "/")).is_dir()


def known_modules(path: Path) -> set[str]:
    """The modules of unmask that a file imports, without the package's name."""
    names = imports(path.read_text())
    assert "unmask" not in names, f"{path.name} imports the whole package"
    return {name.removeprefix("unmask.") for name in names if name.startswith("unmask.")}


def allowed(module: str, rooms: set[str]) -> bool:
    """Whether a module lies in one of the rooms."""
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def host_reads(source: str) -> list[str]:
    """Calls that wait for the device or walk over rows in Python, with their lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("item", "tolist", "nonzero", "cpu", "numpy"):
                found.append(f"line {node.lineno}: .{node.func.attr}()")
        elif isinstance(node, ast.For | ast.comprehension):
            over = ast.unparse(node.iter)
            if over.startswith("range(len(") or ".shape[" in over:
                found.append(f"for ... in {over}")
    return found


def layered() -> list:
    return [
        pytest.param(module, path, id=str(path.relative_to(PACKAGE)))
        for module in MAY_IMPORT
        for path in files(module)
        if not any(path in files(inner) for inner in MAY_IMPORT if inner.startswith(f"{module}."))
    ]


@pytest.mark.parametrize(("module", "path"), layered())
def test_a_module_imports_only_what_lies_below_it(module, path):
    assert [known for known in known_modules(path) if not allowed(known, MAY_IMPORT[module])] == []


@pytest.mark.parametrize(
    "path",
    [path for module in sorted(CORE) for path in files(module) if path not in files("constraints.compiler")],
    ids=lambda path: path.name,
)
def test_the_core_needs_torch_and_the_standard_library_alone(path):
    outside = {name.split(".")[0] for name in imports(path.read_text())} - {"unmask", "torch"}
    assert outside <= set(sys.stdlib_module_names)


def test_importing_the_package_leaves_its_users_alone():
    users = {"evals", "experiments", "serving", "training", "cli", "bench", "mini"}
    for file in ("__init__.py", "public.py"):
        assert not any(allowed(known, users) for known in known_modules(PACKAGE / file))


@pytest.mark.parametrize(
    "path", [path for module in NO_HOST_READS for path in files(module)], ids=lambda path: path.name
)
def test_signals_policies_and_samplers_never_wait_for_the_device_nor_walk_over_rows(path):
    assert host_reads(path.read_text()) == []


def test_the_loop_reads_the_host_in_one_place_and_in_its_error_messages():
    names = ("loop.py", "turns.py", "rows.py", "observe.py", "executor.py", "checks.py")
    trees = [ast.parse((PACKAGE / "decoding" / name).read_text()) for name in names]
    readers = {
        function.name
        for tree in trees
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and re.search(r"\.tolist\(|\bread_together\(", ast.unparse(function))
    }
    assert readers == {"remaining", "check_run", "check_written", "clocks"}  # the last reads a host table


def test_these_checks_see_what_they_look_for():
    assert imports("import numpy as np\ndef f():\n    from unmask import loop\n") == {"numpy", "unmask.loop"}
    bad = "for i in range(len(x)):\n    x[i].item()\ny = x.nonzero()\nz = [a for a in range(x.shape[0])]\n"
    assert len(host_reads(bad)) == 4
