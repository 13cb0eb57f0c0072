"""The program's objects as the checks see them, from their own process."""

from __future__ import annotations

import builtins
from typing import Any, NoReturn

from unmask.sandbox.inside import pipes
from unmask.sandbox.inside.plain import LARGEST, Decoder, Encoder, NotPlain, Reference, refill

MOST_BASES = 50  # longest list of class names of an exception


class Refused(BaseException):
    """The program answered with something that is not plain data; it fails, whatever the check does."""


class Link:
    """Sends requests to the program's process, and turns its answers into local objects."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing
        self.problem = ""  # the first reason why the program has failed; empty if it has not
        self.closed = False  # whether the program has closed its pipes
        self._remotes: dict[int, Remote] = {}
        self._exceptions: dict[tuple[str, ...], type[BaseException]] = {}

    def ask(self, operation: str, *args: Any, **options: Any) -> Any:
        """Run an operation in the program's process, and return the result or raise its exception.

        If it changes containers among the arguments, update them here too.
        """
        containers: list[Any] = []
        try:
            request = Encoder(_refer, containers).encode((operation, args, options))
        except NotPlain as error:
            self.refuse(f"not plain data: {error}")
        try:
            pipes.send(self.writing, request)
        except pipes.Closed:
            self.closed = True
            raise
        return self.answer(containers)

    def answer(self, containers: list[Any]) -> Any:
        """Read the answer to a request whose arguments held these containers."""
        asked = len(containers)
        try:
            reply = pipes.receive(self.reading, LARGEST)
            outcome, changes, value = Decoder(reply, self._resolve, containers).decode()
            for number, items in changes:
                if not 0 <= number < asked:
                    raise NotPlain("broken data")
                refill(containers[number], items)
            if outcome == "not plain":
                raise NotPlain(str(value))
            if outcome == "raised":
                names, args = value
                error = self._exception(names, args)
        except pipes.Closed:
            self.closed = True
            raise
        except (NotPlain, ValueError, TypeError, LookupError, AttributeError) as problem:
            self.refuse(f"not plain data: {problem}")
        if outcome == "raised":
            raise error
        return value

    def refuse(self, problem: str) -> NoReturn:
        """Fail the program, even if a check catches the exception."""
        self.problem = self.problem or problem
        raise Refused(problem)

    def _resolve(self, reference: Reference) -> Any:
        if reference.kind == "exception":
            return self._class(reference.names)
        number = reference.number
        if number not in self._remotes:
            self._remotes[number] = Remote(self, number, reference.kind)
        remote = self._remotes[number]
        return _coroutine(remote) if reference.kind == "coroutine" else remote

    def _class(self, names: tuple[str, ...]) -> type[BaseException]:
        """Return the builtin exception of this name, or a local subclass of the nearest builtin one."""
        if len(names) > MOST_BASES:
            raise ValueError("broken data")
        if names not in self._exceptions:
            near = next((builtin for builtin in map(_builtin, names) if builtin is not None), Exception)
            same = names[:1] == (near.__name__,)
            self._exceptions[names] = near if same else type(names[0], (self._above(names, near),), {})
        return self._exceptions[names]

    def _above(self, names: tuple[str, ...], near: type[BaseException]) -> type[BaseException]:
        above = names[1:]
        return near if not above or above[0] == near.__name__ else self._class(above)

    def _exception(self, names: tuple[str, ...], args: tuple[Any, ...]) -> BaseException:
        kind = self._class(names)
        try:
            return kind(*args)
        except Exception:  # such as UnicodeDecodeError, which needs certain arguments
            return kind.__new__(kind)


class Remote:
    """An object in the program's process. Checks may call it, read it and iterate over it.

    It can be compared only with other objects of the program. Comparing it with plain data fails the program,
    because the program would decide the result.
    """

    __slots__ = ("_kind", "_link", "_number")
    _kind: str
    _link: Link
    _number: int

    def __init__(self, link: Link, number: int, kind: str) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_kind", kind)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._link.ask("call", self, *args, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__name__":  # asked by the standard library, not by a check
            raise AttributeError(name)
        return self._link.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("setattr", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._link.ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._link.ask("setitem", self, key, value)

    def __iter__(self) -> Any:
        return self._link.ask("iter", self)

    def __next__(self) -> Any:
        return self._link.ask("next", self)

    def __len__(self) -> int:
        return self._number_of("len")

    def __bool__(self) -> bool:
        return bool(self._number_of("bool"))

    def _number_of(self, operation: str) -> int:
        number = self._link.ask(operation, self)
        if not isinstance(number, int):
            self._link.refuse("not plain data: a length or a truth value that is no number")
        return number

    def __str__(self) -> str:
        return str(self._link.ask("str", self))

    def __repr__(self) -> str:
        return str(self._link.ask("repr", self))

    def __hash__(self) -> int:
        return hash((Remote, self._number))

    def __eq__(self, other: object) -> Any:
        return False if other is None else self._compared("eq", other)

    def __ne__(self, other: object) -> Any:
        return True if other is None else self._compared("ne", other)

    def __lt__(self, other: object) -> Any:
        return self._compared("lt", other)

    def __le__(self, other: object) -> Any:
        return self._compared("le", other)

    def __gt__(self, other: object) -> Any:
        return self._compared("gt", other)

    def __ge__(self, other: object) -> Any:
        return self._compared("ge", other)

    def _compared(self, operation: str, other: object) -> Any:
        if type(other) is not Remote:
            self._link.refuse(
                f"not plain data: an object of the program was compared with {type(other).__name__}"
            )
        return self._link.ask(operation, self, other)


def is_module(value: object) -> bool:
    """Return whether this is a module of the program's process."""
    return type(value) is Remote and value._kind == "module"


def _refer(value: Any) -> Reference:
    if type(value) is not Remote:
        raise NotPlain(f"a check's {type(value).__name__} as an argument")
    return Reference(value._number)


def _builtin(name: str) -> type[BaseException] | None:
    kind = getattr(builtins, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None


async def _coroutine(remote: Remote) -> Any:
    return remote._link.ask("await", remote)
