"""Gold answers score 100 %, wrong ones 0 %: a few rows of every set, and the whole sets where these are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.evals.rows import COUNTS, FOLDER, load_rows
from tests.evals.tasks import phrasings
from unmask.evals import Sample, get_task

ROWS = {
    "gsm8k": 1319,
    "math": 5000,
    "math500": 500,
    "humaneval": 164,
    "mbpp": 500,
    "mbpp-sanitized": 257,
    "mmlu": 14042,
    "hellaswag": 10042,
    "winogrande": 1267,
}
PROTOCOLS = ("paper", "released")
# units are not compared, and math-verify sees six decimals: docs/evaluation.md
INDISTINCT = {"math/bbed8a0c6005"}
SIZES = [pytest.param(False, id="some"), pytest.param(True, id="all", marks=pytest.mark.slow)]


Texts = tuple[list[str], list[str]]  # that score, and that do not


def numbers(protocol: str, sample: Sample) -> Texts:
    """A number scores in every phrasing, and its neighbour in none."""
    says, other = phrasings.NUMBERS.values(), str(int(sample.gold) + 1)
    return [say(sample.gold) for say in says], [say(other) for say in says]


def formulas(protocol: str, sample: Sample) -> Texts:
    """A formula scores in every phrasing and in another spelling, but not with another number."""
    spelt = sample.gold.replace(r"\frac", r"\dfrac").replace("(", r"\left( ").replace(")", r" \right)")
    spelt = spelt.replace(r"\left\left", r"\left").replace(r"\right \right", r"\right")
    texts = [say(sample.gold) for say in phrasings.FORMULAS.values()]
    other = [] if sample.id in INDISTINCT else [f"\\boxed{{{phrasings.next_formula(sample.gold)}}}"]
    return [*texts, f"\\boxed{{{spelt}}}"], other


def functions(protocol: str, sample: Sample) -> Texts:
    """A canonical function passes however it is given, and an empty one never."""
    says = phrasings.FUNCTIONS if protocol == "paper" else phrasings.FUNCTIONS_RELEASED
    return [say(sample) for say in says.values()], [phrasings.empty_body(sample)]


def programs(protocol: str, sample: Sample) -> Texts:
    """A reference program passes however it is given, and an empty one never."""
    says = phrasings.PROGRAMS if protocol == "paper" else phrasings.PROGRAMS_RELEASED
    return [say(sample) for say in says.values()], [phrasings.empty_program(sample)]


def letters(protocol: str, sample: Sample) -> Texts:
    """A letter scores in every phrasing, and the next letter in none."""
    says = (phrasings.LETTERS if protocol == "paper" else phrasings.LETTERS_RELEASED).values()
    options, other = phrasings.option_texts(sample), phrasings.next_letter(sample)
    texts = [say(sample.gold, options["ABCD".index(sample.gold)]) for say in says]
    return texts, [say(other, options["ABCD".index(other)]) for say in says]


CHECKS: dict[str, tuple[Callable[[str, Sample], Texts], int]] = {  # and the size of a part of the whole set
    "gsm8k": (numbers, 50),
    "math": (formulas, 20),
    "math500": (formulas, 20),
    "humaneval": (functions, 8),
    "mbpp": (programs, 8),
    "mbpp-sanitized": (programs, 12),
    "mmlu": (letters, 50),
    "hellaswag": (letters, 50),
    "winogrande": (letters, 50),
}


def check(name: str, protocol: str, samples: Sequence[Sample]) -> None:
    """Judge all texts at once, and compare."""
    makes, task = CHECKS[name][0], get_task(name, protocol)
    rows = []
    for sample in samples:
        right, wrong = makes(protocol, sample)
        rows += [(sample, text, True) for text in right] + [(sample, text, False) for text in wrong]
    verdicts = task.score([sample for sample, _, _ in rows], [text for _, text, _ in rows])
    pairs = list(zip(rows, verdicts, strict=True))
    assert [row for row, verdict in pairs if verdict.correct != row[2]] == []
    if makes is formulas:  # both ways to compare formulas agree on these
        assert [row for row, verdict in pairs if row[2] and not all(verdict.also.values())] == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", CHECKS)
def test_gold_answers_score_and_wrong_ones_do_not(name, protocol):
    check(name, protocol, load_rows(name, protocol))


def test_a_part_of_a_set_is_loaded_only_where_a_test_says_so():
    assert COUNTS.keys() == ROWS.keys()
    with pytest.raises(ValueError, match="has 3 rows for this benchmark, expected 1319"):
        get_task("gsm8k").load(FOLDER)


def test_the_whole_sets_have_all_their_rows_and_each_a_name_of_its_own(whole_sets):
    for name, count in ROWS.items():
        for protocol in PROTOCOLS:
            samples = get_task(name, protocol).load(whole_sets)
            assert len(samples) == len({sample.id for sample in samples}) == count
            assert all(sample.id.lower().startswith(f"{name}/") for sample in samples)


@pytest.mark.parametrize("every_row", SIZES)
def test_gold_answers_of_the_whole_sets_score_and_wrong_ones_do_not(every_row, whole_sets: Path):
    for name, (_, some) in CHECKS.items():
        for protocol in PROTOCOLS:
            samples = get_task(name, protocol).load(whole_sets)
            check(name, protocol, samples if every_row else samples[:: max(1, len(samples) // some)])
