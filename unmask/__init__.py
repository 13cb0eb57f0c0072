"""unmask: fast, trustworthy decoding of masked diffusion language models."""

import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    # on a busy machine, threads that spin for a long time while waiting are many times slower
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# torch warns if NumPy is missing; unmask does not need it
warnings.filterwarnings("ignore", "Failed to initialize NumPy: No module named 'numpy'", UserWarning)

if TYPE_CHECKING:
    from unmask.public import *  # noqa: F403
    from unmask.public import __all__ as __all__
else:

    def __getattr__(name: str) -> object:
        """Import the public names on first use, so that the command line starts without torch."""
        if not name.startswith("_") or name == "__all__":
            public = import_module("unmask.public")
            if name in ("__all__", *public.__all__):
                return getattr(public, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("unmask.public").__all__})
