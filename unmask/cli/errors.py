"""Show errors as one sentence on standard error and an exit code, without a traceback."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import typer

CRASHED = 1  # an error in the user's code or in ours, or output that nobody reads
FAILED = 2
INTERRUPTED = 130
# a failed allocation on the CPU or on MPS is a plain RuntimeError
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


@contextmanager
def sentences(debug: bool) -> Iterator[None]:
    """Turn errors that a user can cause into a sentence and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(CRASHED) from None
    except (ValueError, OSError, MemoryError) as error:
        raise _told(error, debug) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise _told(error, debug) from None
        if debug:
            raise
        traceback.print_exception(error.with_traceback(_below(error.__traceback__)))
        raise typer.Exit(CRASHED) from None


def _told(error: Exception, debug: bool) -> typer.Exit:
    """Print the sentence of an error, and return the exit that ends the command."""
    if debug:
        traceback.print_exc()
    print_error(sentence(error))
    return typer.Exit(FAILED)


def _below(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without its first frames, which are those of the command line."""
    while trace is not None and trace.tb_next is not None and _is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_own(file: str) -> bool:
    return Path(file).parent == Path(__file__).parent or file == contextlib.__file__


def print_error(message: str) -> None:
    """Print an error."""
    typer.secho("error: ", fg=typer.colors.RED, bold=True, nl=False, err=True)
    typer.echo(message, err=True)


def sentence(error: Exception) -> str:
    """Return the message of an error on one line."""
    if is_out_of_memory(error):
        return (
            "out of memory; lower --max-new-tokens, give fewer prompts, or load a smaller --dtype "
            "(bfloat16, int8, int4)"
        )
    if isinstance(error, OSError) and error.strerror is not None:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an allocation failed."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)
