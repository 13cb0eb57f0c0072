"""Start the helper interpreter: `python -s -S this_folder`."""

import sys
from pathlib import Path
from types import ModuleType


def only_this_folder() -> None:
    """Make `unmask.sandbox.inside` importable without importing its parent packages."""
    here = Path(sys.path.pop(0)).resolve()
    for name, folder in (("unmask", here.parent.parent), ("unmask.sandbox", here.parent)):
        module = ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module


if __name__ == "__main__":
    only_this_folder()
    from unmask.sandbox.inside.serve import serve

    serve()
