"""The model `unmask` inside the real lm-evaluation-harness, offline, on local tasks."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from tests.checkpoints import write_checkpoint
from tests.raises import raises_field
from tests.test_import import BLOCK
from tests.text.conftest import tiny
from tests.text.scripted import BOS, EOS, TOKENIZER, Scripted, saying
from unmask import LESS, Base, GenerationConfig, generate
from unmask.evals.likelihood import Pair, log_likelihoods
from unmask.fast import load as loading
from unmask.text.generate import DEFAULT_SAMPLER

try:
    import lm_eval
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import CachingLM
    from lm_eval.tasks import TaskManager

    from unmask.evals.harness import UnmaskLM
except ModuleNotFoundError as error:
    if error.name != "lm_eval":
        raise
    lm_eval = None

needs_lm_eval = pytest.mark.skipif(lm_eval is None, reason="lm-eval is not installed: unmask[lm-eval]")
PROMPTS = ["the", "a longer prompt than the others", "123 + 456 =", "x", "one two three"]
IGNORED = {"max_batch_size", "trust_remote_code", "settings"}  # lm-eval passes the first two
MAIN = "import sys; from unmask.evals.harness_cli import main; sys.exit(main())"
# lm-eval would read its thousands of tasks first
OWN_TASKS_ALONE = """
from functools import partialmethod
from lm_eval.tasks import TaskManager
TaskManager.__init__ = partialmethod(TaskManager.__init__, include_defaults=False)
"""

GENERATE_TASK = """
task: local_generate
dataset_path: json
dataset_kwargs: {{data_files: {data}, cache_dir: {cache}}}
test_split: train
output_type: generate_until
doc_to_text: "Q: {{{{question}}}} A:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: [";"], max_gen_toks: 8, do_sample: false, temperature: 0.0}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
CHOICE_TASK = """
task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {data}, cache_dir: {cache}}}
test_split: train
output_type: multiple_choice
doc_to_text: "Q: {{{{question}}}} A:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{gold}}}}"
target_delimiter: ""
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""
TASKS = ["local_generate", "local_choice"]


class Beginning(Scripted):
    """Predicts as much of its script as there are columns behind the prompt."""

    def __call__(self, tokens: Any, attend: Any, window: slice, cache: Any) -> Any:
        width = tokens.shape[1] - window.start
        return Scripted(self.script[:width])(tokens, attend, window, cache)


def request(kind: str, *arguments: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def texts(lm: UnmaskLM, prompts: list[str], **asked: Any) -> list[str]:
    return lm.generate_until([request("generate_until", prompt, asked) for prompt in prompts])


def scores(lm: UnmaskLM, *pairs: tuple[str, str]) -> list[tuple[float, bool]]:
    return lm.loglikelihood([request("loglikelihood", *pair) for pair in pairs])


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with a task of each kind, on three local questions."""
    rows = [
        {"question": f"{n} + {n}", "answer": "abc", "choices": ["abd", "abc"], "gold": 1} for n in range(3)
    ]
    folder, data = tmp_path / "tasks", tmp_path / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    folder.mkdir()
    for name, text in zip(TASKS, (GENERATE_TASK, CHOICE_TASK), strict=True):
        filled = text.format(data=data, cache=tmp_path / "cache")
        (folder / f"{name}.yaml").write_text(filled, encoding="utf-8")
    return folder


@needs_lm_eval
def test_a_sampler_may_be_a_class_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from unmask import Threshold as Own\n")
    arguments = {"sampler": f"{tmp_path / 'own.py'}:Own", "sampler.min_confidence": 0.5}
    assert UnmaskLM(tiny("llada_tiny"), **arguments).sampler == unmask.Threshold(min_confidence=0.5)


