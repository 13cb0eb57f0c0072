"""Plain data as bytes: values of the standard library's plain types, decoded into fresh objects.

The bytes may come from a hostile program. Decoding creates objects of the types below and calls nothing else.
A mutable container keeps its identity: the second time it is met, only its number is written. So shared and
circular containers survive, and an answer can say which of the caller's containers has changed.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

LARGEST = 1 << 24  # bytes of a message
DEEPEST = 200
COUNT, FLOAT, COMPLEX = struct.Struct("<I"), struct.Struct("<d"), struct.Struct("<dd")
Write = Callable[["Encoder", Any, int], None]
Read = Callable[["Decoder", int], Any]


class NotPlain(Exception):
    """A value that cannot cross."""


class Reference:
    """Refers to an object of the other process by its number there and its kind."""

    __slots__ = ("kind", "names", "number")

    def __init__(self, number: int, kind: str = "", names: tuple[str, ...] = ()) -> None:
        self.number = number
        self.kind = kind  # "module", "coroutine", "exception", or "" for any other
        self.names = names  # class names of an exception, the most specific first


class Encoder:
    """Writes values. `refer` returns a Reference for an object that is not plain, or raises NotPlain."""

    def __init__(self, refer: Callable[[Any], Reference], containers: list[Any]) -> None:
        self.refer = refer
        self.containers = containers  # the containers met so far, by number
        self.numbers = {id(container): number for number, container in enumerate(containers)}
        self.parts: list[bytes] = []
        self.size = 0

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value."""
        self.add(value, 0)
        return b"".join(self.parts)

    def put(self, part: bytes) -> None:
        """Append bytes."""
        self.parts.append(part)
        self.size += len(part)
        if self.size > LARGEST:
            raise NotPlain(f"more than {LARGEST >> 20} MiB of data")

    def add(self, value: Any, depth: int) -> None:
        """Append a value."""
        if depth > DEEPEST:
            raise NotPlain(f"data nested more than {DEEPEST} deep")
        write = WRITERS.get(type(value))
        if write is None:  # an object of a subclass crosses as its base
            write = next((WRITERS[kind] for kind in type(value).__mro__ if kind in WRITERS), _write_reference)
        write(self, value, depth + 1)

    def seen(self, container: Any) -> bool:
        """Return whether a container was met before; if so, write its number, else assign one."""
        number = self.numbers.get(id(container))
        if number is not None:
            self.put(b"&" + COUNT.pack(number))
            return True
        self.numbers[id(container)] = len(self.containers)
        self.containers.append(container)
        return False


