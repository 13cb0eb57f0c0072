"""The package declares its imports, pins all that `make` installs, and ships what builds and tests need."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
tomllib = pytest.importorskip("tomllib")  # Python 3.11
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WITH_TORCH = {"triton"}  # torch brings it along where it works
LINE = re.compile(r'([\w.-]+)==[\w.]+(; python_version >= "3\.\d+")?')


def declared(extras: set[str] | None = None) -> Iterator[Requirement]:
    """The requirements of the package and of its extras, or of all extras."""
    wanted = set(PROJECT["optional-dependencies"]) if extras is None else extras
    texts = [*PROJECT["dependencies"], *(t for e in wanted for t in PROJECT["optional-dependencies"][e])]
    for requirement in map(Requirement, texts):
        if requirement.name == "unmask":
            yield from declared(requirement.extras)
        else:
            yield requirement


def imported() -> set[str]:
    """The packages that the modules of unmask import, at any place."""
    names = set()
    for file in (ROOT / "unmask").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"unmask"}


def pinned() -> set[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    matches = [LINE.fullmatch(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(match[1]) for match in matches if match}


def needed_by(requirement: Requirement, seen: set[tuple[str, frozenset[str]]]) -> None:
    """Add a package, with its extras, and all that it needs here."""
    key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
    if key in seen:
        return
    seen.add(key)
    try:
        further = [Requirement(text) for text in requires(requirement.name) or []]
    except PackageNotFoundError:  # a package that this environment lacks
        return
    for one in further:
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *key[1])):
            needed_by(one, seen)


def test_every_import_is_declared() -> None:
    homes = packages_distributions()
    names = {canonicalize_name(requirement.name) for requirement in declared()} | WITH_TORCH
    missing = {
        name
        for name in imported()
        if not {canonicalize_name(home) for home in homes.get(name, [name])} & names
    }
    assert not missing


def test_every_line_of_the_constraints_pins_one_version() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    wrong = [line for line in lines if not line.startswith("#") and not LINE.fullmatch(line)]
    assert not wrong


def test_the_constraints_pin_the_whole_tree_that_make_installs() -> None:
    [extras] = re.findall(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    seen: set[tuple[str, frozenset[str]]] = set()
    for requirement in declared(set(extras.split(","))):
        needed_by(requirement, seen)
    for tool in ("hatchling", "editables", "setuptools"):
        needed_by(Requirement(tool), seen)
    # a GPU build of torch needs one version of triton, another build none
    assert not {name for name, _ in seen} - pinned() - WITH_TORCH


def test_the_source_distribution_builds_and_tests_but_holds_no_results() -> None:
    sdist = pytest.importorskip("hatchling.builders.sdist")
    files = {file.distribution_path for file in sdist.SdistBuilder(str(ROOT)).recurse_included_files()}
    assert {"pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE"} <= files
    tracked = subprocess.run(
        ["git", "ls-files", "unmask", "tests"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert set(tracked.stdout.splitlines()) <= files
    assert not [name for name in files if name.startswith("benchmarks/results/") or name.endswith(".tar.xz")]
    assert not [name for name in files if name.startswith((".venv/", "build/", "dist/", ".git/"))]


@pytest.mark.slow
def test_a_bill_of_materials_names_every_installed_package(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx_py")
    file = tmp_path / "bom.json"
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-file", file, sys.executable]
    subprocess.run(command, check=True)
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["bomFormat"] == "CycloneDX"
    names = {canonicalize_name(part["name"]) for part in content["components"]}
    assert {"torch", "tokenizers", "pydantic", "starlette"} <= names
