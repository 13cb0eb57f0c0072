"""Import modules before a job runs: a job cannot map code into memory, so it cannot load a library."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
from contextlib import suppress

COMMON = (
    *("math", "cmath", "operator", "functools", "itertools", "collections", "heapq", "bisect", "re", "array"),
    *("string", "random", "typing", "datetime", "decimal", "fractions", "numbers", "statistics", "copy"),
    *("json", "enum", "dataclasses", "sys", "os", "time", "types", "builtins", "abc", "__future__"),
)
# extensions that are useless here, or slow to import and replaced by a Python version if missing
LEFT_OUT = (
    *("_test", "_xx", "xx", "_ctypes_test", "_tkinter", "_curses", "readline", "nis", "ossaudiodev", "spwd"),
    *("_crypt", "_dbm", "_gdbm", "audioop", "_asyncio", "_elementtree", "_zoneinfo", "_interp"),
)
IMPORTS = re.compile(r"\b(?:import|from)\s+([\w., \t]+)|(importlib|__import__)")
IMPORTED = re.compile(r"(?:^|,)\s*(\w+)")


def import_common() -> None:
    """Import the modules that most programs need, once for all jobs."""
    for name in COMMON:
        importlib.import_module(name)
    with suppress(OSError):
        ctypes.CDLL("libgcc_s.so.1")  # the C library loads it when a thread ends early


def import_extensions(source: str) -> None:
    """Import all extensions of the standard library if the source seems to import an uncommon module."""
    if all(name in COMMON for name in _imported(source)):
        return
    folders = [path for path in sys.path if os.path.basename(path) == "lib-dynload"]
    for file in sorted(file for folder in folders for file in os.listdir(folder)):
        if file.endswith(".so") and not file.startswith(LEFT_OUT):
            with suppress(ImportError):
                importlib.import_module(file.partition(".")[0])


def _imported(source: str) -> set[str]:
    """Return all modules that the source imports, and maybe other names."""
    names = set()
    for modules, dynamic in IMPORTS.findall(source):
        names.update([dynamic] if dynamic else IMPORTED.findall(modules.partition(" import ")[0]))
    return names
