"""The small models of the package: there by name, small enough, and able to do what they were trained for."""

from __future__ import annotations

import pytest
import torch

import unmask
from unmask.models.checkpoint.hub import MINI, SHIPPED
from unmask.training.tasks import TASKS

MOST_BYTES = 32_000_000
ANSWERS = {
    "Solve the equation: 3x + 5 = 20.": "\\boxed{5}",
    "What is the sum of the first 100 natural numbers?": "\\boxed{5050}",
}
PROGRAMS = {
    "Write a Python program to reverse a string.": ("abc", "cba"),
    "Write a Python program to calculate the factorial of a given number.": (5, 120),
}


@pytest.fixture(scope="module", params=SHIPPED)
def model(request):
    return unmask.load(request.param, device="cpu")


def answer(model, prompt: str, sampler: str = "less", **settings) -> unmask.Generation:
    chat = [{"role": "user", "content": prompt}]
    config = unmask.GenerationConfig(**settings)
    return unmask.generate(model, [chat], unmask.make_sampler(sampler), config)[0]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model_is_small_and_complete(name):
    folder = MINI / name
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) <= MOST_BYTES
    for needed in (
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "log.jsonl",
        "README.md",
    ):
        assert (folder / needed).is_file(), needed


@pytest.mark.parametrize("name", SHIPPED)
def test_weights_are_stored_in_bfloat16_and_computed_in_float32_on_the_cpu(name):
    assert next(unmask.load(name, device="cpu").parameters()).dtype == torch.float32
    assert next(unmask.load(name, device="cpu", dtype="bfloat16").parameters()).dtype == torch.bfloat16


def test_a_shipped_model_also_goes_by_its_owner():
    assert unmask.load("unmask/mini-dream", device="cpu").folder == MINI / "mini-dream"


def test_a_name_that_is_nothing_is_told_which_models_are_shipped():
    with pytest.raises(ValueError, match="shipped models: mini-llada, mini-dream"):
        unmask.load("mini-lada")


@pytest.mark.parametrize("prompt", ANSWERS)
def test_the_arithmetic_prompts_of_the_paper_are_answered(model, prompt):
    assert ANSWERS[prompt] in answer(model, prompt).text


@pytest.mark.parametrize("prompt", PROGRAMS)
def test_the_programs_of_the_paper_run(model, prompt):
    namespace: dict[str, object] = {}
    exec(answer(model, prompt).text, namespace)
    function = next(value for name, value in namespace.items() if name != "__builtins__" and callable(value))
    given, wanted = PROGRAMS[prompt]
    assert function(given) == wanted


def test_the_canvas_is_the_one_that_the_models_were_trained_on(model):
    assert model.info.new_tokens == 128
    everything = answer(model, "Simplify 6/8.", stop_at_eos=False, steps=4, sampler="base")
    assert everything.accepted + everything.forced + everything.leftovers == 128


@pytest.mark.parametrize(("sampler", "most_steps"), [("less", 40), ("threshold", 30), ("klass", 60)])
def test_adaptive_samplers_take_far_fewer_steps_than_there_are_tokens(model, sampler, most_steps):
    taken = answer(model, "Find 15% of 40.", sampler)
    assert taken.steps <= most_steps
    assert "\\boxed{6}" in taken.text


def test_answers_of_the_test_items_are_mostly_right():
    model = unmask.load("mini-llada", device="cpu")
    items = [item for name in ("mini-mmlu", "mini-winogrande") for item in _items(name, 4)]
    chats = [[{"role": "user", "content": item.prompt}] for item in items]
    texts = [one.text for one in unmask.generate(model, chats, unmask.make_sampler("threshold"))]
    right = sum(TASKS[item.task].score(item, text).correct for item, text in zip(items, texts, strict=True))
    assert right >= 6


def _items(name: str, count: int):
    from unmask.training.tasks import test_items

    return test_items(name)[:count]
