"""The seven tasks: fixed by their seed, split by problem, scored as the benchmarks are, and not guessable."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.raises import raises_field
from unmask.training import tasks
from unmask.training.tasks import SHARES, TASKS, TEST_TASKS, draw_test, draw_train, draw_training, is_test
from unmask.training.tasks.algebra import equations
from unmask.training.tasks.code.bodies import body
from unmask.training.tasks.code.pipeline import draw_pipeline
from unmask.training.tasks.files import ITEMS_PER_TASK, drawn_items
from unmask.training.tasks.mini_math import last_boxed, value_of
from unmask.training.tasks.options import letter_of
from unmask.training.tasks.phrases import one
from unmask.training.tasks.stories import rates
from unmask.training.tasks.stories.story import Story, worked

CHOICE = ("mini-mmlu", "mini-hellaswag", "mini-winogrande")
CODE = ("mini-humaneval", "mini-mbpp")
NUMERIC = ("mini-gsm8k", "mini-math")
PAPER_PROMPTS = {
    "mini-math": ("What is the sum of the first 100 natural numbers?",),
    "mini-humaneval": (
        "Write a Python program to reverse a string.",
        "Write a python program to calculate the Fibonacci of a given number.",
        "Write a Python program to calculate the factorial of a given number.",
    ),
}


def drawn(name: str, count: int, seed: int = 0) -> list[tasks.Item]:
    rng = random.Random(seed)
    return [draw_train(TASKS[name], rng) for _ in range(count)]


def correct(items: list[tasks.Item], texts: list[str]) -> float:
    """Share of the texts that score."""
    scored = TASKS[items[0].task].score_many(items, texts)
    return sum(verdict.correct for verdict in scored) / len(items)


# --- drawing


@pytest.mark.parametrize("name", TASKS)
def test_the_same_seed_draws_the_same_items_and_another_seed_others(name):
    assert drawn(name, 50, seed=3) == drawn(name, 50, seed=3)
    assert drawn(name, 50, seed=3) != drawn(name, 50, seed=4)


def test_draws_do_not_depend_on_the_hash_seed_of_the_process():
    program = (
        "import random; from unmask.training.tasks import draw_training; rng = random.Random(5);"
        "print(''.join(draw_training(rng).prompt for _ in range(300)), end='')"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rng = random.Random(5)
    assert elsewhere == "".join(draw_training(rng).prompt for _ in range(300))


@pytest.mark.parametrize("name", TEST_TASKS)
def test_training_draws_give_no_test_problem(name):
    assert not any(is_test(item.key) for item in drawn(name, 1500))


@pytest.mark.parametrize("name", TEST_TASKS)
def test_test_draws_give_no_training_problem_and_the_shipped_items_are_none(name):
    rng = random.Random(1)
    assert all(is_test(draw_test(TASKS[name], rng).key) for _ in range(20))
    shipped = tasks.test_items(name)
    assert all(is_test(item.key) for item in shipped)
    training = drawn(name, 1500)
    assert not {item.key for item in shipped} & {item.key for item in training}
    assert not {item.prompt for item in shipped} & {item.prompt for item in training}


@pytest.mark.parametrize("name", TEST_TASKS)
def test_the_shipped_items_are_what_the_generator_draws_no_problem_twice(name):
    shipped = tasks.test_items(name)
    assert shipped == drawn_items(TASKS[name])
    assert len({item.key for item in shipped}) == len(shipped) == ITEMS_PER_TASK


def test_the_training_mix_follows_its_shares():
    rng = random.Random(0)
    counts = Counter(draw_training(rng).task for _ in range(4000))
    for name, share in SHARES.items():
        assert counts[name] / 4000 == pytest.approx(share / sum(SHARES.values()), abs=0.03)
    assert {draw_training(rng, {"about": 1.0}).task for _ in range(20)} == {"about"}


@pytest.mark.parametrize(
    ("name", "prompt"), [(name, prompt) for name, prompts in PAPER_PROMPTS.items() for prompt in prompts]
)
def test_the_prompts_of_the_paper_are_drawn_in_training(name, prompt):
    rng = random.Random(0)
    assert any(draw_train(TASKS[name], rng).prompt == prompt for _ in range(10_000))


def test_the_equation_of_the_paper_is_a_training_problem():
    rng, shape = random.Random(0), re.compile(r"Solve the equation: \dx \+ \d = \d\d\.")
    assert any(shape.fullmatch(equations.linear(rng).question) for _ in range(2000))
    assert not is_test("linear 3 5 20")
    assert any(equations.linear(rng).key == "linear 3 5 20" for _ in range(40_000))


def test_one_problem_has_many_valid_answers():
    rng, story = random.Random(0), Story()
    rates.work(rng, story)
    assert len({worked(rng, story, calculation_only=False) for _ in range(200)}) > 50
    assert len({worked(rng, story, calculation_only=True) for _ in range(200)}) > 1
    pipeline, _ = draw_pipeline(rng, 3, 3, guard_share=1)
    assert len({body(rng, pipeline, "value") for _ in range(200)}) > 30
    answers: dict[str, set[str]] = {}
    for item in drawn("mini-math", 6000):
        answers.setdefault(item.prompt, set()).add(item.answer)
    assert max(map(len, answers.values())) > 5


def test_an_unknown_task_is_named_with_a_suggestion():
    with raises_field("task", "mini-maths", "did you mean 'mini-math'?"):
        tasks.get_task("mini-maths")
    with raises_field("task", "about"):
        tasks.test_items("about")


def test_tasks_need_nothing_but_the_standard_library():
    for path in Path(tasks.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            outside = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
            assert outside <= {"unmask"}, f"{path.name} imports {outside}"


# --- gold answers score


@pytest.mark.parametrize(
    "every", [pytest.param(10, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", TEST_TASKS)
def test_shipped_gold_answers_score(name, every):
    items = tasks.test_items(name)[:: every if name in CODE else 1]  # each program starts two processes
    verdicts = TASKS[name].score_many(items, [item.answer for item in items])
    assert [item.answer for item, verdict in zip(items, verdicts, strict=True) if not verdict.correct] == []


@pytest.mark.parametrize("name", SHARES)
def test_gold_answers_of_training_draws_score(name):
    items = drawn(name, 40 if name in CODE else 1000, seed=9)
    verdicts = TASKS[name].score_many(items, [item.answer for item in items])
    assert [item.answer for item, verdict in zip(items, verdicts, strict=True) if not verdict.correct] == []


# --- wrong answers do not


@pytest.mark.parametrize("name", NUMERIC)
def test_another_number_does_not_score(name):
    for item in tasks.test_items(name):
        before, digits, after = re.match(r"(.*?)(\d+)(\D*)\Z", item.answer, re.DOTALL).groups()
        assert not TASKS[name].score(item, f"{before}{int(digits) + 1}{after}").correct
        assert not TASKS[name].score(item, "").correct


@pytest.mark.parametrize("name", CHOICE)
def test_another_letter_does_not_score(name):
    for item in tasks.test_items(name):
        letter = item.meta["letter"]
        other = "BA"["AB".index(letter)] if letter in "AB" else "A"
        assert not TASKS[name].score(item, f"So the answer is {other}.").correct
        assert not TASKS[name].score(item, "The heron lives near the river.").correct


@pytest.mark.parametrize("name", CODE)
def test_damaged_programs_do_not_score(name):
    items = tasks.test_items(name)[:40]
    assert correct(items, [item.answer.replace("return", "retrun") for item in items]) == 0
    assert (
        correct(items, [item.answer.rsplit("\n", 1)[0] if "\n" in item.answer else "" for item in items]) == 0
    )
    other = [items[place - 1].answer for place in range(len(items))]
    assert correct(items, other) < 0.03
    changed = [(item, changed_digit(item.answer)) for item in items if re.search(r"\d", item.answer)]
    assert correct([item for item, _ in changed], [text for _, text in changed]) < 0.15


def changed_digit(text: str) -> str:
    last = [match.start() for match in re.finditer(r"\d", text)][-1]
    return f"{text[:last]}{(int(text[last]) + 1) % 10}{text[last + 1 :]}"


HARMFUL = {
    "never ends": "    while True:\n        pass",
    "eats memory": "    return [0] * 10 ** 10",
    "leaves early": "    import os\n    os._exit(0)",
    "writes a file": "    with open('file', 'w') as file:\n        file.write('x')",
    "writes to the verdict": "    print('[true]')",
    "kills its parent's children": "    raise SystemExit",
    "recurses": "    return solve(solve)",
}


def test_harmful_programs_fail_alone_and_do_not_disturb_their_neighbours():
    good = next(item for item in tasks.test_items("mini-humaneval") if item.meta["completes"])
    items, texts = [good], [good.answer]
    for harm in HARMFUL.values():
        items += [good, good]
        texts += [harm, good.answer]
    verdicts = TASKS["mini-humaneval"].score_many(items, texts)
    assert [verdict.correct for verdict in verdicts] == [True, *([False, True] * len(HARMFUL))]


# --- extraction


@pytest.mark.parametrize(
    ("text", "extracted"),
    [
        ("3 + 4 = 7\nThe final answer is 7.", "7"),
        ("#### 42", "42"),
        ("The answer is 5. No, the answer is 6.", "6"),
        ("seven", None),
    ],
)
def test_the_number_after_the_answer_words_counts(text, extracted):
    assert TASKS["mini-gsm8k"].score(tasks.test_items("mini-gsm8k")[0], text).extracted == extracted


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("5", "5"),
        ("x = 5", "5"),
        (r"\frac{10}{4}", "5/2"),
        (r"-\frac{1}{2}", "-1/2"),
        ("2.5", "5/2"),
        ("5/2", "5/2"),
    ],
)
def test_boxed_expressions_are_compared_by_value(expression, value):
    assert value_of(expression) == value_of(value)
    assert last_boxed(rf"\boxed{{0}} and \boxed{{{expression}}}.") == expression


@pytest.mark.parametrize(
    "text", [r"\boxed{}", r"\boxed{5", r"\boxed{1/0}", r"\boxed{x}", r"\boxed{__import__}"]
)
def test_a_broken_box_is_no_answer(text):
    assert not TASKS["mini-math"].score(tasks.test_items("mini-math")[0], text).correct


@pytest.mark.parametrize(
    ("text", "extracted"),
    [
        ("C", "C"),
        ("trout", "B"),
        ("Answer: B", "B"),
        ("Answer: wolf", "D"),
        ("The heron swims.\nThus the answer is wolf.", "D"),
        ("The answer is trout. So the answer is heron.", "A"),
        ("The answer is (C).", "C"),
        ("The answer is goose.", None),
        ("A dog barks.", None),
        ("", None),
    ],
)
def test_the_option_that_is_called_the_answer_counts(text, extracted):
    assert letter_of(text, ["heron", "trout", "bear", "wolf"]) == extracted


# --- not solvable from the surface of the question


@pytest.mark.parametrize("name", NUMERIC)
def test_no_number_of_the_question_and_no_frequent_number_is_the_answer(name):
    items = drawn(name, 2000, seed=2)
    values = [str(item.meta["value"]) for item in items]
    numbers = [re.findall(r"\d+", item.prompt) for item in items]
    shares = {
        "most frequent": Counter(values).most_common(1)[0][1] / len(items),
        "first": sum(n[0] == v for n, v in zip(numbers, values, strict=True)) / len(items),
        "last": sum(n[-1] == v for n, v in zip(numbers, values, strict=True)) / len(items),
        "largest": sum(max(n, key=int) == v for n, v in zip(numbers, values, strict=True)) / len(items),
        "sum of all": sum(str(sum(map(int, n))) == v for n, v in zip(numbers, values, strict=True))
        / len(items),
    }
    assert max(shares.values()) < 0.12, shares


def options_of(item: tasks.Item) -> list[str]:
    return re.findall(r"^[A-D]\. (.*)$", item.prompt, re.MULTILINE)


def overlap(question: str, option: str) -> int:
    return len(set(question.lower().split()) & set(option.lower().split()))


@pytest.mark.parametrize("name", CHOICE)
def test_no_cheap_rule_chooses_the_right_option(name):
    items = drawn(name, 2000, seed=2)
    rng = random.Random(0)
    rules = {
        "first": lambda question, options: options[0],
        "last": lambda question, options: options[-1],
        "longest": lambda question, options: max(options, key=len),
        "shortest": lambda question, options: min(options, key=len),
        "most words of the question": lambda question, options: max(
            options, key=lambda o: overlap(question, o)
        ),
        "fewest words of the question": lambda question, options: min(
            options, key=lambda o: overlap(question, o)
        ),
        "named first": lambda question, options: min(options, key=question.find),
        "named last": lambda question, options: max(options, key=question.find),
        "any": lambda question, options: one(rng, options),
    }
    chance = sum(1 / len(options_of(item)) for item in items) / len(items)
    for rule, choose in rules.items():
        hits = 0
        for item in items:
            options = options_of(item)
            choice = choose(item.prompt.split("\nA. ")[0], options)
            hits += options["ABCD".index(item.meta["letter"])] == choice
        assert hits / len(items) < chance + 0.08, rule


@pytest.mark.parametrize("name", CODE)
def test_giving_the_argument_back_solves_no_program(name):
    items = tasks.test_items(name)[:100]
    same = [f"def {item.meta['entry'] or 'same'}(value):\n    return value" for item in items]
    assert correct(items, same) < 0.03
