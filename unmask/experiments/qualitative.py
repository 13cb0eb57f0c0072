"""The same prompt under the paper's four methods, side by side."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.evals import get_task
from unmask.evals.answers.program import find_code
from unmask.evals.decode import judge
from unmask.evals.records import settings_of
from unmask.experiments import methods
from unmask.experiments.experiment import Experiment
from unmask.experiments.grid import Cells, short
from unmask.experiments.lab import Lab
from unmask.experiments.paper import reported
from unmask.experiments.report import Report, Table, flat
from unmask.models.checkpoint.hub import SHIPPED
from unmask.samplers import SAMPLERS
from unmask.sandbox import Job, run_jobs
from unmask.text.generate import generate

FUNCTION = re.compile(r"^def (\w+)\(", re.MULTILINE)
BOX = re.compile(r"\\boxed\{([^{}]*)\}")


def _program(check: str) -> Callable[[str], bool]:
    """Return a judge of programs: the first function of a text must pass the check."""

    def judged(text: str) -> bool:
        match = FUNCTION.search(text)
        if match is None:
            return False
        code = find_code(text, match[1])
        # statements at the top level may ask for input
        [outcome] = run_jobs([Job(program=_definitions(code), checks=(check.format(f=match[1]),))])
        return outcome.passed

    return judged


def _definitions(code: str) -> str:
    """Return the imports, definitions and constants of a program, or all of it if it does not parse."""
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError):
        return code
    return ast.unparse(ast.Module([one for one in statements if _is_definition(one)], type_ignores=[]))


def _is_definition(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return not any(isinstance(part, ast.Call) for part in ast.walk(statement.value))
    kinds = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom
    return isinstance(statement, kinds)


def _result(number: str, named: str) -> Callable[[str], bool]:
    """Return a judge of answers. The last box must hold the number. Without a box, the text must name it."""

    def judged(text: str) -> bool:
        boxes = BOX.findall(text)
        found = re.fullmatch(number, boxes[-1].strip()) if boxes else re.search(named, text)
        return found is not None

    return judged


PROMPTS: dict[str, tuple[str, Callable[[str], bool]]] = {  # the paper's prompts, each with a judge
    "reverse": (
        "Write a Python program to reverse a string.",
        _program("assert {f}('abc') == 'cba' and {f}('') == ''"),
    ),
    "fibonacci": (
        "Write a python program to calculate the Fibonacci of a given number.",
        _program("assert [{f}(n) for n in range(2, 9)] == [1, 2, 3, 5, 8, 13, 21]"),
    ),
    "sum": (
        "What is the sum of the first 100 natural numbers?",
        _result(r"5,?050", r"\b5,?050\b"),
    ),
    "equation": (
        "Solve the equation: 3x + 5 = 20.",
        _result(r"(x\s*=\s*)?5", r"x\s*=\s*5\b(?!\s*[./]\s*\d)"),
    ),
}
READ_ONLY = {"sum", "equation"}  # judging these runs no program, so the report judges them anew
SAMPLING: dict[str, Any] = {"temperature": 0.2, "top_p": 0.95}  # as in the paper


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and the judge of its answers."""

    name: str
    prompt: str
    task: str  # decides the length and the thresholds of the methods
    judge: Callable[[str], bool]


def questions(lab: Lab, model: str) -> list[Question]:
    """Return the paper's four prompts and, for a shipped model, one prompt from each of its tasks."""
    tasks = lab.tasks(model)
    prompts = [Question(name, text, tasks[0], check) for name, (text, check) in PROMPTS.items()]
    if model in SHIPPED:
        prompts += [_own(lab, task) for task in tasks]
    return prompts


def _own(lab: Lab, name: str) -> Question:
    task, sample = get_task(name), lab.samples(name, 1)[0]
    text = str(sample.prompt[0]["content"])  # type: ignore[index]
    return Question(name, text, name, lambda answer: judge(task, [sample], [answer])[0].correct)


def _answers(lab: Lab, model: str, question: Question) -> dict[str, dict[str, Any]]:
    config = lab.run(model, question.task, SAMPLERS["less"], **SAMPLING).config

    def make() -> dict[str, dict[str, Any]]:
        answers = {}
        for label, sampler in methods.paper_methods(lab.family(model), question.task).items():
            chat = [{"role": "user", "content": question.prompt}]
            [answer] = generate(lab.model(model), [chat], sampler, config)
            answers[label] = {
                "text": answer.text,
                "steps": answer.steps,
                "seconds": answer.seconds,
                "correct": question.judge(answer.text),
            }
        return answers

    settings = {"name": question.name, "prompt": question.prompt, "config": settings_of(config)}
    answers: dict[str, dict[str, Any]] = lab.measurement(model, "qualitative", settings, make)
    return answers


def _build(lab: Lab, _: Sequence[Cells]) -> Report:
    parts = [
        _part(model, question, _answers(lab, model, question))
        for model in lab.models
        for question in questions(lab, model)
    ]
    return Report(
        tables=(
            Table(
                "qualitative",
                "Steps, seconds and verdicts",
                ("model", "prompt", "method", "steps", "seconds", "right", "paper: steps, s, right"),
                flat([rows for rows, _ in parts]),
            ),
        ),
        texts=tuple(text for _, text in parts),
    )


def _part(
    model: str, question: Question, answers: Mapping[str, Mapping[str, Any]]
) -> tuple[list[tuple[str, ...]], str]:
    """Return the table rows and the Markdown of one prompt."""
    paper = reported("qualitative", model).get(question.name, {})
    rows: list[tuple[str, ...]] = []
    blocks = [f"**{short(model)}, {question.name}.** {_quoted(question.prompt)}\n"]
    for label, answer in answers.items():
        correct = question.judge(answer["text"]) if question.name in READ_ONLY else answer["correct"]
        right = "yes" if correct else "no"
        printed = paper.get(label)
        shown = "" if printed is None else f"{printed[0]}, {printed[1]}, {'yes' if printed[2] else 'no'}"
        rows.append(
            (
                short(model),
                question.name,
                label,
                str(answer["steps"]),
                f"{answer['seconds']:.2f}",
                right,
                shown,
            )
        )
        head = f"{label}: {answer['steps']} steps, {answer['seconds']:.2f} s, right: {right}"
        text = str(answer["text"]).replace("```", "'''")
        blocks.append(f"{head}\n\n```text\n{text}\n```\n")
    return rows, "\n".join(blocks)


def _quoted(prompt: str) -> str:
    return " ".join(prompt.replace("|", "\\|").split())


EXPERIMENT = Experiment(
    name="qualitative",
    title="Examples",
    about=(
        "Temperature 0.2 and nucleus 0.95, as in the paper. A program is right if its first function passes "
        "a check, an answer if it names the result. The mini models know only their own tasks; the paper's "
        "four prompts are outside them. One answer per method proves nothing."
    ),
    runs=lambda lab: {},
    build=_build,
)
