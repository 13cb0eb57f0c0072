"""Who may import whom, read from the source with `ast` (docs/design.md)."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "unmask"

BOTTOM = {"types", "rows", "checks"}
TOOLS = BOTTOM | {"canvas", "summary", "signals", "policies", "draw", "schedule"}
DECODING = TOOLS | {
    "cache",
    "samplers",
    "course",
    "contract",
    "memory",
    "decision",
    "loop",
    "guidance",
    "result",
}
TEXT = {"config", "ending", "gaps", "generate", "infill", "prompts", "stream"}
MAY_IMPORT = {  # module -> the modules of unmask that it may know
    "types": set(),
    "rows": set(),
    "checks": set(),
    "fuse": set(),
    "cache": {"types"},
    "kernels": {"kernels"},
    **dict.fromkeys(sorted(TOOLS - BOTTOM), BOTTOM),
    "summary": BOTTOM | {"kernels"},
    "samplers": TOOLS | {"samplers"},
    "course": BOTTOM | {"canvas", "fuse", "schedule"},
    "memory": BOTTOM | {"summary"},
    "contract": BOTTOM | {"course"},
    "decision": TOOLS | {"contract", "course", "memory"},
    "loop": TOOLS | {"contract", "course", "decision", "fuse", "memory"},
    "guidance": TOOLS,
    "result": TOOLS | {"contract", "loop"},
    "models": {"types", "kernels", "models"},
    "trace": {"types"},
    "trace_page": {"trace"},
    "ray_cluster": set(),
    "sandbox": {"sandbox"},
    "training": {"types", "checks", "models", "sandbox", "training"},
    **dict.fromkeys(sorted(TEXT), DECODING | TEXT),
    "serving": DECODING | TEXT | {"__version__", "ray_cluster", "serving", "trace"},
    "experiments": DECODING | TEXT | {"evals", "experiments", "models", "sandbox", "trace"},
    "evals": DECODING
    | TEXT
    | {"__version__", "evals", "models", "ray_cluster", "sandbox", "trace", "training"},
}
CORE = sorted(DECODING | TEXT)
NO_HOST_READS = ("signals", "policies", "samplers")


def files(module: str) -> list[Path]:
    folder = PACKAGE / module
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{module}.py"]


def imports(source: str) -> set[str]:
    """Dotted names of everything that a file imports, wherever in it; relative imports are refused."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "unmask":
                found |= {f"unmask.{alias.name}" for alias in node.names}
            else:
                found.add(str(node.module))
    return found


def known_modules(path: Path) -> set[str]:
    """The modules of unmask that a file imports, by first name."""
    names = imports(path.read_text())
    assert "unmask" not in names, f"{path.name} imports the whole package"
    return {name.split(".")[1] for name in names if name.startswith("unmask.")}


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
        if path.exists()
    ]


@pytest.mark.parametrize(("module", "path"), layered())
def test_a_module_imports_only_what_lies_below_it(module, path):
    assert known_modules(path) <= MAY_IMPORT[module]


@pytest.mark.parametrize(
    "path", [path for module in CORE for path in files(module) if path.exists()], ids=lambda path: path.name
)
def test_the_core_needs_torch_and_the_standard_library_alone(path):
    outside = {name.split(".")[0] for name in imports(path.read_text())} - {"unmask", "torch"}
    assert outside <= set(sys.stdlib_module_names)


def test_importing_the_package_leaves_its_users_alone():
    users = {"evals", "experiments", "serving", "training", "cli", "bench", "mini"}
    assert not known_modules(PACKAGE / "__init__.py") & users


@pytest.mark.parametrize(
    "path", [path for module in NO_HOST_READS for path in files(module)], ids=lambda path: path.name
)
def test_signals_policies_and_samplers_never_wait_for_the_device_nor_walk_over_rows(path):
    assert host_reads(path.read_text()) == []


def test_the_loop_reads_the_host_in_one_place_and_in_its_error_messages():
    names = ("loop.py", "course.py", "contract.py", "memory.py")
    trees = [ast.parse((PACKAGE / name).read_text()) for name in names]
    readers = {
        function.name
        for tree in trees
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and any(".tolist" in read for read in host_reads(ast.unparse(function)))
    }
    assert readers == {"ask", "answer", "check", "check_written"}  # `answer` is what `ask` gives


def test_these_checks_see_what_they_look_for():
    assert imports("import numpy as np\ndef f():\n    from unmask import loop\n") == {"numpy", "unmask.loop"}
    bad = "for i in range(len(x)):\n    x[i].item()\ny = x.nonzero()\nz = [a for a in range(x.shape[0])]\n"
    assert len(host_reads(bad)) == 4
