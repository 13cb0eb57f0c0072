"""Run a program in its own process, and answer what the checks ask of its objects."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Mapping
from types import CoroutineType, ModuleType
from typing import Any, NoReturn

from unmask.sandbox.inside import pipes
from unmask.sandbox.inside.confine import confine_job, die_with_parent
from unmask.sandbox.inside.plain import Decoder, Encoder, NotPlain, Reference, contents
from unmask.sandbox.inside.preload import import_extensions
from unmask.sandbox.inside.probe import denied
from unmask.sandbox.inside.remote import Link

REQUESTS, ANSWERS = 3, 4  # the program's only descriptors besides /dev/null

LONGEST_WORDS = 1000


def start_program(job: Mapping[str, Any], layers: list[str]) -> tuple[int, Link]:
    """Start a process for a program; return its id and the link to it."""
    (requests, asking), (answering, answers) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _run(job, layers, requests, answers)
    os.close(requests)
    os.close(answers)
    return child, Link(answering, asking)


def _run(job: Mapping[str, Any], layers: list[str], requests: int, answers: int) -> NoReturn:
    """Drop all rights, run the program, answer the requests of the checks, and exit when they do."""
    leave = os._exit
    try:
        die_with_parent()
        _keep_only(requests, answers)
        pipes.leave_streams()
        os.environ["TMPDIR"] = os.getcwd()
        import_extensions(job["program"])
        limits = confine_job(job["limits"])
        module = ModuleType("program")
        sys.modules["program"] = sys.modules["__main__"] = module
        served = _Objects(vars(module))
        if job["outside"]:
            served.answer("probe", ([*layers, limits], *job["outside"]), {}, [])
        served.serve(job["program"])
    finally:
        leave(0)


def _keep_only(requests: int, answers: int) -> None:
    """Give the two pipes their numbers, and close all other descriptors."""
    free = max(requests, answers, ANSWERS) + 1
    os.dup2(requests, free)
    os.dup2(answers, ANSWERS)
    os.dup2(free, REQUESTS)
    os.closerange(ANSWERS + 1, 1 << 16)


class _Objects:
    """The objects of the program that the checks have seen, by number."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.operations: dict[str, Callable[..., Any]] = {
            "run": lambda source: exec(
                compile(source, "<program>", "exec", dont_inherit=True, optimize=0), names
            ),
            "probe": lambda layers, *outside: (layers, denied(*outside)),
            "global": names.__getitem__,
            "call": lambda target, /, *args, **options: target(*args, **options),
            "await": _await,
            **{kind.__name__: kind for kind in (getattr, setattr, iter, next, len, bool, str, repr)},
            **{kind.__name__: kind for kind in (operator.getitem, operator.setitem)},
            **{kind.__name__: kind for kind in (operator.eq, operator.ne, operator.lt)},
            **{kind.__name__: kind for kind in (operator.le, operator.gt, operator.ge)},
        }

    def serve(self, source: str) -> None:
        """Run the program and send its outcome, then answer requests."""
        self.answer("run", (source,), {}, [])
        while True:
            containers: list[Any] = []
            request = Decoder(
                pipes.receive(REQUESTS), lambda at: self.objects[at.number], containers
            ).decode()
            operation, args, options = request
            self.answer(operation, args, options, containers)

    def answer(self, operation: str, args: Any, options: Any, containers: list[Any]) -> None:
        """Run an operation, and send its result or exception and the containers that it changed."""
        before = list(map(contents, containers))
        outcome, value = "returned", None
        try:
            value = self.operations[operation](*args, **options)
        except BaseException as error:
            outcome, value = "raised", _described(error)
        changes = tuple(
            (number, after)
            for number, old, after in zip(range(len(before)), before, map(contents, containers), strict=True)
            if len(old) != len(after) or not all(map(operator.is_, old, after))
        )
        try:
            data = Encoder(self.refer, containers).encode((outcome, changes, value))
        except NotPlain as error:
            data = Encoder(self.refer, []).encode(("not plain", (), str(error)))
        except BaseException as error:
            data = Encoder(self.refer, []).encode(("raised", (), _described(error)))
        pipes.send(ANSWERS, data)

    def refer(self, value: Any) -> Reference:
        """Number an object, so that the checks can name it."""
        number = self.numbers.get(id(value))
        if number is None:
            number = self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        if isinstance(value, type) and issubclass(value, BaseException):
            return Reference(number, "exception", _names(value))
        kinds = {ModuleType: "module", CoroutineType: "coroutine"}
        return Reference(number, kinds.get(type(value), ""))


def _described(error: BaseException) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return the class names of an exception and its arguments, or its message if those cannot be sent."""
    names = _names(type(error))
    try:
        if len(Encoder(_refuse, []).encode(error.args)) <= LONGEST_WORDS:
            return names, error.args
    except BaseException:
        pass
    try:
        return names, (str(error)[:LONGEST_WORDS],)
    except BaseException:  # the program's own __str__
        return names, ()


def _names(kind: type) -> tuple[str, ...]:
    return tuple(base.__name__ for base in kind.__mro__ if issubclass(base, BaseException))


def _refuse(value: Any) -> Reference:
    raise NotPlain


def _await(coroutine: Any) -> Any:
    import asyncio

    return asyncio.run(coroutine)
