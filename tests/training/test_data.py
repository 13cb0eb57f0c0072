"""Rows without padding, batches by length, the same data whoever asks and however often."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice

import pytest
import torch

from tests.training.toy import TEMPLATE, ToyItem, recipe_table, write_tokenizer
from unmask.models.text.tokens import Tokenizer
from unmask.training.data import (
    BatchStream,
    DataSpec,
    DrawnItems,
    Encoder,
    FileItems,
    Layout,
    Phase,
    open_source,
    read_pairs,
    validation_batches,
)
from unmask.training.loader import Batch, Loader, StreamSpec
from unmask.training.recipe import parse

CPU = torch.device("cpu")
LAYOUT = Layout((14, 16), 9, 4)


@pytest.fixture
def folder(tmp_path):
    return write_tokenizer(tmp_path / "tokenizer")


@pytest.fixture
def spec() -> DataSpec:
    return parse(DataSpec, recipe_table()["data"], "data")


def stream_spec(folder, spec: DataSpec, **changes) -> StreamSpec:
    made = StreamSpec(data=spec, tokenizer=str(folder), seed=5, batch_size=4, total=400)
    return replace(made, **changes)


def stream(folder, spec: DataSpec, **changes) -> BatchStream:
    encoder = Encoder(Tokenizer.from_folder(folder))
    return BatchStream(open_source(spec, seed=5, total=400), encoder, LAYOUT, **changes)


def test_a_row_is_prompt_answer_and_end_tokens_only(folder, spec):
    tokenizer = Tokenizer.from_folder(folder)
    end, mask = tokenizer.special.ends[0], tokenizer.special.mask
    for packed in islice(stream(folder, spec).batches(), 10):
        batch = Batch.unpack(packed, CPU)
        assert batch.tokens.shape == (4, packed.columns)
        assert packed.columns in (14, 16)
        for row, prompt, answer in zip(batch.tokens, batch.prompts, batch.answers, strict=True):
            assert packed.columns - prompt >= 9
            assert batch.window.start <= prompt
            assert tokenizer.decode(row[:prompt], skip_special=False).startswith("<user>")
            assert row[prompt + answer - 1] == end
            assert (row[prompt + answer :] == end).all()
            assert (row[: prompt + answer - 1] != end).all()
            assert mask not in row


def test_prompts_are_tokenised_as_a_chat_is_when_it_is_decoded(folder):
    tokenizer = Tokenizer.from_folder(folder)
    items = [ToyItem("copy a b", "a b"), ToyItem(" copy c ", "c")]
    for item, row in zip(items, Encoder(tokenizer).rows(items), strict=True):
        assert row.prompt == tokenizer.chat([{"role": "user", "content": item.prompt}])


def test_templates_that_trim_and_tokenizers_without_one_are_followed(tmp_path):
    trimming = write_tokenizer(
        tmp_path / "trim", template=TEMPLATE.replace("m['content']", "m['content'] | trim")
    )
    plain = write_tokenizer(tmp_path / "plain", template=None)
    [row] = Encoder(Tokenizer.from_folder(trimming)).rows([ToyItem("  copy a  ", "a")])
    assert row.prompt == Tokenizer.from_folder(trimming).encode("<user>copy a<bot>")
    [row] = Encoder(Tokenizer.from_folder(plain)).rows([ToyItem("copy a", "a")])
    assert row.prompt == Tokenizer.from_folder(plain).encode("copy a")


def test_buckets_follow_the_prompt_and_refuse_what_does_not_fit(folder):
    encoder = Encoder(Tokenizer.from_folder(folder))

    def bucket(prompt: int, answer: int) -> int | None:
        [row] = encoder.rows([ToyItem(" ".join("a" * (prompt - 2)), " ".join("b" * (answer - 1)))])
        return LAYOUT.bucket(row)

    assert [bucket(3, 2), bucket(5, 9), bucket(6, 2), bucket(7, 9)] == [0, 0, 1, 1]
    assert [bucket(8, 2), bucket(5, 10)] == [None, None]
    assert [LAYOUT.window_start(0), LAYOUT.window_start(1)] == [1, 6]


def test_a_stream_goes_on_from_any_position(folder, spec):
    whole = list(islice(stream(folder, spec).batches(), 40))
    assert any(packed.position[1] for packed in whole)  # some items wait in a bucket
    for cut in (0, 25, 33):
        rest = stream(folder, spec).batches(whole[cut].position)
        assert list(islice(rest, 39 - cut)) == whole[cut + 1 :]


def test_an_item_depends_on_its_number_and_the_seed_alone(spec):
    first, again, other = (open_source(spec, seed=seed, total=400) for seed in (5, 5, 6))
    items = [first.item(i) for i in range(90, 150)]
    assert [again.item(i) for i in reversed(range(90, 150))] == items[::-1]
    assert [other.item(i) for i in range(90, 150)] != items
    assert len(set(items)) > 40


def test_phases_change_the_mix_with_the_share_of_items(spec):
    source = open_source(spec, seed=5, total=400)
    tasks = [source.item(i).prompt.split()[0] for i in range(400)]
    assert set(tasks[:80]) == {"copy"}
    assert 0.5 < tasks[80:].count("double") / 320 < 0.8


def test_workers_share_the_items_and_take_turns(folder, spec):
    spec = replace(spec, workers=2)
    singles = [stream(folder, spec, worker=worker, workers=2).batches() for worker in (0, 1)]
    with Loader(stream_spec(folder, spec), CPU) as loader:
        seen = [next(loader) for _ in range(6)]
        positions, turn = list(loader.positions), loader.turn
        later = [next(loader).tokens for _ in range(3)]
    for number, batch in enumerate(seen):
        assert batch.tokens.equal(Batch.unpack(next(singles[number % 2]), CPU).tokens)
    with Loader(stream_spec(folder, spec), CPU, positions=positions, turn=turn) as loader:
        for expected in later:
            assert next(loader).tokens.equal(expected)


def test_a_failing_worker_is_reported(folder, spec, capfd):
    broken = replace(spec, source="tests.training.toy:fail", workers=1)
    with (
        Loader(stream_spec(folder, broken), CPU) as loader,
        pytest.raises(RuntimeError, match="data worker 0 ended with exit code 1"),
    ):
        next(loader)
    assert "nothing to draw" in capfd.readouterr().err


def test_a_source_that_does_not_fit_is_refused(folder, spec):
    tight = Layout((10,), 9, 4)
    with pytest.raises(ValueError, match="items do not fit into rows of 10 columns"):
        next(
            BatchStream(
                open_source(spec, seed=5, total=9), Encoder(Tokenizer.from_folder(folder)), tight
            ).batches()
        )


def test_pairs_come_once_per_epoch_and_keep_validation_apart(tmp_path, spec):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}", "answer": f"a{i}"}) + "\n" for i in range(20)))
    source = FileItems(path, replace(spec, source=str(path)), seed=1)
    assert source.held_out == 2
    epochs = [[source.item(i + 18 * epoch).prompt for i in range(18)] for epoch in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]
    assert not {source.validation(i).prompt for i in range(2)} & set(epochs[0])
    assert isinstance(open_source(replace(spec, source=str(path)), seed=1, total=9), FileItems)


def test_broken_pairs_name_their_line(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "a"}\n')
    with pytest.raises(ValueError, match="line 2 must be"):
        read_pairs(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="line 1 is not valid JSON"):
        read_pairs(path)


def test_validation_rows_are_fixed_and_all_there(folder, spec):
    encoder = Encoder(Tokenizer.from_folder(folder))
    batches = validation_batches(open_source(spec, seed=5, total=400), encoder, LAYOUT)
    assert sum(len(packed.prompts) for packed in batches) == 32
    assert batches == validation_batches(open_source(spec, seed=5, total=400), encoder, LAYOUT)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": (16, 14)}, "rising order"),
        ({"canvas": 14}, "leave room for a prompt"),
        ({"phases": (Phase(until=0.5, shares={"copy": 1}),)}, "end at 1"),
    ],
)
def test_data_specs_refuse_what_cannot_work(spec, fields, message):
    with pytest.raises(ValueError, match=message):
        replace(spec, **fields)


def test_a_function_source_needs_phases(spec):
    with pytest.raises(ValueError, match=r"data\.phases must say what to draw"):
        DrawnItems(lambda rng, shares: ToyItem("a", "b"), replace(spec, phases=()), seed=0, total=1)
