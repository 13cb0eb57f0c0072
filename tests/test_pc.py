"""PC: its score, and the token frequencies that it reads."""

from __future__ import annotations

import copy
import json
import math
import pickle
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.conftest import GOLDENS
from tests.fast.test_compile import started
from tests.raises import raises_field
from tests.toy import Toy, committed, log_probs, observe, predict, run, trail
from unmask import PC, TokenFrequency, make_sampler
from unmask.errors import FieldError
from unmask.serving.choices import choose
from unmask.serving.protocol import CompletionRequest, parse
from unmask.serving.settings import Settings
from unmask.trace import plain

NOW = predict(log_probs([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8]]))
COMMON = TokenFrequency(torch.tensor([0.05, 0.15, 0.8]))


def scores(sampler: PC) -> list[float]:
    return sampler.decide(observe(NOW)).signals["score"][0].tolist()


def test_the_score_is_confidence_by_rarity_by_place():
    expected = [
        -0.5 * math.log(0.05),
        -0.6 * math.log(0.15) * math.exp(-0.25),
        -0.8 * math.log(0.8) * math.exp(-0.5),
    ]
    assert scores(PC(frequencies=COMMON)) == pytest.approx(expected, abs=1e-6)


def test_no_token_scores_more_than_the_maximum_before_its_place_counts():
    expected = [0.5, 0.5 * math.exp(-0.25), -0.8 * math.log(0.8) * math.exp(-0.5)]
    assert scores(PC(frequencies=COMMON, max_score=0.5)) == pytest.approx(expected, abs=1e-6)


def test_without_frequencies_all_tokens_are_equally_common():
    uniform = TokenFrequency(torch.full((3,), 1 / 3))
    assert scores(PC()) == pytest.approx(scores(PC(frequencies=uniform)), abs=1e-6)
    assert scores(PC(position_weight=0)) == pytest.approx(
        [c * math.log(3) for c in (0.5, 0.6, 0.8)], abs=1e-6
    )


def test_the_schedule_says_how_many_and_the_score_which():
    assert committed(PC(position_weight=0).decide(observe(NOW, quota=2))) == ".xx"
    assert committed(PC(frequencies=COMMON).decide(observe(NOW, quota=2))) == "xx."
    assert committed(PC(frequencies=COMMON).decide(observe(NOW, quota=1, active=".mm"))) == ".x."
    assert committed(PC().decide(observe(NOW, quota=0))) == "..."


def test_a_drawn_token_is_scored_by_its_own_probability_and_frequency():
    decision = PC(frequencies=COMMON, position_weight=0).decide(observe(NOW, drawn=torch.tensor([[1, 1, 0]])))
    expected = [-0.3 * math.log(0.15), -0.6 * math.log(0.15), -0.1 * math.log(0.05)]
    assert decision.signals["score"][0].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_place_is_counted_from_the_start_of_each_block():
    _, steps = trail(Toy(eos_ids=()), PC(), length=8, block_length=4)
    for step in steps:
        factor = step.decision.signals["score"] / step.decision.signals["confidence"] / math.log(12)
        expected = [math.exp(-0.25 * offset) for offset in range(4)]
        assert factor[0].tolist() == pytest.approx(expected, abs=1e-4)


def test_far_to_the_right_where_the_score_is_zero_confidence_still_counts():
    now = predict(log_probs([[0.5, 0.5]] * 600 + [[0.5, 0.5], [0.9, 0.1]]))
    decision = PC().decide(observe(now, active="." * 600 + "mm"))
    assert decision.signals["score"][0, 600:].tolist() == [0, 0]
    assert committed(decision).endswith(".x")


def test_frequencies_of_another_vocabulary_are_refused():
    with raises_field("frequencies", COMMON, "12"):
        run(Toy(), PC(frequencies=COMMON))


def test_counting_gives_unseen_tokens_one_occurrence():
    counted = TokenFrequency.count([1, 1, 1, 2], vocab_size=4)
    assert counted.on(torch.device("cpu")).tolist() == pytest.approx([0.25, 0.75, 0.25, 0.25])
    assert counted == TokenFrequency.count(torch.tensor([[1, 2], [1, 1]]), 4)


@pytest.mark.parametrize("ids", [[], [4], [-1]])
def test_only_tokens_of_the_vocabulary_can_be_counted(ids):
    with raises_field("ids", ids):
        TokenFrequency.count(ids, vocab_size=4)


