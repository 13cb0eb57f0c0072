"""Gold answers score 100 %, wrong ones 0 %: a part of every set, and with `-m slow` every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

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
every_size = pytest.mark.parametrize("whole", SIZES)


def rows(name: str, protocol: str, folder: Path, whole: bool, some: int) -> Sequence[Sample]:
    samples = get_task(name, protocol).load(folder)
    return samples if whole else samples[:: max(1, len(samples) // some)]


def right(name: str, protocol: str, samples: Sequence[Sample], texts: Sequence[str]) -> list[str]:
    verdicts = get_task(name, protocol).score(samples, texts)
    return [sample.id for sample, verdict in zip(samples, verdicts, strict=True) if verdict.correct]


def wrong(name: str, protocol: str, samples: Sequence[Sample], texts: Sequence[str]) -> list[str]:
    return sorted({sample.id for sample in samples} - set(right(name, protocol, samples, texts)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ROWS)
def test_a_set_has_all_its_rows_and_each_a_name_of_its_own(name, protocol, folder):
    samples = get_task(name, protocol).load(folder)
    assert len(samples) == len({sample.id for sample in samples}) == ROWS[name]
    assert all(sample.id.lower().startswith(f"{name}/") for sample in samples)


@every_size
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("phrasing", phrasings.NUMBERS)
def test_a_number_scores_in_every_phrasing_and_its_neighbour_in_none(phrasing, protocol, folder, whole):
    samples, say = rows("gsm8k", protocol, folder, whole, 300), phrasings.NUMBERS[phrasing]
    assert wrong("gsm8k", protocol, samples, [say(sample.gold) for sample in samples]) == []
    assert right("gsm8k", protocol, samples, [say(str(int(sample.gold) + 1)) for sample in samples]) == []


@every_size
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["math", "math500"])
def test_a_formula_scores_in_every_phrasing(name, protocol, folder, whole):
    samples = rows(name, protocol, folder, whole, 100)
    for say in phrasings.FORMULAS.values():
        verdicts = get_task(name, protocol).score(samples, [say(sample.gold) for sample in samples])
        assert all(verdict.correct and all(verdict.also.values()) for verdict in verdicts)


@every_size
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["math", "math500"])
def test_a_formula_scores_in_another_spelling_and_not_with_another_number(name, protocol, folder, whole):
    samples = rows(name, protocol, folder, whole, 60)
    spelt = [sample.gold.replace(r"\frac", r"\dfrac").replace("(", r"\left( ") for sample in samples]
    spelt = [text.replace(")", r" \right)").replace(r"\left\left", r"\left") for text in spelt]
    spelt = [text.replace(r"\right \right", r"\right") for text in spelt]
    assert wrong(name, protocol, samples, [f"\\boxed{{{text}}}" for text in spelt]) == []
    others = [f"\\boxed{{{phrasings.next_formula(sample.gold)}}}" for sample in samples]
    assert set(right(name, protocol, samples, others)) <= INDISTINCT


@every_size
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_canonical_function_passes_however_it_is_given_and_an_empty_one_never(protocol, folder, whole):
    samples = rows("humaneval", protocol, folder, whole, 20)
    says = phrasings.FUNCTIONS if protocol == "paper" else phrasings.FUNCTIONS_RELEASED
    for say in says.values():
        assert wrong("humaneval", protocol, samples, [say(sample) for sample in samples]) == []
    assert right("humaneval", protocol, samples, [phrasings.empty_body(sample) for sample in samples]) == []


@every_size
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["mbpp", "mbpp-sanitized"])
def test_a_reference_program_passes_however_it_is_given_and_an_empty_one_never(name, protocol, folder, whole):
    samples = rows(name, protocol, folder, whole, 20)
    says = phrasings.PROGRAMS if protocol == "paper" else phrasings.PROGRAMS_RELEASED
    for say in says.values():
        assert wrong(name, protocol, samples, [say(sample) for sample in samples]) == []
    assert right(name, protocol, samples, [phrasings.empty_program(sample) for sample in samples]) == []


@every_size
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["mmlu", "hellaswag", "winogrande"])
def test_a_letter_scores_in_every_phrasing_and_the_next_letter_in_none(name, protocol, folder, whole):
    samples = rows(name, protocol, folder, whole, 300)
    says: Mapping = phrasings.LETTERS if protocol == "paper" else phrasings.LETTERS_RELEASED
    for say in says.values():
        texts, others = [], []
        for sample in samples:
            options, other = phrasings.option_texts(sample), phrasings.next_letter(sample)
            texts.append(say(sample.gold, options["ABCD".index(sample.gold)]))
            others.append(say(other, options["ABCD".index(other)]))
        assert wrong(name, protocol, samples, texts) == []
        assert right(name, protocol, samples, others) == []
