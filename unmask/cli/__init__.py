"""The command `unmask`. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Say how to install typer or rich if missing; exit quietly on Ctrl-C."""
    try:
        from unmask.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        print(f"error: the command line needs {error.name}; pip install 'unmask[cli]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        app()
    except OSError as error:  # help on a full disk
        print(f"error: {error.strerror}", file=sys.stderr)
        sys.exit(2)
