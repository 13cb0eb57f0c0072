"""Reading answers from texts, trap by trap."""

from __future__ import annotations

import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.evals.answers.boxed import boxed
from unmask.evals.answers.equivalence import equivalent
from unmask.evals.answers.latex import released_answers, released_match
from unmask.evals.answers.letter import final_letter
from unmask.evals.answers.number import final_number, released_number
from unmask.evals.answers.program import compiles, complete, defines, find_code
from unmask.evals.tasks import hellaswag, mmlu, winogrande
from unmask.evals.tasks.math import final_answer

whole_numbers = st.integers(-(10**9), 10**9)
START = 'def area(side):\n    """The area of a square."""\n'


@pytest.mark.parametrize("read", [final_number, released_number])
@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"\boxed{1,000}", "1000"),
        (r"The final answer is \boxed{1{,}000}", "1000"),
        ("The final answer is $1,234.50.", "1234.5"),
        ("The final answer is 72.0", "72"),
        ("The final answer is 72.", "72"),
        ("The final answer is -10.", "-10"),
        ("The final answer is -$10.", "-10"),
        ("The final answer is \N{MINUS SIGN}3", "-3"),
        ("The final answer is 50%", "50"),
        ("The final answer is 18 dollars per 2 days", "18"),
        ("The final answer is .5", "0.5"),
        (r"The answer is $\boxed{18 \text{ dollars}}$", "18"),
        ("10-4 is what we want", "4"),
        ("It holds 1, 2 and 100", "100"),
        ("The answer is 5. No, wait: the answer is 6.", "6"),
        ("no number at all", None),
        ("", None),
    ],
)
def test_a_number_is_read_with_its_sign_and_without_its_dress(read, text, number):
    assert read(text) == number


@pytest.mark.parametrize(
    ("text", "number", "as_released"),
    [
        (r"\boxed{5+3=8}", "8", "5"),
        (r"First \boxed{3}, finally \boxed{8}", "8", "3"),
        ("**Answer:** 12, from 3 boxes", "12", "3"),
        ("We get 12. The final answer is", "12", None),
        ("#### 12 (3 boxes)", "12", "3"),
    ],
)
def test_where_the_released_reading_of_a_number_is_another(text, number, as_released):
    assert (final_number(text), released_number(text)) == (number, as_released)


@given(whole_numbers, st.sampled_from(["{}", "{:,}", "{:,}.00"]), st.text("ab .\n", max_size=9))
def test_any_whole_number_comes_back_from_any_dress(number, form, before):
    said = form.format(number)
    for text in (f"{before} The final answer is {said}.", f"{before} \\boxed{{{said}}}"):
        assert final_number(text) == released_number(text) == str(number)


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        (r"\boxed{\frac{1}{2}}", [r"\frac{1}{2}"]),
        (r"\boxed 5 and \fbox{6}", ["5", "6"]),
        (r"\boxed{\{1, 2\}}", [r"\{1, 2\}"]),
        (r"\boxed{1} \boxed{\boxed{2}}", ["1", r"\boxed{2}", "2"]),
        (r"\boxed{12", []),
        ("12", []),
    ],
)
def test_boxes_are_read_with_their_braces(text, contents):
    assert boxed(text) == contents


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is (B)", "B"),
        ("The answer is b.", "B"),
        ("the answer is a", "A"),
        ("The answer is a dog, which is option C.", "C"),
        ("A man walks. The answer is D", "D"),
        ("A man walks over a bridge.", None),
        ("A is right because of that.", "A"),
        ("B because it's longer", "B"),
        ("C", "C"),
        ("- D) four", "D"),
        (r"\boxed{\textbf{(C)}}", "C"),
        ("Answer: **A**", "A"),
        ("I weighed (A) against (D), and (D) is better", "D"),
        ("It must be that one.\n\nB", "B"),
        ("Both are bad", None),
        ("Definitely", None),
        ("E", None),
        ("C'est la vie", None),
        ("", None),
    ],
)
def test_a_letter_is_no_article_and_no_part_of_a_word(text, letter):
    assert final_letter(text, "ABCD") == letter


def test_only_the_letters_of_the_options_count():
    assert final_letter("The answer is C", "AB") is None


@pytest.mark.parametrize(
    ("read", "text", "letter"),
    [
        (mmlu.released_letter, " (b).\nNext", "B"),
        (mmlu.released_letter, "B. Paris", None),
        (mmlu.released_letter, "\nB", None),
        (hellaswag.released_letter, " : C then", "C"),
        (hellaswag.released_letter, "A man walks", "A"),
        (hellaswag.released_letter, "The answer is C", None),
        (winogrande.released_letter, "- b\nA", "B"),
        (winogrande.released_letter, "</s>A", None),
    ],
)
def test_released_letters_are_read_at_the_beginning_of_the_first_line(read, text, letter):
    assert read(text) == letter


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{3}, no, \boxed{4}", "4"),
        ("The final answer is $x^2$. It is even.", "x^2"),
        (r"The answer is: \(\frac{1}{2}\).", r"\frac{1}{2}"),
        ("The answer is 0.5", "0.5"),
        ("We are left with\n$2x$", "2x"),
        ("", None),
    ],
)
def test_a_formula_is_read_from_its_box_or_its_phrase(text, answer):
    assert final_answer(text) == answer