@needs_lm_eval
def test_texts_come_in_the_order_of_the_requests_and_do_not_depend_on_the_batch() -> None:
    model, settings = tiny("llada_tiny"), {"max_new_tokens": 16, "steps": 8, "block_length": 8}
    expected = [generate(model, [prompt], Base(), GenerationConfig(**settings))[0].text for prompt in PROMPTS]
    for batch_size in (1, 2, 5):
        assert texts(UnmaskLM(model, sampler="base", batch_size=batch_size, **settings), PROMPTS) == expected


@needs_lm_eval
def test_a_text_ends_before_its_stop_strings() -> None:
    lm = UnmaskLM(saying("one; two; three"))
    length = len(lm.model.script)
    assert texts(lm, ["p"], max_gen_toks=length) == ["one; two; three"]
    assert texts(lm, ["p"], max_gen_toks=length, until=["two", ";"]) == ["one"]
    assert texts(lm, ["p"], max_gen_toks=length, until="three") == ["one; two; "]


@needs_lm_eval
def test_requests_of_different_lengths_keep_their_own() -> None:
    model = tiny("llada_tiny")
    lm = UnmaskLM(model, batch_size=4, max_new_tokens=12, block_length=8)
    requests = [request("generate_until", "the", {"max_gen_toks": n} if n else {}) for n in (4, 0, 8, 4)]
    found = lm.generate_until(requests)
    for text, length in zip(found, (4, 12, 8, 4), strict=True):
        config = GenerationConfig(max_new_tokens=length, block_length=min(8, length))
        assert text == generate(model, ["the"], config=config)[0].text


@needs_lm_eval
def test_sampled_repeats_differ_and_come_again() -> None:
    lm = UnmaskLM(tiny("llada_tiny"), batch_size=3, max_new_tokens=12)
    first = texts(lm, ["the"] * 4, do_sample=True, temperature=5.0)
    assert len(set(first)) == 4
    assert texts(lm, ["x", *["the"] * 4], do_sample=True, temperature=5.0)[1:] == first
    assert len(set(texts(lm, ["the"] * 2, do_sample=False, temperature=1.0))) == 1


@needs_lm_eval
def test_a_temperature_that_the_task_overrules_is_said(caplog: pytest.LogCaptureFixture) -> None:
    lm = UnmaskLM(saying("abc"), temperature=0.5, max_new_tokens=4)
    with caplog.at_level(logging.WARNING):
        texts(lm, ["p", "q"], do_sample=False)
        assert caplog.text.count("temperature=0.5 is overruled by the task") == 1
        caplog.clear()
        texts(lm, ["p"])
        assert not caplog.records


@needs_lm_eval
def test_an_answer_scores_the_bound_of_its_tokens_behind_its_context() -> None:
    model = tiny("dream_tiny")
    encode: Any = model.tokenizer.encode
    lm = UnmaskLM(model, mc_num=6, seed=4, batch_size=3)
    pairs = [("the cat", " sat"), ("a ", "dog barked"), ("", "alone"), ("  ", "blank")]
    split = [
        (encode("the cat"), encode(" sat")),
        (encode("a"), encode(" dog barked")),  # a space before the answer belongs to it
        ([model.tokenizer.special.bos], encode("alone")),
        ([model.tokenizer.special.bos], encode("  blank")),
    ]
    expected = [Pair(tuple(context), tuple(answer)) for context, answer in split]
    found = [bound for bound, _ in scores(lm, *pairs)]
    assert found == pytest.approx(log_likelihoods(model, expected, draws=6, seed=4), rel=1e-5)
    assert [bound for bound, _ in scores(lm, *pairs[::-1])] == pytest.approx(found[::-1], rel=1e-5)


@needs_lm_eval
def test_only_what_greedy_unmasking_writes_is_greedy() -> None:
    model = saying("abc", ends=False)
    answers = [("p", "abc"), ("p", "abd")]
    right, wrong = scores(UnmaskLM(model, mc_num=8, batch_size=2), *answers)
    assert (right[1], wrong[1]) == (True, False)
    assert right[0] > wrong[0]
    assert [greedy for _, greedy in scores(UnmaskLM(model, mc_num=2, check_greedy=False), *answers)] == [
        False,
        False,
    ]


