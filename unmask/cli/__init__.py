"""The command `unmask`. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; without typer or rich, say how to install them. An interrupt is quiet."""
    # before torch is imported: threads that spin for each other on a busy machine are many times slower
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from unmask.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        print(f"error: the command line needs {error.name}; pip install 'unmask[cli]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    app()
