"""The tasks where left to right is not enough: items have a right answer, and scorers take all of them."""

from __future__ import annotations

import hashlib
import random
from itertools import permutations, product
from pathlib import Path

import pytest
import torch

from unmask import training
from unmask.evals import get_task
from unmask.evals.batches import encode, make_batches
from unmask.evals.decode import decode_batch
from unmask.models.checkpoint.load import load
from unmask.models.text.tokens import Tokenizer
from unmask.samplers import SAMPLERS
from unmask.text.config import GenerationConfig
from unmask.training import tasks
from unmask.training.masking import Masking, corrupt
from unmask.training.tasks import (
    ORDER_TASKS,
    TASKS,
    TEST_TASKS,
    draw_train,
    draw_training,
    is_test,
    mini_countdown,
    mini_fim_prose,
    mini_report,
    mini_seating,
    mini_sudoku,
)
from unmask.training.tasks.files import FOLDER

# a change of an old task would change what the shipped models were trained and tested on
OLD_TEST_ITEMS = "c4e6c30482cb9f5a6c876c1dc0210121835e1f3f7351a41e7afb409ff883d3d7"
OLD_TRAINING_ITEMS = "fefb01aadb068ce0354e058dcbcbe68c563746682ae13b8a35d7432ef60a6eee"


def drawn(name: str, count: int, seed: int = 0) -> list[tasks.Item]:
    rng = random.Random(seed)
    return [draw_train(TASKS[name], rng) for _ in range(count)]


def right(item: tasks.Item, text: str) -> bool:
    return TASKS[item.task].score(item, text).correct


def test_the_seven_old_tasks_are_the_same_bit_for_bit():
    files = b"".join((FOLDER / f"{name}.jsonl").read_bytes() for name in TEST_TASKS)
    assert hashlib.sha256(files).hexdigest() == OLD_TEST_ITEMS
    rng = random.Random(0)
    items = "".join(repr(draw_training(rng)) for _ in range(500))
    assert hashlib.sha256(items.encode()).hexdigest() == OLD_TRAINING_ITEMS
    assert [get_task(name).version for name in TEST_TASKS] == [1] * 7


@pytest.mark.parametrize("name", ORDER_TASKS)
def test_test_items_are_fixed_and_no_set_shares_a_problem_with_another_or_with_training(name):
    sets = {protocol: get_task(name, protocol).load(None) for protocol in ("mini", "dev")}
    assert [len(samples) for samples in sets.values()] == [500, 150]
    keys = [sample.meta["key"] for samples in sets.values() for sample in samples]
    assert len(keys) == len(set(keys))
    assert all(map(is_test, keys))
    assert not any(is_test(item.key) for item in drawn(name, 200))


@pytest.mark.parametrize("name", ORDER_TASKS)
def test_the_drawn_answer_is_right_and_an_empty_or_foreign_one_is_wrong(name):
    items = drawn(name, 24)
    answers = [item.answer for item in items]
    scored = TASKS[name].score_many
    assert all(one.correct for one in scored(items, answers))
    assert not any(one.correct for one in scored(items, [""] * len(items)))
    others = scored(items, [*answers[1:], answers[0]])
    assert sum(one.correct for one in others) <= 1


def test_a_sudoku_accepts_every_solution_and_nothing_else():
    assert len(mini_sudoku.all_grids()) == 288
    several = 0
    for item in drawn("mini-sudoku", 60):
        found = mini_sudoku.solutions(item.meta["puzzle"])
        several += len(found) > 1
        assert found
        for grid in mini_sudoku.all_grids():
            assert right(item, mini_sudoku.lines(grid)) == (grid in found)
    assert several > 5


def test_countdown_targets_can_be_reached_and_only_steps_that_reach_them_count():
    for item in drawn("mini-countdown", 60):
        assert item.meta["target"] in set(mini_countdown.reachable(tuple(item.meta["numbers"])))
        wrong = str(item.meta["target"] + 1)
        assert not right(item, item.answer.rpartition("= ")[0] + f"= {wrong}")
    steps = tasks.Item("mini-countdown", "", "", "", {"numbers": [2, 3, 4], "target": 20, "steps": True})
    assert right(steps, "2 + 3 = 5\n5 * 4 = 20")
    assert right(steps, "3 + 2 = 5\n4 * 5 = 20")
    for text in ("4 * 5 = 20", "2 + 3 = 5\n5 * 4 = 21", "2 + 3 = 5", "2 + 3 = 5\n5 * 4 = 20\n20 - 3 = 17"):
        assert not right(steps, text)
    whole = tasks.Item("mini-countdown", "", "", "", {"numbers": [2, 3, 4], "target": 20, "steps": False})
    assert right(whole, "(2 + 3) * 4 = 20")
    assert right(whole, "4 * (3 + 2) = 20")
    for text in ("2 + 3 * 4 = 20", "(2 + 3) * 4 = 21", "4 * 5 = 20", "((2 + 3) * 4 = 20", "2 ** 3 + 4 = 20"):
        assert not right(whole, text)


def test_seating_accepts_every_order_that_meets_the_constraints():
    for item in drawn("mini-seating", 60):
        people, form = item.meta["people"], item.meta["form"]
        found = mini_seating.solutions(people, item.meta["constraints"])
        assert 1 <= len(found) <= mini_seating.MOST_SOLUTIONS
        for order in permutations(people):
            lines = [
                mini_seating.LINES[form].format(seat=seat, name=name) for seat, name in enumerate(order, 1)
            ]
            assert right(item, "\n".join(lines)) == (order in found)
            if form == "any":
                assert right(item, "\n".join(lines[::-1])) == (order in found)
        assert not right(item, "\n".join(lines[:-1]))
        assert not right(item, "\n".join([*lines, lines[0]]))