@needs_lm_eval
def test_a_text_is_scored_whole_and_a_long_one_in_windows() -> None:
    model = tiny("llada_tiny")
    ids = model.tokenizer.encode("zqxjk vbp")
    bos = model.tokenizer.special.bos
    short, empty = UnmaskLM(model, mc_num=3).loglikelihood_rolling(
        [request("loglikelihood_rolling", text) for text in ("zqxjk vbp", "")]
    )
    [expected] = log_likelihoods(model, [Pair((bos,), tuple(ids))], draws=3, paired=False)
    assert short == pytest.approx(expected, rel=1e-5)
    assert empty == 0
    [cut] = UnmaskLM(model, mc_num=3, max_length=5).loglikelihood_rolling(
        [request("loglikelihood_rolling", "zqxjk vbp")]
    )
    # nine tokens, five columns: the last window has room for more of what comes before
    windows = [
        Pair((bos,), tuple(ids[:4])),
        Pair((ids[3],), tuple(ids[4:8])),
        Pair(tuple(ids[4:8]), tuple(ids[8:])),
    ]
    assert cut == pytest.approx(sum(log_likelihoods(model, windows, draws=3, paired=False)), rel=1e-5)


@needs_lm_eval
def test_answers_are_kept_by_the_cache_of_lm_eval(tmp_path: Path) -> None:
    model = saying("abc", ends=False)
    asked = {
        "generate_until": [request("generate_until", p, {"max_gen_toks": 3}) for p in ("p", "q")],
        "loglikelihood": [request("loglikelihood", p, "abc") for p in ("p", "q")],
        "loglikelihood_rolling": [request("loglikelihood_rolling", "abc")],
    }
    direct = UnmaskLM(model, mc_num=2)
    CachingLM(direct, str(tmp_path / "cache.db"))  # sets the hook: what follows is kept at once
    first = {name: getattr(direct, name)(requests) for name, requests in asked.items()}
    model.seen.clear()
    cached = CachingLM(UnmaskLM(model, mc_num=2), str(tmp_path / "cache.db"))
    again = {name: getattr(cached, name)(requests) for name, requests in asked.items()}
    assert again == first
    assert model.seen == []


@needs_lm_eval
def test_contexts_that_are_too_long_lose_their_beginning(caplog: pytest.LogCaptureFixture) -> None:
    lm = UnmaskLM(saying("abc", ends=False), max_length=6, mc_num=1, max_new_tokens=3)
    texts(lm, ["zqxjk"])
    assert lm.model.seen[-1][0, :3].tolist() == TOKENIZER.encode("zqxjk")[-3:]
    assert "a context of 5 tokens is cut to its last 3" in caplog.text
    scores(lm, ("zqxjk", "vbpg"))
    assert lm.model.seen[-1][0, :2].tolist() == TOKENIZER.encode("zqxjk")[-2:]
    with raises_field("max_gen_toks", 6):
        texts(lm, ["p"], max_gen_toks=6)
    with pytest.raises(ValueError, match="a continuation has 6 tokens"):
        scores(lm, ("p", "zqxjkv"))


@needs_lm_eval
def test_a_beginning_of_text_is_written_where_asked_for_and_never_twice() -> None:
    lm = UnmaskLM(saying("abc"), add_bos_token=True)
    assert lm.tok_encode("zq")[0] == BOS
    assert lm.tok_encode("<|startoftext|>zq").count(BOS) == 1
    assert BOS not in lm.tok_encode("zq", add_special_tokens=False)
    assert BOS not in UnmaskLM(saying("abc")).tok_encode("zq")


@needs_lm_eval
def test_chats_are_rendered_by_the_checkpoint_and_may_go_on() -> None:
    lm = UnmaskLM(tiny("dream_tiny"))
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "It is "}]
    assert lm.apply_chat_template(chat[:1]).endswith("hello<|im_end|>\n<|im_start|>assistant")
    assert lm.apply_chat_template(chat, add_generation_prompt=False).endswith("assistant\nIt is ")
    assert "message.role" in str(lm.chat_template(True))


