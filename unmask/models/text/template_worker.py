"""Renders chat templates in a separate process with limited memory and time. A script, never imported.

It reads one JSON value per line from standard input: first the source of the template, then the variables of
each rendering. It writes {"text": ...} or {"problem": ..., "message": ...} for each line.
"""

import json
import resource
import signal
import sys
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 1 << 30  # bytes of address space
SECONDS = 1.0  # of processor time for compiling the template, and for each rendering
LONGEST = 64 << 20  # characters of a rendered conversation


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, but a forbidden attribute raises at once instead of reading as undefined."""

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        raise SecurityError(f"it reads {attribute!r} of a {type(obj).__name__}")


class _GenerationBlock(Extension):
    """`{% generation %}` marks an answer for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _sandbox() -> ImmutableSandboxedEnvironment:
    """Build the Jinja environment that published chat templates expect."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Dump plain JSON; Jinja's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class _Worker:
    """Compiles the first request, and renders the others."""

    def __init__(self) -> None:
        self._template: Template | None = None

    def answer(self, line: str) -> dict[str, str]:
        """Return the text, or what went wrong."""
        try:
            text = self._text(json.loads(line))
            if len(text) > LONGEST:
                return {"problem": "limit", "message": f"writes {len(text)} characters"}
            return {"text": text}
        except SecurityError as error:
            return {"problem": "sandbox", "message": str(error)}
        except TemplateSyntaxError as error:
            return {"problem": "syntax", "message": f"line {error.lineno}: {error}"}
        except MemoryError:
            return {"problem": "limit", "message": f"needs more than {MEMORY >> 20} MB of memory"}
        except Exception as error:
            return {"problem": "failure", "message": str(error)}

    def _text(self, request: Any) -> str:
        if self._template is not None:
            return self._template.render(**request)
        self._template = _sandbox().from_string(request)
        return ""


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent
    worker = _Worker()
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends this process
        answer = json.dumps(worker.answer(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(answer, flush=True)
