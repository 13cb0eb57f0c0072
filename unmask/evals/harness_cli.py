"""The command `unmask-lm-eval`: lm-eval's own command line, with the model `unmask` in its registry."""

from __future__ import annotations

import sys


def main() -> None:
    """Register the model and run lm-eval; print one sentence about a wrong argument or a missing package."""
    try:
        from lm_eval.__main__ import cli_evaluate

        import unmask.evals.harness  # noqa: F401 registers the model
    except ModuleNotFoundError as error:
        if error.name != "lm_eval":
            raise
        print("error: this command needs lm-eval; pip install 'unmask[lm-eval]'", file=sys.stderr)
        sys.exit(2)
    from unmask.errors import FieldError

    try:
        cli_evaluate()
    except FieldError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
