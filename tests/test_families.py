"""Every newer family from a checkpoint folder to text: Python, commands, server, traces, scores."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from typer.testing import CliRunner

from tests.checkpoints import write_tokenizer
from tests.evals.conftest import PARITY
from tests.raises import raises_field
from unmask import Gap, GenerationConfig, generate, infill, load, make_sampler, stream
from unmask.cli.app import app
from unmask.evals import evaluate
from unmask.evals.likelihood import Pair, greedily_decoded, log_likelihoods
from unmask.evals.records import Record, read_lines
from unmask.models import random_checkpoint
from unmask.models.trunk import Trunk
from unmask.serving import Engine
from unmask.trace import count, read_trace, replay
from unmask.types import Sampler

SIZES = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "mask_token_id": 510,
    "eos_token_id": 501,
    "pad_token_id": 501,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}
QWEN3_EXPERTS = {**EXPERTS, "moe_intermediate_size": 16}
LLADA2 = {
    **QWEN3_EXPERTS,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "num_shared_experts": 1,
}
CONFIGS: dict[str, dict[str, object]] = {
    "sdar": {"model_type": "sdar", "architectures": ["SDARForCausalLM"], "block_size": 4},
    "sdar-moe": {
        "model_type": "sdar_moe",
        "architectures": ["SDARMoeForCausalLM"],
        "block_size": 4,
        **QWEN3_EXPERTS,
    },
    "llada2": {"model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"], "block_size": 8, **LLADA2},
    "bd3lm": {"model_type": "a2d-qwen3", "architectures": ["A2DQwen3LMHeadModel"], "block_size": 4},
    "fast-dllm": {
        "model_type": "Fast_dLLM_Qwen",
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "bd_size": 8,
    },
    "mdlm": {"model_type": "a2d-qwen3", "architectures": ["A2DQwen3LMHeadModel"]},
    "llada-moe": {
        "model_type": "llada",
        "architectures": ["LLaDAMoEModelLM"],
        "num_key_value_heads": 4,
        "expert_intermediate_size": 16,
        **EXPERTS,
    },
    "rnd1": {"model_type": "rnd1", "architectures": ["RND1LM"], **QWEN3_EXPERTS},
}
BLOCKS = ["sdar", "sdar-moe", "llada2", "bd3lm", "fast-dllm"]
# each family's official generation
PRESETS = {
    "sdar": "sdar",
    "sdar-moe": "sdar-static",
    "llada2": "llada2.1",
    "bd3lm": "base",
    "fast-dllm": "fast-dllm-v2",
    "mdlm": "base",
    "llada-moe": "base",
    "rnd1": "base",
}
PROMPTS = ["tell me", "a longer prompt than the others", "x", "one two three four"]
SHORT = GenerationConfig(max_new_tokens=11)
every_family = pytest.mark.parametrize("family", CONFIGS)
every_block_family = pytest.mark.parametrize("family", BLOCKS)


@cache
def folder(family: str) -> Path:
    place = Path(mkdtemp()) / family
    random_checkpoint({**SIZES, **CONFIGS[family]}, place, dtype=torch.float32)
    write_tokenizer(place, "dream_tiny")
    return place


@cache
def model(family: str) -> Trunk:
    return load(folder(family), device="cpu")


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def served(own: Trunk, prompts: list[str], sampler: Sampler, config: GenerationConfig) -> list[str]:
    engine = Engine(own, exact=True)  # else rounding may change a text
    engine.start()
    try:
        jobs = [engine.submit(prompt, sampler, config) for prompt in prompts]
        return [job.result(timeout=60).text for job in jobs]
    finally:
        engine.close()


@every_family
def test_a_batch_a_stream_and_the_server_write_what_one_prompt_gets_alone(family: str) -> None:
    own, sampler = model(family), make_sampler(PRESETS[family])
    batch = generate(own, PROMPTS, sampler, SHORT)
    assert [generate(own, [prompt], sampler, SHORT)[0] for prompt in PROMPTS] == batch
    for prompt, answer in zip(PROMPTS, batch, strict=True):
        chunks = list(stream(own, prompt, sampler, SHORT))
        assert "".join(chunk.text for chunk in chunks) == answer.text
        assert chunks[-1].generation == answer
    assert served(own, PROMPTS, sampler, SHORT) == [answer.text for answer in batch]


@every_family
def test_the_command_writes_the_same_and_its_trace_replays(family: str, tmp_path: Path) -> None:
    name, file = PRESETS[family], tmp_path / "run.jsonl"
    flags = ("-m", folder(family), "-s", name, "-n", 11, "--raw", "--json", "--trace", file)
    lines = [json.loads(line) for line in call("generate", *PROMPTS, *flags).splitlines()]
    answers = generate(model(family), PROMPTS, make_sampler(name), SHORT)
    assert [line["text"] for line in lines] == [answer.text for answer in answers]
    trace = read_trace(file)
    for row, answer in enumerate(answers):
        first = trace.header.canvas[row].index(510)
        assert replay(trace)[row][first : first + len(answer.token_ids)] == list(answer.token_ids)
        counts = count(trace, row)
        assert (counts.steps, counts.forwards) == (answer.steps, answer.forwards)
        assert replay(trace)[row][:first] == trace.header.canvas[row][:first]
    assert "tell me" not in call("trace", file)


@pytest.mark.slow
@every_block_family
@pytest.mark.parametrize(
    "config",
    [GenerationConfig(guidance=1.0, stop=("e", "a", "o", "s")), GenerationConfig(next_block_at=0.5)],
    ids=["guidance", "overlapping"],
)
def test_rows_do_not_depend_on_each_other(family: str, config: GenerationConfig) -> None:
    own, sampler, prompts = model(family), make_sampler("less"), [*PROMPTS, *"abcd"]
    config = replace(config, max_new_tokens=12)
    batch = generate(own, prompts, sampler, config)
    assert [generate(own, [prompt], sampler, config)[0] for prompt in prompts] == batch
    assert generate(own, prompts, sampler, replace(config, cache="none")) == batch
    assert served(own, prompts, sampler, config) == [answer.text for answer in batch]


@every_block_family
def test_a_gap_in_front_of_a_text_is_refused_before_any_forward(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = model(family)
    monkeypatch.setattr(Trunk, "hidden_states", None)
    with raises_field("model", type(own).__name__):
        infill(own, ["a", Gap(3), "b"])
    engine = Engine(own)
    with raises_field("model", type(own).__name__):
        engine.submit_infill("a [[gap 3]] b", make_sampler("less"), GenerationConfig())
    result = CliRunner().invoke(app, ["infill", "-m", str(folder(family)), "a [[gap 3]] b"])
    assert result.exit_code == 2
    assert "attends by blocks" in result.output


@pytest.mark.parametrize("family", [name for name in CONFIGS if name not in BLOCKS])
def test_a_family_with_full_attention_fills_gaps(family: str) -> None:
    made = infill(model(family), ["a", Gap(3), "b"])
    assert made.text.startswith("a")
    assert made.text.endswith("b")


@every_family
def test_likelihoods_do_not_depend_on_the_batch(family: str) -> None:
    pairs = [Pair((5, 6, 7), tuple(range(9))), Pair((9, 8, 7, 6, 5, 4), (3, 2)), Pair((1,), (2,) * 9)]
    alone = [log_likelihoods(model(family), [pair], draws=4)[0] for pair in pairs]
    assert log_likelihoods(model(family), pairs, draws=4) == pytest.approx(alone, abs=1e-3)


@pytest.mark.parametrize("family", ["sdar", "sdar-moe"])
def test_a_block_is_scored_after_the_text_before_it(family: str) -> None:
    own, context = model(family), (5, 6, 7)  # the next token completes a block of 4
    [whole, first, second] = log_likelihoods(
        own, [Pair(context, (8, 9)), Pair(context, (8,)), Pair((*context, 8), (9,))], draws=1
    )
    assert whole == pytest.approx(first + second, abs=1e-4)


@pytest.mark.parametrize(
    ("family", "length"), [("sdar", 13), ("sdar-moe", 13), ("llada2", 13), ("bd3lm", 16)]
)
def test_an_answer_that_base_writes_is_greedy(family: str, length: int) -> None:
    config = GenerationConfig(max_new_tokens=length, stop_at_eos=False)
    contexts = [(first, 6, 7) for first in range(20)]
    answers = generate(model(family), [list(context) for context in contexts], make_sampler("base"), config)
    pairs = [Pair(context, answer.token_ids) for context, answer in zip(contexts, answers, strict=True)]
    whole = [pair for pair in pairs if len(pair.answer) == length]
    assert whole
    assert all(greedily_decoded(model(family), whole))
    others = [Pair(pair.context, (*pair.answer[:-1], 1 + pair.answer[-1] % 400)) for pair in whole]
    assert not any(greedily_decoded(model(family), others))


@every_family
def test_an_evaluation_and_lm_eval_read_the_same_texts(family: str, tmp_path: Path) -> None:
    own = model(family)
    evaluate(own, PARITY, out=tmp_path, batch_size=5)
    records = {record.id: record.text for record in read_lines(tmp_path / "records.jsonl", Record)}
    samples = PARITY.load(None)
    answers = generate(own, [sample.prompt for sample in samples], config=GenerationConfig(max_new_tokens=8))
    assert [records[sample.id] for sample in samples] == [answer.text for answer in answers]
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance

    from unmask.evals.harness import UnmaskLM

    lm = UnmaskLM(own, sampler="less", batch_size=3, max_new_tokens=8, mc_num=2)
    ask = [Instance("generate_until", {}, (sample.prompt, {}), 0) for sample in samples]
    assert len(lm.generate_until(ask)) == len(samples)
    [(score, _)] = lm.loglikelihood([Instance("loglikelihood", {}, ("one", " two three"), 0)])
    assert score < 0
