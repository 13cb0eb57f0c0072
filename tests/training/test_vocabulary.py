"""The tokenizer of the shipped models: its pieces, and both layouts read by the library's own loader."""

from __future__ import annotations

import random

import pytest

from unmask.models.text.tokens import Tokenizer
from unmask.training import tasks
from unmask.training.tasks import SHARES, TASKS, TEST_TASKS, draw_train
from unmask.training.tasks.world.facts import RELATIONS
from unmask.training.vocabulary import SIZE, chat_text, train, write

LAYOUTS = ("llada", "dream")
MOST_PROMPT, MOST_ANSWER = 160, 115


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    backend = train(12_000)
    made = {}
    for layout in LAYOUTS:
        folder = tmp_path_factory.mktemp(layout)
        write(backend, folder, layout)
        made[layout] = Tokenizer.from_folder(folder)
    return made


@pytest.fixture(scope="module")
def tokenizer(tokenizers):
    return tokenizers["llada"]


def samples(count: int) -> list[tasks.Item]:
    rng = random.Random(8)
    return [draw_train(task, rng) for task in map(TASKS.__getitem__, SHARES) for _ in range(count)]


def test_training_again_gives_the_same_pieces():
    assert train(500).to_str() == train(500).to_str()


def test_both_layouts_read_the_same_text_as_the_same_ids(tokenizers):
    for item in samples(100):
        text = f"{item.prompt}\n{item.answer}"
        first, second = (tokenizers[layout].encode(text) for layout in LAYOUTS)
        assert first == second
        assert tokenizers["dream"].decode(first) == text


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_special_ids_are_the_last_and_the_end_is_the_pad(tokenizers, layout):
    special = tokenizers[layout].special
    assert special.eos == special.pad
    assert special.ends == (special.eos,)
    assert len({special.bos, special.eos, special.mask}) == 3
    assert min(special.bos, special.eos, special.mask) >= SIZE - 6
    assert max(tokenizers[layout].token_to_id(token) for token in ("<|user|>", "<|assistant|>")) == SIZE - 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_chat_template_costs_three_tokens_and_chat_text_writes_the_same(tokenizers, layout):
    tokenizer, prompt = tokenizers[layout], "Solve the equation: 3x + 5 = 20."
    ids = tokenizer.chat([{"role": "user", "content": prompt}])
    assert len(ids) == len(tokenizer.encode(prompt)) + 3
    assert ids == tokenizer.encode(chat_text(prompt, layout))
    turns = [("system", "Be brief."), ("user", "One?"), ("assistant", "1"), ("user", "Two?")]
    assert "Be brief." in tokenizer.render_chat([{"role": role, "content": text} for role, text in turns])


def test_every_digit_is_a_piece_of_its_own(tokenizer):
    assert [tokenizer.decode([i]) for i in tokenizer.encode("12 + 305")] == [
        "1",
        "2",
        " +",
        " ",
        "3",
        "0",
        "5",
    ]


def test_every_option_of_the_world_is_one_piece(tokenizer):
    words = {word for relation in RELATIONS for word in (*relation.facts, *relation.values)}
    assert [word for word in sorted(words) if len(tokenizer.encode(f" {word}")) > 1] == []


def test_prompts_and_answers_fit_the_canvas(tokenizer):
    items = samples(300) + [item for name in TEST_TASKS for item in tasks.test_items(name)]
    answers = [len(ids) for ids in tokenizer.encode_batch([item.answer for item in items])]
    prompts = [len(ids) for ids in tokenizer.encode_batch([chat_text(item.prompt) for item in items])]
    assert max(prompts) <= MOST_PROMPT
    assert min(answers) == 1
    assert 90 <= max(answers) <= MOST_ANSWER


def test_any_text_survives_the_round_trip(tokenizer):
    text = "Grüße, 漢字 and 🙂: don't\n\n\tworry {x}"
    assert tokenizer.decode(tokenizer.encode(text)) == text
