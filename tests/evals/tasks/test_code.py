"""Judging programs: what MBPP's and HumanEval's own scoring would get wrong."""

from __future__ import annotations

import pytest

from tests.evals.rows import load_rows
from unmask.evals import Sample, get_task

PROTOCOLS = ("paper", "released")
RIGHT, BUG = "```python\ndef f(x):\n    return x + 1\n```", "```python\ndef f(x):\n    return x\n```"
HUMANEVAL = Sample(
    "HumanEval/x",
    [],
    None,
    {
        "prompt": 'def twice(x: int) -> int:\n    """Two times x."""\n',
        "entry_point": "twice",
        "test": "def check(candidate):\n    assert candidate(4) == 8\n",
    },
)


def mbpp(tests: list[str], setup: list[str]) -> Sample:
    return Sample("mbpp/x", [], None, {"tests": tests, "setup": setup})


def passes(name: str, protocol: str, sample: Sample, text: str) -> bool:
    [verdict] = get_task(name, protocol).score([sample], [text])
    return verdict.correct


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_assert_with_a_message_can_fail(protocol):
    sample = mbpp(["assert f(1) == 2, 'one more'"], [])
    assert passes("mbpp", protocol, sample, RIGHT)
    assert not passes("mbpp", protocol, sample, BUG)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_imports_and_the_set_up_of_the_tests_are_there(protocol):
    sample = mbpp(["assert math.isclose(f(start), 2)"], ["import math", "start = 1"])
    assert passes("mbpp", protocol, sample, RIGHT)
    assert not passes("mbpp", protocol, sample, BUG)


def test_prose_around_an_unfenced_program_is_no_syntax_error_but_as_released():
    sample, text = mbpp(["assert f(1) == 2"], []), "Here it is.\ndef f(x):\n    return x + 1\nIt's done."
    assert passes("mbpp", "paper", sample, text)
    assert not passes("mbpp", "released", sample, text)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_bare_body_keeps_its_indentation(protocol):
    for text in ("    return 2 * x", "```python\n    return 2 * x\n```", "```\n    return 2 * x"):
        assert passes("humaneval", protocol, HUMANEVAL, text)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("text", ["    return x", "def twice(x):\n    return 8 + x", "", "I don't know."])
def test_wrong_programs_fail(protocol, text):
    assert not passes("humaneval", protocol, HUMANEVAL, text)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_leaving_early_is_not_passing(name, protocol):
    sample = HUMANEVAL if name == "humaneval" else mbpp(["assert f(1) == 2"], [])
    text = "```python\nimport sys\nsys.exit(0)\ndef twice(x):\n    return 0\ndef f(x):\n    return 0\n```"
    assert not passes(name, protocol, sample, text)


def test_the_prompts_of_both_protocols():
    asked = {protocol: load_rows("mbpp", protocol)[0].prompt for protocol in PROTOCOLS}
    assert "```python\nassert remove_Occ" in asked["paper"][0]["content"]
    assert "['assert remove_Occ" in asked["released"][0]["content"]
    assert asked["released"][0]["content"].endswith("[BEGIN]\n")
    system = load_rows("humaneval", "released")[0].prompt[0]
    assert system == {"role": "system", "content": "You complete only Python code."}
