"""OpenAI's own client before a running server of each model that is part of the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import openai
import pytest

import unmask
from tests.serving.conftest import Running, listening, wait_until
from unmask.models.checkpoint.hub import SHIPPED
from unmask.models.trunk import Trunk

QUESTION = "Solve the equation: 3x + 5 = 20."
MESSAGES = [{"role": "user", "content": QUESTION}]
CONFIG = unmask.GenerationConfig(max_new_tokens=64)


class Served(NamedTuple):
    """A model and the server before it."""

    name: str
    model: Trunk
    server: Running

    @property
    def client(self) -> openai.OpenAI:
        return self.server.client(timeout=60)


@pytest.fixture(scope="module", params=SHIPPED)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    model = unmask.load(request.param)
    with listening(model, model_name=request.param, config=CONFIG) as server:
        yield Served(request.param, model, server)


def test_a_chat_is_answered_as_offline(served: Served) -> None:
    answer = served.client.chat.completions.create(model=served.name, messages=MESSAGES)
    [offline] = unmask.generate(served.model, [MESSAGES], config=CONFIG)
    assert answer.choices[0].message.content == offline.text
    assert r"\boxed{5}" in offline.text
    assert answer.usage.completion_tokens == len(offline.token_ids)


def test_a_streamed_chat_grows_to_the_whole_answer(served: Served) -> None:
    stream = served.client.chat.completions.create(model=served.name, messages=MESSAGES, stream=True)
    parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    [offline] = unmask.generate(served.model, [MESSAGES], config=CONFIG)
    assert "".join(parts) == offline.text
    assert sum(map(bool, parts)) > 1


def test_a_completion_goes_on_from_its_prompt_and_a_gap_is_filled(served: Served) -> None:
    ask = served.client.completions.create
    answer = ask(model=served.name, prompt="The answer is", max_tokens=8)
    config = unmask.GenerationConfig(max_new_tokens=8)
    [offline] = unmask.generate(served.model, ["The answer is"], config=config)
    assert answer.choices[0].text == offline.text
    filled = ask(model=served.name, prompt="3x = 15, so x = [[gap 2]].").choices[0].text
    assert filled.startswith("3x = 15, so x = ")
    assert "gap" not in filled


def test_a_seed_decides_what_is_drawn(served: Served) -> None:
    def drawn(seed: int) -> str | None:
        answer = served.client.chat.completions.create(
            model=served.name,
            messages=MESSAGES,
            temperature=1.5,
            seed=seed,
            max_tokens=24,
            extra_body={"sampler": "threshold", "sampler_fields": {"min_confidence": 0.5}},
        )
        return answer.choices[0].message.content

    texts = [drawn(seed) for seed in (1, 2, 3, 1)]
    assert texts[0] == texts[3]
    assert len(set(texts)) > 1


def test_what_cannot_be_is_refused_with_a_sentence(served: Served) -> None:
    ask = served.client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match=r"steps .* got -1") as refused:
        ask(model=served.name, messages=MESSAGES, extra_body={"steps": -1})
    assert refused.value.param == "steps"
    with pytest.raises(openai.NotFoundError, match="the model 'gpt-4' was not found"):
        ask(model="gpt-4", messages=MESSAGES)


def test_a_reader_who_leaves_frees_the_row(served: Served) -> None:
    slow = {"sampler": "base"}
    stream = served.client.chat.completions.create(
        model=served.name, messages=MESSAGES, max_tokens=128, stream=True, extra_body=slow
    )
    next(iter(stream))
    wait_until(lambda: served.server.engine.running == 1)
    stream.close()
    wait_until(lambda: served.server.engine.running == 0)
