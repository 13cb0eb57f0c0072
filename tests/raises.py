"""What every error of a field promises: its name, its value and a way out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from unmask.errors import FieldError, shown

ANYTHING = object()


@contextmanager
def raises_field(
    field: str, value: object = ANYTHING, *words: str
) -> Iterator[pytest.ExceptionInfo[FieldError]]:
    """Expect a FieldError with this field and value, whose message has the words too."""
    with pytest.raises(FieldError) as caught:
        yield caught
    error = caught.value
    assert error.field == field
    assert value is ANYTHING or repr(error.value) == repr(value)  # nan is not equal to itself
    check_message(error, *words)


def check_message(error: FieldError, *words: str) -> None:
    """Check that a message is one line with the field, the value and the allowed range or a remedy."""
    message = str(error)
    assert "\n" not in message
    assert f"{error.field} {error.problem}" in message
    assert f"got {shown(error.value)}" in message
    assert re.search(r"\bmust\b", error.problem) or error.remedy, f"no way out: {message}"
    for word in words:
        assert word in message
