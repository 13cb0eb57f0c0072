"""Answers that fit a schema, a pattern or a choice, as OpenAI's own client asks for them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial

import pytest

import unmask
from tests.constraints.schemas import validate
from tests.serving.conftest import Running, listening
from unmask.models.checkpoint.hub import SHIPPED

pytest.importorskip("outlines_core")
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
}
TREE = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
ASK = {"messages": [{"role": "user", "content": "What is 3 + 4?"}]}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", params=SHIPPED)
def served(request: pytest.FixtureRequest) -> Iterator[Running]:
    model = unmask.load(request.param)
    with listening(model, model_name="mini", config=unmask.GenerationConfig(max_new_tokens=32)) as server:
        yield server


def test_an_answer_fits_its_schema_streamed_and_not(served: Running) -> None:
    with served.client(timeout=60) as client:
        create = partial(client.chat.completions.create, model="mini", **ASK, response_format=FORMAT)
        answer = create().choices[0].message.content
        parts = [chunk.choices[0].delta.content or "" for chunk in create(stream=True) if chunk.choices]
    validate(json.loads(answer), SCHEMA)
    assert "".join(parts) == answer


@pytest.mark.parametrize("served", SHIPPED[:1], indirect=True)
def test_requests_with_different_constraints_are_answered_together_as_alone(served: Running) -> None:
    forms = [
        {"regex": r"\d{2}:\d{2}"},
        {"choice": ["left", "right"]},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "text"}},
    ]
    model = served.engine.model
    config = unmask.GenerationConfig(max_new_tokens=16)
    constraints = [unmask.Regex(r"\d{2}:\d{2}"), unmask.Choice(["left", "right"]), None]
    jobs = [
        served.engine.submit("2 + 2 =", config=unmask.GenerationConfig(max_new_tokens=16, constraint=each))
        for each in constraints
    ]
    answers = [job.result().text for job in jobs]
    alone = [
        unmask.generate(
            model, ["2 + 2 ="], config=unmask.GenerationConfig(max_new_tokens=16, constraint=each)
        )
        for each in constraints
    ]
    assert answers == [one.text for [one] in alone]
    texts = [
        served.post("/v1/completions", {"prompt": "2 + 2 =", "max_tokens": 16, **each}) for each in forms
    ]
    found = [reply.json()["choices"][0]["text"] for reply in texts]
    assert found[:2] == answers[:2]
    assert re.fullmatch(r"\d{2}:\d{2}", found[0])
    assert isinstance(json.loads(found[2]), dict)
    assert found[3] == unmask.generate(model, ["2 + 2 ="], config=config)[0].text


@pytest.mark.parametrize("served", SHIPPED[:1], indirect=True)
@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"regex": "(a"}, "regex"),
        ({"regex": "a{40}"}, "max_completion_tokens"),
        ({"choice": []}, "choice"),
        ({"regex": "a", "choice": ["b"]}, "regex"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
            "response_format",
        ),
        (
            {
                "response_format": {"type": "json_schema", "json_schema": {"schema": TREE}},
                "sampler": "first-mask",
            },
            "response_format",
        ),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"regex": r"\bx"}, "regex"),
    ],
)
def test_a_constraint_that_cannot_be_held_is_answered_with_a_sentence(
    served: Running, form: dict, param: str
) -> None:
    reply = served.post("/v1/chat/completions", {**ASK, "max_completion_tokens": 8, **form})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert served.get("/healthz").status_code == 200


@pytest.mark.parametrize("served", SHIPPED[:1], indirect=True)
def test_a_mistake_in_a_schema_is_reported_with_its_whole_path(served: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "number", "minimum": 3}}}
    form = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    error = served.post("/v1/chat/completions", {**ASK, **form}).json()["error"]
    assert error["param"] == "response_format"
    path = "response_format.json_schema.schema.properties.a.minimum"
    assert error["message"].startswith(f"{path} is not supported in a constraint, got 3;")
