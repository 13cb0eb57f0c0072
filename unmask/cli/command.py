"""Turn functions into commands: options from dataclasses, --debug, and errors as sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from unmask.cli.errors import sentences

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Replace every dataclass parameter of the function by one option per field."""
    own = signature(function, eval_str=True).parameters
    groups = {name: parameter.annotation for name, parameter in own.items() if _is_group(parameter)}

    @wraps(function)
    def run(*, debug: bool, **values: Any) -> None:
        with sentences(debug):
            for name, group in groups.items():
                values[name] = group(**{item.name: values.pop(item.name) for item in fields(group)})
            function(**values)

    spread = [option for parameter in own.values() for option in _spread(parameter)]
    parameters = [*spread, _keyword("debug", Debug, False)]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _is_group(parameter: Parameter) -> bool:
    return is_dataclass(parameter.annotation)


def _spread(parameter: Parameter) -> Iterator[Parameter]:
    """Yield the parameter itself, or one for every field of its dataclass."""
    if not _is_group(parameter):
        yield _keyword(parameter.name, parameter.annotation, parameter.default)
        return
    hints = get_type_hints(parameter.annotation, include_extras=True)
    for item in fields(parameter.annotation):
        yield _keyword(
            item.name, hints[item.name], Parameter.empty if item.default is MISSING else item.default
        )


def _keyword(name: str, hint: Any, default: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=hint, default=default)
