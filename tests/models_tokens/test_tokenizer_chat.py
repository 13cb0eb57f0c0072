"""Conversations by the checkpoint's own template."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.raises import raises_field
from unmask.models.text.tokens import Tokenizer

Edit = Callable[..., Path]
HELLO = [{"role": "user", "content": "Hello"}]
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi "},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Bye"},
]


def test_llada_writes_headers_and_trims(llada: Tokenizer) -> None:
    assert llada.render_chat(TURNS[1:3]) == (
        "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_dream_writes_chatml_with_a_default_system_message(dream: Tokenizer) -> None:
    assert dream.render_chat(HELLO) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert dream.render_chat(TURNS, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|>\n"
        "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    )


def test_a_chat_is_the_rendered_text_with_its_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.chat(TURNS)
    assert ids == tokenizer.encode(tokenizer.render_chat(TURNS))
    assert ids.count(tokenizer.special.ends[-1]) == len(TURNS)
    assert tokenizer.decode(ids, skip_special=False) == tokenizer.render_chat(TURNS)


def test_a_template_file_comes_before_the_one_in_the_configuration(llada_folder: Path, edited: Edit) -> None:
    folder = edited(llada_folder, "config")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}<|eot_id|>", encoding="utf-8")
    assert Tokenizer.from_folder(folder).render_chat(HELLO) == "Hello<|eot_id|>"


def render(source: Path, edited: Edit, template: Any, messages: Any = HELLO) -> str:
    folder = edited(source, "tokenizer_config", chat_template=template)
    return Tokenizer.from_folder(folder).render_chat(messages)


def test_the_default_of_several_templates_is_taken(llada_folder: Path, edited: Edit) -> None:
    named = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "{{ messages[-1].content }}"},
    ]
    assert render(llada_folder, edited, named) == "Hello"


def test_several_templates_without_a_default_are_an_error(llada_folder: Path, edited: Edit) -> None:
    named = [{"name": "rag", "template": "a"}, {"name": "tool_use", "template": "b"}]
    with pytest.raises(ValueError, match="no entry named 'default'; available: rag, tool_use"):
        render(llada_folder, edited, named)


def test_templates_have_what_published_ones_use(llada_folder: Path, edited: Edit) -> None:
    template = (
        "{%- for message in messages -%}\n"
        "    {%- if message.role == 'system' %}{% continue %}{% endif %}\n"
        "    {% generation %}\n"
        "{{ message | tojson }}|{{ strftime_now('%Y')[:1] }}|{{ bos_token }}{{ eos_token }}{{ pad_token }}\n"
        "    {% endgeneration %}\n"
        "{% endfor %}\n"
        "{{ tools is none }}{{ mask_token is defined }}"
    )
    messages = [{"role": "user", "content": "<é>"}]
    assert render(llada_folder, edited, template, messages) == (
        '{"role": "user", "content": "<é>"}|2|<|startoftext|><|endoftext|><|endoftext|>\nTrueFalse'
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages|attr('__class__') }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{% set _ = messages.append(1) %}",
        "{{ messages[0].update({'content': 'x'}) }}",
    ],
)
def test_a_template_that_leaves_its_sandbox_is_refused(
    llada_folder: Path, edited: Edit, template: str
) -> None:
    with pytest.raises(ValueError, match="tries to leave its sandbox"):
        render(llada_folder, edited, template)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{% if %}", "is not valid, line 1"),
        ("{{ messages | no_such_filter }}", "is not valid, line 1: No filter named"),
        ("{{ raise_exception('roles must alternate') }}", "fails on this conversation: roles must alternate"),
        ("{{ messages[0].content + 1 }}", "fails on this conversation"),
        ("{{ 1 // 0 }}", "fails on this conversation"),
        ("{{ missing.field }}", "fails on this conversation: 'missing' is undefined"),
        ("{% for i in range(1000000) %}{% endfor %}", "fails on this conversation"),
        (7, "must be a string or a list, got int"),
    ],
)
def test_a_broken_template_is_a_sentence(
    llada_folder: Path, edited: Edit, template: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        render(llada_folder, edited, template)


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        LOOPS,
        "{{ 'a' * 10**10 }}",
        "{{ 'a'.zfill(900000000) }}",
        "{{ 3 ** (10 ** 9) % 7 }}",
        "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{{ '" + "x" * 100 + "' * 1000000 }}",
    ],
)
def test_a_template_that_takes_all_time_or_memory_is_refused(
    llada_folder: Path, edited: Edit, template: str
) -> None:
    with pytest.raises(ValueError, match="do not trust this checkpoint"):
        render(llada_folder, edited, template)


@pytest.mark.parametrize("opening", ["{{ " + "(" * 50_000, "{% if 1 %}" * 5_000])
def test_a_template_of_endless_depth_is_a_sentence(llada_folder: Path, edited: Edit, opening: str) -> None:
    with pytest.raises(ValueError, match="the chat template of"):
        render(llada_folder, edited, opening)


def test_a_refused_conversation_does_not_spoil_the_next(llada_folder: Path, edited: Edit) -> None:
    template = "{% if messages[0].content == 'loop' %}" + LOOPS + "{% endif %}{{ messages[0].content }}"
    folder = edited(llada_folder, "tokenizer_config", chat_template=template)
    tokenizer = Tokenizer.from_folder(folder)
    # `render_chat` itself tries every conversation with other words first
    with pytest.raises(ValueError, match="takes too long"):
        tokenizer.render_chat([{"role": "user", "content": "loop"}])
    assert tokenizer.render_chat(HELLO) == "Hello"


def test_many_threads_render_at_a_time(llada: Tokenizer) -> None:
    talks = [[{"role": "user", "content": f"number {n}" * 99}] for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(llada.render_chat, talks)) == [llada.render_chat(talk) for talk in talks]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12
def test_a_forked_process_renders_by_itself(llada: Tokenizer) -> None:
    expected = llada.render_chat(HELLO)
    child = os.fork()
    if child == 0:
        os._exit(0 if llada.render_chat(HELLO) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert llada.render_chat(HELLO) == expected


def test_a_template_leaves_no_process_behind(llada_folder: Path) -> None:
    before = children()
    tokenizer = Tokenizer.from_folder(llada_folder)
    assert len(children() - before) == 1
    del tokenizer
    gc.collect()
    assert not children() - before


def children() -> set[str]:
    """The processes that this one started."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_checkpoint_without_template_says_so(llada_folder: Path, edited: Edit) -> None:
    plain = Tokenizer.from_folder(edited(llada_folder, "tokenizer_config", chat_template=...))
    assert not plain.has_chat_template
    with raises_field("messages", HELLO, "no chat template", "pass a plain prompt"):
        plain.chat(HELLO)


def test_a_message_that_the_template_leaves_out_is_an_error(dream: Tokenizer) -> None:
    with raises_field("messages[1].role", "usr"):
        dream.chat([*HELLO, {"role": "usr", "content": "lost"}])


@pytest.mark.parametrize(
    ("messages", "field", "value"),
    [
        ("Hello", "messages", "Hello"),
        (HELLO[0], "messages", HELLO[0]),
        ([], "messages", []),
        (["Hello"], "messages[0]", "Hello"),
        ([*HELLO, {"content": "x"}], "messages[1]", {"content": "x"}),
        ([{"role": "user"}], "messages[0]", {"role": "user"}),
        ([{"role": "user", "content": "x", "text": "y"}], "messages[0]", "text"),
        ([{"role": "user", "content": None}], "messages[0].content", None),
        ([{"role": 3, "content": "x"}], "messages[0].role", 3),
        ([{"role": " ", "content": "x"}], "messages[0].role", " "),
    ],
)
def test_malformed_messages_are_refused(tokenizer: Tokenizer, messages: Any, field: str, value: Any) -> None:
    with raises_field(field, value):
        tokenizer.chat(messages)