@needs_lm_eval
def test_the_default_sampler_is_that_of_the_library_and_its_fields_can_be_changed() -> None:
    model = saying("abc")
    assert UnmaskLM(model).sampler == DEFAULT_SAMPLER
    changed = UnmaskLM(model, **{"sampler.min_confidence": 0.9})
    assert changed.sampler == unmask.make_sampler("recommended", min_confidence=0.9)


@needs_lm_eval
def test_arguments_come_as_a_string(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "llada", "llada_tiny")
    lm = UnmaskLM.create_from_arg_string(
        f"pretrained={folder},sampler=less,sampler.max_jsd=0.02,steps=8,max_new_tokens=16,block_length=none,"
        "mc_num=4,check_greedy=False,batch_size=3,dtype=float32",
        {"batch_size": 1, "max_batch_size": None, "device": "cpu"},
    )
    assert lm.sampler == LESS(max_jsd=0.02)
    assert lm.config == GenerationConfig(steps=8, max_new_tokens=16, block_length=None, seed=0)
    assert (lm.mc_num, lm.check_greedy, lm.batch_size, lm.device.type) == (4, False, 3, "cpu")
    assert lm.tokenizer_name == str(folder).replace("/", "__")
    assert lm.get_model_info()["generation"]["steps"] == 8


@needs_lm_eval
def test_a_model_is_compiled_where_the_arguments_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "llada", "llada_tiny")
    monkeypatch.setattr(loading, "compile_model", partial(unmask.compile, layers=False))
    arguments = f"pretrained={folder},max_new_tokens=12,cache=prefix,refresh_every=2"
    plain = UnmaskLM.create_from_arg_string(arguments)
    compiled = UnmaskLM.create_from_arg_string(f"{arguments},compile=True")
    assert [lm.get_model_info()["compile"] for lm in (plain, compiled)] == [False, True]
    assert compiled.config == GenerationConfig(max_new_tokens=12, cache="prefix", refresh_every=2, seed=0)
    assert texts(compiled, PROMPTS) == texts(plain, PROMPTS)
    with pytest.raises(ValueError, match="compile needs a checkpoint by name"):
        UnmaskLM(tiny("llada_tiny"), compile=True)
    with pytest.raises(ValueError, match="compile must be True or False, got 'yes'"):
        UnmaskLM.create_from_arg_string(f"{arguments},compile=yes")


@needs_lm_eval
def test_without_cuda_only_a_device_that_was_asked_for_is_insisted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    folder = write_checkpoint(tmp_path / "llada", "llada_tiny")
    lm = UnmaskLM.create_from_arg_string(f"pretrained={folder}", {"device": "cuda:0"})
    assert lm.device.type != "cuda"
    for arguments, device in (
        (f"pretrained={folder},device=cuda:0", "cuda:0"),
        (f"pretrained={folder}", "cuda:1"),
    ):
        with raises_field("device", device):
            UnmaskLM.create_from_arg_string(arguments, {"device": "cuda:1"})


@needs_lm_eval
@pytest.mark.parametrize(
    ("arguments", "field", "value", "words"),
    [
        ("sampler=less", "model_args", {"sampler": "less"}, "pretrained=FOLDER"),
        ("pretrained=x,step=4", "step", 4, "did you mean 'steps'?"),
        ("pretrained=x,sampler=les", "sampler", "les", "did you mean 'less'?"),
        ("pretrained=x,sampler.windw=1", "windw", 1, "did you mean 'window'?"),
        ("pretrained=x,batch_size=auto", "batch_size", "auto", ">= 1"),
        ("pretrained=x,mc_num=0", "mc_num", 0, ">= 1"),
    ],
)
def test_wrong_arguments_are_refused_before_a_model_is_loaded(
    arguments: str, field: str, value: object, words: str
) -> None:
    with raises_field(field, value, words):
        UnmaskLM.create_from_arg_string(arguments)


