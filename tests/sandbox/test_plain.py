"""Plain data survives the way there and back; bytes of a hostile program do no harm."""

from __future__ import annotations

import contextlib
from collections import deque
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.sandbox.inside.plain import Decoder, Encoder, NotPlain, Reference

few = settings(max_examples=20, deadline=None)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(st.characters(codec=None)),
    st.binary(),
    st.fractions(),
    st.decimals(allow_nan=False),
    st.builds(range, st.integers(), st.integers(), st.integers(1)),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.lists(inner).map(deque),
        st.dictionaries(SCALARS, inner),
        st.sets(SCALARS),
        st.frozensets(SCALARS),
    ),
    max_leaves=8,
)


def refuse(value: object) -> Reference:
    raise NotPlain


def there_and_back(value):
    data = Encoder(refuse, []).encode(value)
    return Decoder(data, lambda reference: None, []).decode()


@few
@given(VALUES)
def test_a_value_survives(value):
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


PIECES = st.sampled_from([b"l", b"t", b"&", b"o", b"d", b"S", b"i", b"N", b"\x01\0\0\0", b"\0\0\0\0"])


@given(st.binary(max_size=60) | st.lists(PIECES).map(b"".join))
def test_any_bytes_are_a_value_or_refused(data):
    with contextlib.suppress(NotPlain):
        Decoder(data, lambda reference: None, []).decode()


@few
@given(VALUES, st.integers(0, 100))
def test_a_part_of_a_value_is_refused(value, length):
    data = Encoder(refuse, []).encode(value)
    if length < len(data):
        with pytest.raises(NotPlain):
            Decoder(data[:length], lambda reference: None, []).decode()


def test_subclasses_cross_as_their_base():
    class Number(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    assert type(there_and_back(Number(3))) is int
    assert there_and_back(Fraction(1, 3)) == Fraction(1, 3)
    assert there_and_back(Decimal("1.50")).as_tuple() == Decimal("1.50").as_tuple()