def _write_int(to: Encoder, value: int, depth: int) -> None:
    data = int.to_bytes(value, int.bit_length(value) // 8 + 1, "little", signed=True)
    to.put(b"i" + COUNT.pack(len(data)) + data)


def _write_str(to: Encoder, value: str, depth: int) -> None:
    data = str.encode(value, "utf-8", "surrogatepass")
    to.put(b"s" + COUNT.pack(len(data)) + data)


def _write_bytes(to: Encoder, value: bytes, depth: int) -> None:
    to.put(b"b" + COUNT.pack(bytes.__len__(value)) + value)


def _write_items(tag: bytes, kind: Any, number: bool) -> Write:
    def write(to: Encoder, value: Any, depth: int) -> None:
        if number and to.seen(value):
            return
        to.put(tag + COUNT.pack(kind.__len__(value)))
        for item in kind.__iter__(value):
            to.add(item, depth)

    return write


def _write_dict(to: Encoder, value: dict[Any, Any], depth: int) -> None:
    if to.seen(value):
        return
    to.put(b"d" + COUNT.pack(dict.__len__(value)))
    for key, item in dict.items(value):
        to.add(key, depth)
        to.add(item, depth)


def _write_bytearray(to: Encoder, value: bytearray, depth: int) -> None:
    if not to.seen(value):
        to.put(b"a" + COUNT.pack(bytearray.__len__(value)) + value)


def _write_deque(to: Encoder, value: deque[Any], depth: int) -> None:
    if not to.seen(value):
        to.put(b"q")
        to.add(value.maxlen, depth)
        to.add(list(deque.__iter__(value)), depth)


def _write_parts(tag: bytes, split: Callable[[Any], tuple[Any, ...]]) -> Write:
    def write(to: Encoder, value: Any, depth: int) -> None:
        to.put(tag)
        for part in split(value):
            to.add(part, depth)

    return write


def _write_reference(to: Encoder, value: Any, depth: int) -> None:
    reference = to.refer(value)
    to.put(b"o" + COUNT.pack(reference.number))
    to.add(reference.kind, depth)
    to.add(reference.names, depth)


WRITERS: dict[type, Write] = {
    type(None): lambda to, value, depth: to.put(b"N"),
    bool: lambda to, value, depth: to.put(b"T" if value else b"F"),
    int: _write_int,
    float: lambda to, value, depth: to.put(b"f" + FLOAT.pack(value)),
    complex: lambda to, value, depth: to.put(b"c" + COMPLEX.pack(value.real, value.imag)),
    str: _write_str,
    bytes: _write_bytes,
    bytearray: _write_bytearray,
    list: _write_items(b"l", list, number=True),
    tuple: _write_items(b"t", tuple, number=False),
    set: _write_items(b"S", set, number=True),
    frozenset: _write_items(b"Z", frozenset, number=False),
    dict: _write_dict,
    deque: _write_deque,
    range: _write_parts(b"r", lambda value: (value.start, value.stop, value.step)),
    Fraction: _write_parts(b"Q", lambda value: (value.numerator, value.denominator)),
    Decimal: _write_parts(b"D", lambda value: (Decimal.__str__(value),)),
}


class Decoder:
    """Reads values. `resolve` returns the object of a Reference."""

    def __init__(self, data: bytes, resolve: Callable[[Reference], Any], containers: list[Any]) -> None:
        self.data = data
        self.place = 0
        self.resolve = resolve
        self.containers = containers  # the containers met so far, by number

    def decode(self) -> Any:
        """Return the value; raise NotPlain if the bytes are not exactly one value."""
        try:
            value = self.read(0)
        except (ValueError, TypeError, ArithmeticError, LookupError, struct.error, RecursionError) as error:
            raise NotPlain(f"broken data ({type(error).__name__})") from None
        if self.place != len(self.data):
            raise NotPlain("broken data")
        return value

    def read(self, depth: int) -> Any:
        """Read a value."""
        if depth > DEEPEST + 2:
            raise ValueError
        return READERS[self.take(1)](self, depth + 1)

    def take(self, length: int) -> bytes:
        """Read bytes."""
        part = self.data[self.place : self.place + length]
        if len(part) < length:
            raise ValueError
        self.place += length
        return part

    def count(self) -> int:
        """Read a length or a number."""
        return int(COUNT.unpack(self.take(COUNT.size))[0])

    def new(self, container: Any) -> Any:
        """Assign a number to a container that is about to be filled."""
        self.containers.append(container)
        return container

    def items(self, depth: int) -> list[Any]:
        """Read a length and that many values."""
        return [self.read(depth) for _ in range(self.count())]


def _read_list(of: Decoder, depth: int) -> list[Any]:
    value: list[Any] = of.new([])
    value.extend(of.items(depth))
    return value


def _read_set(of: Decoder, depth: int) -> set[Any]:
    value: set[Any] = of.new(set())
    value.update(of.items(depth))
    return value


def _read_dict(of: Decoder, depth: int) -> dict[Any, Any]:
    value: dict[Any, Any] = of.new({})
    for _ in range(of.count()):
        key = of.read(depth)
        value[key] = of.read(depth)
    return value


def _read_bytearray(of: Decoder, depth: int) -> bytearray:
    value = bytearray(of.take(of.count()))
    of.new(value)
    return value


def _read_deque(of: Decoder, depth: int) -> deque[Any]:
    place = len(of.containers)
    of.containers.append(None)
    length = of.read(depth)
    of.containers[place] = value = deque[Any](maxlen=length)
    items = of.read(depth)
    if type(items) is not list:
        raise ValueError
    value.extend(items)
    return value


def _read_reference(of: Decoder, depth: int) -> Any:
    number, kind, names = of.count(), of.read(depth), of.read(depth)
    if type(kind) is not str or type(names) is not tuple or any(type(name) is not str for name in names):
        raise ValueError
    return of.resolve(Reference(number, kind, names))


READERS: dict[bytes, Read] = {
    b"N": lambda of, depth: None,
    b"T": lambda of, depth: True,
    b"F": lambda of, depth: False,
    b"i": lambda of, depth: int.from_bytes(of.take(of.count()), "little", signed=True),
    b"f": lambda of, depth: FLOAT.unpack(of.take(FLOAT.size))[0],
    b"c": lambda of, depth: complex(*COMPLEX.unpack(of.take(COMPLEX.size))),
    b"s": lambda of, depth: of.take(of.count()).decode("utf-8", "surrogatepass"),
    b"b": lambda of, depth: of.take(of.count()),
    b"a": _read_bytearray,
    b"l": _read_list,
    b"t": lambda of, depth: tuple(of.items(depth)),
    b"S": _read_set,
    b"Z": lambda of, depth: frozenset(of.items(depth)),
    b"d": _read_dict,
    b"q": _read_deque,
    b"r": lambda of, depth: range(of.read(depth), of.read(depth), of.read(depth)),
    b"Q": lambda of, depth: Fraction(of.read(depth), of.read(depth)),
    b"D": lambda of, depth: Decimal(of.read(depth)),
    b"o": _read_reference,
    b"&": lambda of, depth: of.containers[of.count()],
}


def contents(container: Any) -> tuple[Any, ...]:
    """Return the items of a changeable container."""
    if isinstance(container, dict):
        return tuple(part for pair in dict.items(container) for part in pair)
    return (bytes(container),) if isinstance(container, bytearray) else tuple(container)


def refill(container: Any, items: tuple[Any, ...]) -> None:
    """Replace the items of a changeable container."""
    if isinstance(container, bytearray):
        container[:] = items[0]
    elif isinstance(container, dict):
        container.clear()
        container.update(zip(items[::2], items[1::2], strict=True))
    else:
        container.clear()
        container.update(items) if isinstance(container, set) else container.extend(items)