@needs_lm_eval
def test_what_does_not_fit_the_model_is_refused() -> None:
    model = saying("abc")
    with raises_field("max_length", 5000, "4096"):
        UnmaskLM(model, max_length=5000)
    with raises_field("sampler.max_jsd", 0.1):
        UnmaskLM(model, sampler=LESS(), **{"sampler.max_jsd": 0.1})
    model.tokenizer = None  # type: ignore[assignment]
    with pytest.raises(ValueError, match="the model has no tokenizer"):
        UnmaskLM(model)


@needs_lm_eval
@pytest.mark.parametrize("chat", [False, True])
def test_an_instance_is_evaluated_on_both_kinds_of_task(tasks: Path, chat: bool) -> None:
    script = [*TOKENIZER.encode("abc;"), *[EOS] * 4]
    lm = UnmaskLM(Beginning(script), batch_size=2, mc_num=4, block_length="none")
    results = lm_eval.simple_evaluate(
        model=lm,
        tasks=TASKS,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        apply_chat_template=chat,
        bootstrap_iters=0,
    )
    assert results["results"]["local_generate"]["exact_match,none"] == 1.0
    assert results["results"]["local_choice"]["acc,none"] == 1.0
    assert results["results"]["local_choice"]["exact_match,none"] == 1.0
    assert results["config"]["mc_num"] == 4
    spent = results["config"]["spent"]
    assert spent["texts"] == 3
    assert 3 <= spent["forwards"] <= spent["steps"] <= 3 * 8


@needs_lm_eval
def test_the_command_runs_lm_eval_with_the_model_by_name(tasks: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "llada", "llada_tiny")
    arguments = f"pretrained={folder},sampler=less,max_new_tokens=8,mc_num=4,dtype=float32"
    command = ["--model", "unmask", "--model_args", arguments, "--batch_size", "2"]
    command += [
        "--tasks",
        ",".join(TASKS),
        "--include_path",
        str(tasks),
        "--output_path",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", OWN_TASKS_ALONE + MAIN, *command, "--log_samples"],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",  # lm-eval's own default is cuda:0
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    assert "local_generate" in done.stdout
    [file] = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(file.read_text(encoding="utf-8"))
    assert 0 <= results["results"]["local_choice"]["acc,none"] <= 1
    assert results["config"]["generation"]["max_new_tokens"] == 8
    [samples] = (tmp_path / "out").rglob("samples_local_choice_*.jsonl")
    sample = json.loads(samples.read_text(encoding="utf-8").splitlines()[0])
    model = tiny("llada_tiny")
    encode: Any = model.tokenizer.encode
    context = tuple(encode(sample["arguments"]["gen_args_0"]["arg_0"]))
    [expected] = log_likelihoods(model, [Pair(context, tuple(encode("abd")))], draws=4)
    assert float(sample["resps"][0][0][0]) == pytest.approx(expected, rel=1e-4)


@needs_lm_eval
def test_an_unknown_model_argument_ends_in_a_sentence_with_all_names(capsys, monkeypatch) -> None:
    from unmask.evals.harness_cli import main

    # lm-eval reads its thousands of tasks first, which takes longer than the test may
    short = partial(UnmaskLM.create_from_arg_string, "pretrained=mini-llada,smpler=less")
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", short)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    [sentence] = capsys.readouterr().err.splitlines()
    assert "smpler" in sentence
    assert "did you mean 'sampler'?" in sentence
    accepted = {name for name in signature(UnmaskLM).parameters if name not in IGNORED}
    assert accepted <= set(re.findall(r"[\w.]+", sentence.partition("available:")[2]))


def test_without_lm_eval_the_command_says_how_to_get_it() -> None:
    program = BLOCK.format(blocked={"lm_eval"}) + MAIN
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: this command needs lm-eval; pip install 'unmask[lm-eval]'\n"
