"""`unmask generate` says what the library says."""

from __future__ import annotations

import json

import pytest

from unmask import GenerationConfig, generate, make_sampler
from unmask.trace import read_trace, replay

SHORT = ("-n", 16)


def asked(text: str, system: str | None = None) -> list[dict[str, str]]:
    given = [] if system is None else [{"role": "system", "content": system}]
    return [*given, {"role": "user", "content": text}]


def test_the_text_is_on_stdout_and_its_cost_on_stderr(call, llada, llada_model):
    result = call("generate", "-m", llada, "hello", *SHORT)
    [answer] = generate(llada_model, [asked("hello")], config=GenerationConfig(max_new_tokens=16))
    assert result.exit_code == 0
    assert result.stdout == answer.text + "\n"
    assert result.stderr.startswith(f"{answer.steps} steps · {answer.forwards} forwards · ")
    assert f"{answer.forced_share:.0%} forced" in result.stderr
    assert result.stderr.endswith(f"finish: {answer.finish}\n")


def test_several_texts_have_headings_and_one_has_none(call, dream, dream_model):
    prompts = ["one", "and\ntwo " + "words " * 50]
    answers = generate(
        dream_model, [asked(text) for text in prompts], config=GenerationConfig(max_new_tokens=16)
    )
    result = call("generate", "-m", dream, *prompts, *SHORT)
    headings = [line for line in result.stdout.splitlines() if line.startswith("== ")]
    assert headings[0] == "== 1 of 2: one =="
    assert headings[1].startswith("== 2 of 2: and two words words")
    assert len(headings[1]) < 110
    first, second = headings
    assert result.stdout == f"{first}\n{answers[0].text}\n\n{second}\n{answers[1].text}\n"


@pytest.mark.parametrize("prompts", [("",), (" \n",), ("hello", ""), ("-",)])
def test_an_empty_prompt_is_refused(call, prompts):
    for command in ("generate", "compare")[: 3 - len(prompts)]:
        result = call(command, "-m", "no/such/folder", *prompts, text="\n")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "PROMPT must not be empty" in result.stderr


def test_json_is_one_object_per_prompt_and_nothing_else(lines, dream, dream_model):
    found = lines("generate", "-m", dream, "one", "and two", *SHORT)
    answers = generate(
        dream_model, [asked("one"), asked("and two")], config=GenerationConfig(max_new_tokens=16)
    )
    for line, answer, prompt in zip(found, answers, ("one", "and two"), strict=True):
        assert line["prompt"] == prompt
        assert (line["model"], line["sampler"]) == (dream, "first-mask")
        for name in (
            "text",
            "finish",
            "steps",
            "forwards",
            "accepted",
            "forced",
            "forced_share",
            "leftovers",
        ):
            assert line[name] == getattr(answer, name)
        assert tuple(line["token_ids"]) == answer.token_ids
        assert line["seconds"] > 0


@pytest.mark.parametrize(
    ("flags", "sampler", "settings"),
    [
        (("--steps", 5, "--block-length", "none"), "less", {"steps": 5, "block_length": None}),
        (("--block-length", 4, "--cache", "dual"), "less", {"block_length": 4, "cache": "dual"}),
        (("--cache", "prefix", "--refresh-every", 2), "less", {"cache": "prefix", "refresh_every": 2}),
        (("--block-length", "auto", "--cache", "none"), "less", {}),
        (("-t", 0.9, "--seed", 7), "less", {"temperature": 0.9, "seed": 7}),
        (("-t", 1, "--top-p", 0.8, "--top-k", 40), "less", {"temperature": 1, "top_p": 0.8, "top_k": 40}),
        (("--guidance", 0.5, "--min-new-tokens", 3), "less", {"guidance": 0.5, "min_new_tokens": 3}),
        (("--end-tokens", "suppress"), "less", {"end_tokens": "suppress"}),
        (("--end-tokens", "last", "--min-gap", 3), "less", {"end_tokens": "last", "min_gap": 3}),
        (("--min-gap", "auto"), "klass", {"min_gap": "auto"}),
        (("--end-tokens", "demote"), "base", {"end_tokens": "demote"}),
        (("--stop", "a", "--stop", "e"), "less", {"stop": ("a", "e")}),
        ((), "klass", {}),
    ],
)  # fmt: skip
def test_every_option_reaches_the_library(lines, llada, llada_model, flags, sampler, settings):
    [line] = lines("generate", "-m", llada, "hello", *SHORT, "--sampler", sampler, *flags)
    config = GenerationConfig(max_new_tokens=16, **settings)
    [answer] = generate(llada_model, [asked("hello")], make_sampler(sampler), config)
    assert (line["text"], line["steps"], line["finish"]) == (answer.text, answer.steps, answer.finish)


