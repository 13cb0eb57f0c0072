"""The command `unmask`. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; without typer or rich, say how to install them. An interrupt is quiet."""
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