def test_equivalent_formulas_in_other_spellings_count_and_others_do_not():
    same = [
        (r"\frac{1}{2}", "0.5"),
        (r"\frac \pi4", r"\dfrac{\pi}{4}"),
        (r"\text{Monday}", r"\text{ Monday }"),
        (r"(x+1)(x-1)", "x^2 - 1"),
        ("1000", "1,000"),
        ("10\\%", "10"),
        ("12_6", "12"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
        ("5", "x = 5"),
    ]
    other = [("5", "6"), ("12_6", "12_7"), ("(1, 2)", "(2, 1)"), ("x+1", "x-1"), ("5", "")]
    assert equivalent(same) == [True] * len(same)
    assert equivalent(other) == [False] * len(other)


def test_without_its_library_a_comparison_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ValueError, match=r"needs the package math-verify; pip install 'unmask\[eval\]'"):
        equivalent([("1", "2")])


def test_a_pair_without_a_verdict_in_time_is_not_equivalent_and_holds_nothing_up(monkeypatch):
    monkeypatch.setattr("unmask.evals.answers.equivalence.PAIR_SECONDS", 0.0)
    assert equivalent([("6", r"2 \cdot 3"), ("6", "6")]) == [False, True]


@pytest.mark.slow
def test_equivalence_works_in_a_thread_and_outlives_a_number_beyond_all_memory():
    pairs = [("8", "9^{9^{9^{9}}}"), ("6", "2 \\cdot 3"), ("6", "2 \\cdot 4")]
    verdicts: list[bool] = []
    thread = threading.Thread(target=lambda: verdicts.extend(equivalent(pairs)))
    thread.start()
    thread.join()
    assert verdicts == [False, True, False]


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        (r"\frac{1}{2}", r"\boxed{\dfrac12}"),
        (r"\frac{1}{2}", r"\boxed{1/2}"),
        (r"\frac{1}{2}", r"\boxed{.5}"),
        (r"-\frac{1}{4}", r"\boxed{-0.250}"),
        (r"\sqrt{3}", r"\boxed{\sqrt3}"),
        ("90^\\circ", r"\boxed{90 \text{ degrees}}"),
        ("12", r"\boxed{12\text{ cm}^2}"),
        ("50\\%", r"\boxed{50}"),
        ("5", r"\boxed{x = 5}"),
        ("1000", r"\boxed{1,000}"),
        (r"\left( 1, 2 \right)", r"\boxed{(1,2)}"),
        (r"\text{Monday}", "The answer is Monday."),
        ("3", "The answer is 2 or 3. Or so."),
        ("3", "so we end with 3"),
        ("3", r"\boxed{2} or \boxed{3}"),
    ],
)
def test_the_released_match_sees_through_spellings(gold, text):
    assert released_match("What is it?", gold, text)


def test_the_released_match_takes_lists_in_any_order_only_where_the_question_says_so():
    assert released_match("Give all, separated by commas.", "1, 2", r"\boxed{2,1}")
    assert not released_match("Give the point.", "1, 2", r"\boxed{2,1}")
    assert not released_match("What is it?", "3", "The answer is 4")
    assert not released_match("What is it?", "3", "")
    assert released_answers("") == []


@pytest.mark.parametrize(
    "text",
    [
        "    return side * side",
        "return side * side",
        "side = 1 * side\nreturn side * side",
        "result = side * side\n    return result",
        "\treturn side * side",
        "    return side * side\n\nThat's the area.",
        "\n\n    return side * side\n\n\nprint(area(3))",
    ],
)
def test_a_body_completes_its_function_whatever_became_of_its_indentation(text):
    program = complete(START, text)
    names: dict = {"print": lambda *given: None}
    exec(program, names)
    assert names["area"](3) == 9


def test_a_body_that_is_no_python_leaves_an_empty_function():
    assert complete(START, "I cannot do that, it's hard") == START


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\ndef f():\n    pass\n```", "def f():\n    pass\n"),
        ("```py\nx = 1\n```\nthen\n```\ndef f():\n    pass\n```", "def f():\n    pass\n"),
        ("```python\ndef f():\n    pass", "def f():\n    pass"),
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("- so:\n  ```python\n  def f():\n      pass\n  ```", "def f():\n    pass\n"),
        ("It's so:\nimport math\ndef f():\n\tpass\nIt's done", "import math\ndef f():\n\tpass\n"),
        ("LIMIT = 5\ndef f():\n    pass", "LIMIT = 5\ndef f():\n    pass\n"),
        ("n = 5 it's said.\ndef f():\n    pass", "def f():\n    pass\n"),
        ("f = lambda: 1", "f = lambda: 1\n"),
        ("just words", "just words"),
    ],
)
def test_code_is_found_between_fences_and_prose(text, code):
    assert find_code(text, "f") == code


@given(st.text("df ef(:)\n`\t python=x'", max_size=60))
def test_no_text_upsets_the_search_for_code(text):
    code = find_code(text, "f")
    assert code in text + "\n" or defines(code, "f")
    assert compiles(complete(START, code))
