"""Write a pipeline as Python, in one of several shapes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from unmask.training.tasks.code.pipeline import Pipeline
from unmask.training.tasks.code.stages import Stage
from unmask.training.tasks.phrases import one, shuffled

ELEMENTS = {
    "numbers": ("x", "n", "v", "num"),
    "text": ("c", "ch", "x"),
    "words": ("w", "word", "x"),
    "integer": ("x",),
}
FRESH = ("result", "out", "data", "kept", "new", "temp", "final", "part")
TOTALS = ("total", "count", "result", "answer")


@dataclass(slots=True)
class Writer:
    """The variable names of one program, and its lines so far."""

    rng: random.Random
    pipeline: Pipeline
    parameter: str
    element: str
    fresh: list[str]
    lines: list[str]

    def expression(self, stages: list[Stage], value: str, bracket: bool) -> str:
        """Return the expression after one stage, or after a `keep` and `each` written as one."""
        stage, x = stages[0], self.element
        code = one(self.rng, stage.code)
        if stage.kind in ("whole", "end"):
            return code.replace("{v}", f"({value})" if bracket else value).replace("{x}", x)
        change = code.replace("{x}", x) if stage.kind == "each" else x
        test = f" if {code.replace('{x}', x)}" if stage.kind == "keep" else ""
        if len(stages) == 2:
            change = one(self.rng, stages[1].code).replace("{x}", x)
        inner = f"{change} for {x} in {value}{test}"
        return f"''.join({inner})" if self.pipeline.takes == "text" else f"[{inner}]"


def body(rng: random.Random, pipeline: Pipeline, parameter: str) -> str:
    """Write the body of a function of one parameter, indented by four spaces."""
    element = one(rng, [name for name in ELEMENTS[pipeline.takes] if name != parameter])
    fresh = [name for name in shuffled(rng, FRESH) if name != parameter]
    writer = Writer(rng, pipeline, parameter, element, fresh, [])
    if pipeline.guard is not None:
        writer.lines += [f"if {one(rng, pipeline.guard.code)}:".replace("{p}", parameter)]
        writer.lines += [f"    return {pipeline.guard.value!r}"]
    one(rng, _shapes(pipeline))(writer)
    return "\n".join(f"    {line}" for line in writer.lines)


def _shapes(pipeline: Pipeline) -> list[Callable[[Writer], None]]:
    shapes: list[Callable[[Writer], None]] = [_in_place, _fresh_names]
    if len(pipeline.stages) <= 3:
        shapes.append(_nested)
    if pipeline.takes != "integer" and any(stage.kind in ("keep", "each") for stage in pipeline.stages):
        shapes += [_loop, _loop]
    return shapes


def _start(writer: Writer) -> str:
    """Return the expression for the value before the first stage."""
    return f"{writer.parameter}.split()" if writer.pipeline.takes == "words" else writer.parameter


def _groups(writer: Writer, stages: tuple[Stage, ...]) -> list[list[Stage]]:
    """Return the stages one by one, or in half the cases a `keep` together with the `each` after it."""
    merge = writer.rng.random() < 0.5
    groups: list[list[Stage]] = []
    for stage in stages:
        if merge and groups and stage.kind == "each" and [s.kind for s in groups[-1]] == ["keep"]:
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def _in_place(writer: Writer, name: str = "", stages: tuple[Stage, ...] | None = None) -> None:
    """Write the stages with one variable that each of them changes."""
    value = name or _start(writer)
    name = name or (writer.parameter if writer.pipeline.takes != "words" else writer.fresh[0])
    groups = _groups(writer, writer.pipeline.stages if stages is None else stages)
    short = writer.rng.random() < 0.5
    while groups and groups[0][0].kind != "end":
        written = writer.expression(groups.pop(0), value, bracket=False)
        sign = written[len(value) + 1 : -2].strip() if short and writer.pipeline.takes == "integer" else ""
        if sign in ("+", "-", "*", "//", "%") and written.startswith(f"{value} "):
            writer.lines.append(f"{name} {sign}= {written[-1]}")
        else:
            writer.lines.append(f"{name} = {written}")
        value = name
    writer.lines.append(f"return {writer.expression(groups[0], value, bracket=False) if groups else value}")


def _fresh_names(writer: Writer) -> None:
    """Write a new variable for every stage. The last value is returned directly or named first."""
    value, names = _start(writer), iter(writer.fresh)
    groups = _groups(writer, writer.pipeline.stages)
    for group in groups[:-1]:
        name = next(names)
        writer.lines.append(f"{name} = {writer.expression(group, value, bracket=False)}")
        value = name
    last = writer.expression(groups[-1], value, bracket=False)
    if writer.rng.random() < 0.5:
        name = next(names)
        writer.lines.append(f"{name} = {last}")
        last = name
    writer.lines.append(f"return {last}")


def _nested(writer: Writer) -> None:
    """Write all stages as one expression."""
    value, loose = _start(writer), False
    for group in _groups(writer, writer.pipeline.stages):
        bracket = loose and not _calls(group[0])
        value = writer.expression(group, value, bracket)
        loose = group[-1].loose
    writer.lines.append(f"return {value}")


def _calls(stage: Stage) -> bool:
    """Whether every spelling of the code puts the value in brackets."""
    return stage.kind in ("keep", "each") or all("({v}" in code for code in stage.code)


def _loop(writer: Writer) -> None:
    """Write the first run of element-wise stages as a loop, and the rest in place."""
    stages = writer.pipeline.stages
    first = next(i for i, stage in enumerate(stages) if stage.kind in ("keep", "each"))
    after = next((i for i in range(first, len(stages)) if stages[i].kind in ("whole", "end")), len(stages))
    value = _start(writer)
    for stage in stages[:first]:
        value = writer.expression([stage], value, bracket=False)
        if stage.loose:
            value = f"({value})"
    end = stages[after] if after == len(stages) - 1 and stages[after].adds else None
    name = one(writer.rng, TOTALS) if end else writer.fresh[0]
    if name == writer.parameter:
        name = "answer"
    text = writer.pipeline.takes == "text"
    writer.lines += [
        f"{name} = {'0' if end else repr('') if text else '[]'}",
        f"for {writer.element} in {value}:",
    ]
    _loop_body(writer, stages[first:after], name, end)
    if end or after == len(stages):
        writer.lines.append(f"return {name}")
    else:
        _in_place(writer, name, stages[after:])


def _loop_body(writer: Writer, run: tuple[Stage, ...], name: str, end: Stage | None) -> None:
    x, indent = writer.element, "    "
    value = x
    for place, stage in enumerate(run):
        code = one(writer.rng, stage.code).replace("{x}", x)
        if stage.kind == "keep":
            writer.lines.append(f"{indent}if {code}:")
            indent += "    "
        elif place == len(run) - 1:
            value = code
        else:
            writer.lines.append(f"{indent}{x} = {code}")
    if end is not None:
        writer.lines.append(f"{indent}{name} += {end.adds.replace('{x}', value)}")
    elif writer.pipeline.takes == "text":
        writer.lines.append(f"{indent}{name} += {value}")
    else:
        writer.lines.append(f"{indent}{name}.append({value})")
