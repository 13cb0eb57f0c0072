"""Print the packages of this environment as the lines of constraints.txt.

A package that does not support the oldest Python that unmask supports gets a marker.
"""

from __future__ import annotations

import re
from importlib.metadata import Distribution, distributions

HEADER = """\
# The versions that the tests run with: all packages that `make` installs, those that they need included.
# `make constraints` writes this file anew. No hashes, because builds of torch differ from index to index.
# Benchmarks name their own versions: the GPU figures were made with torch 2.11.
"""
OLDEST = (3, 10)
# this package, the installer that comes with Python, and a package that GPU builds of torch pin themselves
LEFT_OUT = {"unmask", "pip", "triton"}


def line(package: Distribution) -> str:
    """Return the constraint of one package, without the label of a local build such as "+cpu"."""
    version = package.version.partition("+")[0]
    needed = re.search(r">=\s*(\d+)\.(\d+)", package.metadata.get("Requires-Python") or "")
    floor = tuple(map(int, needed.groups())) if needed else OLDEST
    marker = f'; python_version >= "{floor[0]}.{floor[1]}"' if floor > OLDEST else ""
    return f"{package.metadata['Name']}=={version}{marker}"


def main() -> None:
    """Print all lines in the order of the names."""
    packages = {package.metadata["Name"]: package for package in distributions()}
    print(HEADER, end="")
    for name in sorted(packages.keys() - LEFT_OUT, key=str.lower):
        print(line(packages[name]))


if __name__ == "__main__":
    main()