def test_set_changes_fields_of_the_sampler(lines, llada, llada_model):
    flags = ("--set", "min_confidence=0.1", "--set", "max_jsd=inf", "--set", "block_policy=run")
    [line] = lines("generate", "-m", llada, "hello", *SHORT, "-s", "less", *flags)
    sampler = make_sampler("less", min_confidence=0.1, max_jsd=float("inf"), block_policy="run")
    [answer] = generate(llada_model, [asked("hello")], sampler, GenerationConfig(max_new_tokens=16))
    assert (line["text"], line["steps"]) == (answer.text, answer.steps)


def test_a_prompt_may_skip_the_template_have_a_system_message_or_come_from_stdin(lines, llada, llada_model):
    config = GenerationConfig(max_new_tokens=8)
    prompts = [("--raw",), "hello"], [("--system", "be brief"), asked("hello", "be brief")]
    for flags, prompt in prompts:
        [line] = lines("generate", "-m", llada, "-", *flags, "-n", 8, text="hello\n")
        [answer] = generate(llada_model, [prompt], config=config)
        assert (line["prompt"], line["text"]) == ("hello", answer.text)
        assert line["prompt_tokens"] == answer.prompt_tokens


def test_a_checkpoint_without_a_template_gets_the_prompt_as_it_is(lines, call, llada, llada_model, copy):
    folder = copy(llada)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    del settings["chat_template"]
    path.write_text(json.dumps(settings))
    [line] = lines("generate", "-m", folder, "hello", "-n", 8)
    [answer] = generate(llada_model, ["hello"], config=GenerationConfig(max_new_tokens=8))
    assert line["text"] == answer.text
    refused = call("generate", "-m", folder, "hello", "--system", "be brief")
    assert refused.exit_code == 2
    assert "this checkpoint has none" in refused.stderr


def test_a_stream_prints_the_same_text(call, dream, dream_model):
    result = call("generate", "-m", dream, "hello", *SHORT, "--stream")
    [answer] = generate(dream_model, [asked("hello")], config=GenerationConfig(max_new_tokens=16))
    assert result.stdout == answer.text + "\n"


@pytest.mark.parametrize("flag", [(), ("--stream",)])
def test_a_trace_ends_in_the_tokens_of_the_answer(call, llada, llada_model, tmp_path, flag):
    file = tmp_path / "run.jsonl.gz"
    assert call("generate", "-m", llada, "hello", *SHORT, "--trace", file, *flag).exit_code == 0
    trace = read_trace(file)
    [answer] = generate(llada_model, [asked("hello")], config=GenerationConfig(max_new_tokens=16))
    assert (trace.header.model, trace.header.sampler) == (llada, "first-mask")
    assert trace.header.fields["min_confidence"] == 0.98
    assert replay(trace)[0][trace.header.start :][: len(answer.token_ids)] == list(answer.token_ids)
    assert "".join(trace.texts[str(token)] for token in answer.token_ids[:1]) == llada_model.tokenizer.decode(
        answer.token_ids[:1], skip_special=False
    )


def test_a_trace_of_a_batch_knows_its_padding(call, llada, llada_model, tmp_path):
    file = tmp_path / "run.jsonl"
    call("generate", "-m", llada, "--raw", "hello there", "x", "-n", 8, "--trace", file)
    header = read_trace(file).header
    for row, text in enumerate(("hello there", "x")):
        given = header.canvas[row][header.padding[row] : header.start]
        assert given == llada_model.tokenizer.encode(text)


def test_live_without_a_terminal_is_plain(call, dream):
    plain = call("generate", "-m", dream, "hello", *SHORT)
    live = call("generate", "-m", dream, "hello", *SHORT, "--live")
    assert live.stdout == plain.stdout
    first, *more = live.stderr.splitlines()
    assert first == "--live is ignored: standard output is not a terminal"
    assert len(more) == len(plain.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no prompt"),
        (("a", "--json", "--live"), "choose one"),
        (("a", "--stream", "--json"), "leave out"),
        (("a", "b", "--stream"), "leave out"),
        (("a", "--raw", "--system", "x"), "--raw asks for none"),
        (("a", "--block-length", "some"), "auto or none"),
        (("a", "--cache", "all"), "'all'"),
        (("a", "--end-tokens", "drop"), "'drop'"),
        (("a", "--set", "min_confidence"), "FIELD=VALUE"),
        (("a", "--set", "min_confidence=low"), "min_confidence must be a number, got 'low'"),
        (("a", "-s", "less", "--set", "exact=maybe"), "exact must be one of true, yes, 1"),
        (("a", "--set", "window=1", "--set", "window=2"), "must not set window twice"),
        (("a", "-s", "dawn", "--cache", "prefix"), "got 'prefix'"),
        (("a", "--trace", ""), "must be a file"),
        (("a", "--set", "windw=1"), "did you mean 'window'?"),
        (("a", "--set", "along_jsd=-1"), "along_jsd must be >= 0, got -1.0"),
        (("a", "--sampler", "les"), "did you mean 'less'?"),
        (("a", "--steps", "0"), "steps must be a whole number >= 1"),
        (("a", "--refresh-every", "2"), "refresh_every needs a cache"),
    ],
)
def test_wrong_use_ends_in_one_sentence(call, llada, arguments, words):
    result = call("generate", "-m", llada, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