def test_recall_accepts_any_order_but_no_missing_double_or_other_pair():
    for item in drawn("mini-recall", 30):
        lines = item.answer.splitlines()
        assert right(item, "\n".join(lines[::-1]))
        assert not right(item, "\n".join(lines[:-1]))
        assert not right(item, "\n".join([*lines, lines[0]]))
        swapped = [f"{line.split(': ')[0]}: {lines[0].split(': ')[1]}" for line in lines]
        assert not right(item, "\n".join(swapped))


def test_prose_accepts_every_event_with_the_right_effect():
    for item in drawn("mini-fim-prose", 30):
        before, after = item.meta["around"]
        name, thing, change = (item.meta[field] for field in ("name", "thing", "change"))
        verbs = mini_fim_prose.GAINS + mini_fim_prose.LOSSES
        for start, verb, number in product(("", "Then "), verbs, (abs(change), abs(change) + 1)):
            effect = number if verb in mini_fim_prose.GAINS else -number
            text = f"{before} {start}{name} {verb} {number} {thing}.{after}"
            assert right(item, text) == (effect == change)
        assert not right(item, before + after)
        assert not right(item, item.answer.replace(thing, "cows"))


def test_code_must_keep_its_given_lines_and_pass_the_tests():
    items = drawn("mini-fim-code", 8)
    sides = [item.meta["around"] for item in items]
    assert all(
        item.answer.startswith(a) and item.answer.endswith(b)
        for item, (a, b) in zip(items, sides, strict=True)
    )
    rewritten = [f"{item.answer}\n# the end" for item in items]
    missing = [f"{before}    pass\n{after}" for before, after in sides]
    for texts in (rewritten, missing):
        assert not any(one.correct for one in TASKS["mini-fim-code"].score_many(items, texts))


def test_a_report_has_many_right_wordings_and_every_fact_counts():
    rng = random.Random(0)
    for item in drawn("mini-report", 20):
        people = item.meta["people"]
        others = {mini_report._written(rng, people) for _ in range(10)}
        assert len(others) == 10
        assert all(right(item, text) for text in others)
        sentences = item.answer.split(". ")
        assert not right(item, ". ".join([*sentences[:1], *sentences[2:]]))
        assert not right(item, item.answer.replace(people[0]["thing"], "kettle"))
        assert not right(item, item.answer.replace(str(people[0]["total"]), "99"))
        assert not right(item, item.answer.partition("\n\n")[2])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(Path(training.__file__).parent / "tokenizers" / "llada")


def test_answers_fit_their_canvas_and_reports_are_long(tokenizer):
    for name in ORDER_TASKS:
        items = drawn(name, 150)
        longest = max(map(len, tokenizer.encode_batch([item.answer for item in items])))
        assert longest < get_task(name).max_new_tokens
    lengths = [len(tokenizer.encode(item.answer)) for item in drawn("mini-report", 100)]
    assert 140 <= min(lengths) < 200 < max(lengths) <= 300


@pytest.mark.parametrize("name", ["mini-fim-code", "mini-fim-prose"])
def test_the_tokens_of_both_sides_and_the_gap_are_those_of_the_whole_answer(name, tokenizer):
    for item in drawn(name, 60):
        before, after = item.meta["around"]
        middle = item.answer[len(before) : len(item.answer) - len(after)]
        parts = [tokenizer.encode(text) for text in (before, middle, after)]
        assert [token for part in parts for token in part] == tokenizer.encode(item.answer)


@pytest.mark.parametrize("model", ["mini-llada", "mini-dream"])
def test_only_the_gap_is_decoded_and_a_batch_gives_the_texts_of_single_runs(model):
    task, trained = get_task("mini-fim-prose"), load(model, device="cpu")
    samples = task.load(None)[:3]
    encoded = encode(trained, samples, 128)
    config, sampler = GenerationConfig(max_new_tokens=128), SAMPLERS["first-mask"]
    [batch] = make_batches(encoded, 3)
    together = decode_batch(trained, task, batch, sampler, config).records
    for sample, record in zip([one.sample for one in batch.samples], together, strict=True):
        before, after = sample.meta["around"]
        assert record.text.startswith(before)
        assert record.text.endswith(after)
        assert record.forwards <= len(sample.gold) - len(before) - len(after)
    for one, record in zip(batch.samples[:1], together, strict=False):
        [single] = make_batches([one], 1)
        assert decode_batch(trained, task, single, sampler, config).records[0].text == record.text


def test_rows_with_a_gap_mask_one_span_of_the_answer_and_old_recipes_draw_the_same_masks():
    tokens = torch.arange(40).repeat(64, 1)
    prompts, answers = torch.full((64,), 10), torch.full((64,), 20)

    def masked(masking: Masking) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return corrupt(
            tokens, prompts=prompts, answers=answers, masking=masking, mask_id=99, generator=generator
        ).masked

    gaps = masked(Masking(gap_share=1.0))
    column = torch.arange(40)
    for row in gaps:
        columns = column[row]
        assert len(columns) == columns[-1] - columns[0] + 1  # one span
        assert columns[0] >= 10
        assert columns[-1] < 30
    some = masked(Masking(gap_share=0.3))
    assert 0 < (some == masked(Masking())).all(-1).sum() < 64
