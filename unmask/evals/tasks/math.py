"""MATH and its 500-problem subset: competition problems, judged by equivalence and by exact match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256

from unmask.evals.answers.boxed import boxed
from unmask.evals.answers.equivalence import equivalent
from unmask.evals.answers.latex import released_answers, released_match
from unmask.evals.answers.phrase import answer_ends, first_sentence
from unmask.evals.data import Row, Source, load_samples, text_field
from unmask.evals.task import Sample, Task, Verdict
from unmask.evals.tasks.gsm8k import SYSTEM
from unmask.text.prompts import Message

VERSION = 1
SUBJECTS = (
    *("algebra", "counting_and_probability", "geometry", "intermediate_algebra"),
    *("number_theory", "prealgebra", "precalculus"),
)
SOURCES = {
    "math": Source(file="math/test.jsonl", hub="EleutherAI/hendrycks_math", configs=SUBJECTS, rows=5000),
    "math500": Source(file="math/math500_test.jsonl", hub="HuggingFaceH4/MATH-500", rows=500),
}
ASK = r"Reason step by step, and put the final answer within \boxed{}."


def tasks(name: str) -> dict[str, Task]:
    """Return the problems under both protocols."""
    return {
        "paper": _task(name, "paper", _ask, _score),
        "released": _task(name, "released", _ask_released, _score_released),
    }


def _task(
    name: str,
    protocol: str,
    ask: Callable[[str], list[Message]],
    score: Callable[[Sequence[Sample], Sequence[str]], list[Verdict]],
) -> Task:
    make = partial(_sample, name, ask)
    return Task(
        name=name,
        protocol=protocol,
        version=VERSION,
        load=partial(load_samples, SOURCES[name], make),
        score=score,
    )


def _ask(problem: str) -> list[Message]:
    return [{"role": "user", "content": f"{problem}\n\n{ASK}"}]


def _ask_released(problem: str) -> list[Message]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem}]


def _sample(name: str, ask: Callable[[str], list[Message]], place: int, row: Row) -> Sample:
    problem, solution = text_field(row, "problem"), text_field(row, "solution")
    answers = boxed(solution)
    if not answers:
        raise ValueError("the field 'solution' must hold a \\boxed answer")
    # copies of the set differ in order, so the id of a row is a hash of its problem
    key = sha256(problem.encode()).hexdigest()[:12]
    subject = row["type"] if "type" in row else row["subject"]
    meta = {"problem": problem, "subject": subject, "level": str(row["level"]), "solution": solution}
    return Sample(f"{name}/{key}", ask(problem), " ".join(answers[-1].split()), meta)


def final_answer(text: str) -> str | None:
    """Return the last box, else the words after "answer is", else the last line."""
    if boxes := boxed(text):
        return boxes[-1]
    for end in reversed(answer_ends(text)):
        if named := _bare(first_sentence(text, end)):
            return named
    lines = text.strip().splitlines()
    return _bare(lines[-1]) or None if lines else None


def _bare(answer: str) -> str:
    """Remove the dollar signs or brackets around an answer."""
    for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inner = answer.removeprefix(left).removesuffix(right)
        if len(inner) == len(answer) - len(left) - len(right) and left not in inner:
            return inner.strip()
    return answer.strip()


def _score(samples: Sequence[Sample], texts: Sequence[str]) -> list[Verdict]:
    return [
        Verdict(same, final_answer(text), {"released": exact})
        for text, same, exact in zip(texts, _verified(samples, texts), _matched(samples, texts), strict=True)
    ]


def _score_released(samples: Sequence[Sample], texts: Sequence[str]) -> list[Verdict]:
    return [
        Verdict(exact, ", ".join(released_answers(text)) or None, {"math_verify": same})
        for text, same, exact in zip(texts, _verified(samples, texts), _matched(samples, texts), strict=True)
    ]


def _verified(samples: Sequence[Sample], texts: Sequence[str]) -> list[bool]:
    answers = [final_answer(text) for text in texts]
    pairs = [(sample.gold, answer or "") for sample, answer in zip(samples, answers, strict=True)]
    return equivalent(pairs)


def _matched(samples: Sequence[Sample], texts: Sequence[str]) -> list[bool]:
    return [
        released_match(sample.meta["problem"], sample.gold, text)
        for sample, text in zip(samples, texts, strict=True)
    ]