@pytest.mark.parametrize(
    "values",
    [[0.5], torch.ones(2, 2), torch.tensor([1, 0]), torch.tensor([0.5, math.nan]), torch.tensor([-0.1])],
)
def test_only_frequencies_are_frequencies(values):
    with raises_field("values", values):
        TokenFrequency(values)


def test_a_file_of_bad_frequencies_is_refused_for_their_values(tmp_path):
    path = tmp_path / "frequencies.safetensors"
    COMMON.save(path)
    path.write_bytes(path.read_bytes()[:-4] + struct.pack("<f", -1))
    with raises_field("values"):
        TokenFrequency.load(path)


def test_frequencies_are_values():
    same, other = (
        TokenFrequency(torch.tensor([0.05, 0.15, 0.8])),
        TokenFrequency(torch.tensor([0.05, 0.15, 0.7])),
    )
    assert same == COMMON
    assert other != COMMON
    assert COMMON != 3
    assert hash(PC(frequencies=COMMON)) == hash(PC(frequencies=same))
    assert PC(frequencies=COMMON) != PC(frequencies=other)
    for again in (copy.deepcopy(COMMON), pickle.loads(pickle.dumps(COMMON))):
        assert again == COMMON
        assert again.on(torch.device("cpu")).tolist() == COMMON.on(torch.device("cpu")).tolist()


def test_changing_the_tensor_they_were_made_of_changes_nothing():
    values = torch.tensor([0.25, 0.75])
    made = TokenFrequency(values)
    values.zero_()
    assert made.on(torch.device("cpu")).tolist() == [0.25, 0.75]


def test_frequencies_are_saved_as_safetensors_and_loaded(tmp_path):
    COMMON.save(tmp_path / "words.safetensors")
    assert TokenFrequency.load(tmp_path / "words.safetensors") == COMMON
    values = load_file(tmp_path / "words.safetensors")["frequencies"]
    assert TokenFrequency(values) == COMMON
    save_file({"other": torch.ones(5), "frequencies": values}, tmp_path / "both.safetensors")
    assert TokenFrequency.load(tmp_path / "both.safetensors") == COMMON


@pytest.mark.parametrize("content", [b"", b"12345678", b"PK" * 40, b"\x02" + b"\0" * 7 + b"{}", b"\xff" * 99])
def test_a_file_without_frequencies_is_refused(content, tmp_path):
    (tmp_path / "other").write_bytes(content)
    save_file({"frequencies": torch.ones(5).long()}, tmp_path / "whole_numbers")
    for path in (tmp_path / "other", tmp_path / "whole_numbers"):
        with raises_field("path", str(path)):
            TokenFrequency.load(path)


def test_a_sampler_with_frequencies_can_be_written_down():
    written = json.dumps(plain(PC(frequencies=COMMON)))
    assert written == json.dumps(plain(PC(frequencies=TokenFrequency(COMMON.on(torch.device("cpu"))))))
    assert written != json.dumps(plain(PC()))


def chosen(**fields):
    request = parse(CompletionRequest, {"prompt": "hello", "sampler": "pc", "sampler_fields": fields})
    return choose(request, Settings()).sampler


@pytest.mark.parametrize("value", ["words.safetensors", [0.5, 0.5], {"path": "words.safetensors"}, 3])
def test_a_request_cannot_name_frequencies(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    COMMON.save("words.safetensors")
    with pytest.raises(FieldError) as caught:
        chosen(frequencies=value)
    assert caught.value.field == "sampler_fields.frequencies"


def test_a_request_can_change_the_other_fields():
    assert chosen(position_weight=0.5, frequencies=None) == PC(position_weight=0.5)


def test_a_compiled_model_reads_the_frequencies_too(traced):
    frequencies = TokenFrequency.count(range(7, 200), vocab_size=512)
    sampler = make_sampler("pc", frequencies=frequencies)
    results = []
    for model in (unmask.load(GOLDENS / "llada_tiny", device="cpu", dtype="float32"), started("llada_tiny")):
        canvas = unmask.blank([[7, 42, 99], [5, 6]], 16, mask_id=model.info.mask_id, pad_id=model.info.pad_id)
        blocks = unmask.plan(canvas.start, 16, steps=16, block_length=8)
        results.append(unmask.decode(model, canvas, sampler, blocks).tokens)
    assert torch.equal(*results)
