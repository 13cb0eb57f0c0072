"""Samplers of other code run on our models, and the released rules write the tokens of our samplers."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import unmask
from benchmarks import gpu
from benchmarks.reference import OtherSampler, PublishedModel
from benchmarks.released import RULES, released
from tests.conftest import GOLDENS
from unmask.models import load

# a sampler for a model of transformers: one mask after another, from left to right
SAMPLER = """
import torch


def fill(model, prompt, steps=8, gen_length=8, mask_id=None):
    x = torch.cat([prompt, prompt.new_full((1, gen_length), mask_id)], 1).to(model.device)
    for column in range(prompt.shape[1], x.shape[1]):
        x[0, column] = model(x, attention_mask=torch.ones_like(x)).logits[0, column].argmax()
    return x
"""
SIZES = {"steps": 16, "length": 32, "block": 16}
PROMPT = torch.tensor([[7, 42, 99, 5]])


@pytest.fixture
def written(tmp_path):
    def write(source: str, name: str = "other.py") -> str:
        (tmp_path / name).write_text(source)
        return str(tmp_path / name)

    return write


def test_a_function_of_a_file_samples_from_our_model(written):
    model = PublishedModel(load(GOLDENS / "llada_tiny"))
    tokens = OtherSampler.read(f"{written(SAMPLER)}:fill").call(model, PROMPT, **SIZES)
    assert tokens.shape == (1, 36)
    assert torch.equal(tokens[:, :4], PROMPT)
    assert model.config.mask_token_id not in tokens
    assert model.forwards == 32


def test_a_function_may_ask_for_a_tokenizer_first_and_for_arguments_of_its_own(written):
    source = (
        "def ask(model, tokenizer, ids, gen_length, alg, scale=1):\n    return ids, gen_length, alg, scale\n"
    )
    ids, length, *own = OtherSampler.read(f"{written(source)}:ask alg=klass scale=0.5").call(
        PublishedModel(load(GOLDENS / "llada_tiny")), PROMPT, **SIZES
    )
    assert torch.equal(ids, PROMPT)
    assert (length, own) == (32, ["klass", 0.5])


def test_a_file_can_import_modules_beside_it_and_one_folder_above(tmp_path, written):
    written("COUNT = 3\n", "shared_of_the_reference.py")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "deep.py").write_text(
        "from shared_of_the_reference import COUNT\n\ndef run(model, prompt):\n    return COUNT\n"
    )
    reference = OtherSampler.read(f"{tmp_path}/inside/deep.py:run")
    assert reference.call(PublishedModel(load(GOLDENS / "llada_tiny")), PROMPT, **SIZES) == 3


@pytest.mark.parametrize("family", ["llada_tiny", "dream_tiny"])
def test_logits_are_unaligned_as_in_the_published_code(family):
    model = load(GOLDENS / family)
    tokens = torch.tensor([[7, 42, 99, 5, 6, 8]])
    published = PublishedModel(model)
    logits = published(tokens, "full").logits
    with torch.no_grad():
        aligned = model(tokens, None, slice(2, 5), None)
    shift = 1 if published.shifted else 0
    torch.testing.assert_close(logits[:, 2 - shift : 5 - shift], aligned)


@pytest.mark.parametrize("family", ["llada_tiny", "dream_tiny"])
@pytest.mark.parametrize("name", RULES)
def test_the_released_rules_write_the_tokens_of_our_samplers(family, name):
    model = load(GOLDENS / family)
    reference = dict(zip(RULES, released(), strict=True))[name]
    tokens = reference.call(PublishedModel(model), PROMPT, **SIZES)
    info = model.info
    canvas = unmask.blank(PROMPT.tolist(), 32, mask_id=info.mask_id, pad_id=info.pad_id)
    blocks = unmask.plan(canvas.start, 32, steps=16, block_length=16)
    # the released code of LLaDA bans no token, knows no end and leaves masks where the budget is spent
    options = unmask.Options(banned_ids=(), stop_at_eos=False, fill_leftovers=False, schedule="linear")
    sampler = unmask.make_sampler("less-released" if name == "less" else name)
    assert torch.equal(tokens, unmask.decode(model, canvas, sampler, blocks, options).tokens)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("missing.py:fill", r"must be PATH\.py:FUNCTION with an existing file, got 'missing\.py:fill'"),
        ("", r"must be PATH\.py:FUNCTION"),
        ("{file}:absent", "has no function 'absent'"),
        ("{file}:fill alg", "must be NAME=VALUE, got 'alg'"),
    ],
)
def test_a_reference_that_names_no_function_is_refused(written, text, words):
    file = written(SAMPLER)
    with pytest.raises(ValueError, match=words):
        OtherSampler.read(text.format(file=file))


def test_a_file_that_cannot_be_imported_is_refused(written):
    with pytest.raises(
        ValueError, match=r"other\.py cannot be imported: No module named 'nowhere_to_be_found'"
    ):
        OtherSampler.read(f"{written('import nowhere_to_be_found')}:fill")


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("def f(model, prompt, depth): ...", ValueError, r"f needs depth, .* add depth=VALUE"),
        ("def f(model, prompt): return [][0]", RuntimeError, "f failed with IndexError: list index"),
    ],
)
def test_a_function_that_cannot_be_called_is_named(written, source, kind, words):
    reference = OtherSampler.read(f"{written(source)}:f")
    with pytest.raises(kind, match=words):
        reference.call(PublishedModel(load(GOLDENS / "llada_tiny")), PROMPT, **SIZES)


@pytest.mark.slow
def test_a_reference_is_timed_in_the_same_run(tmp_path, written):
    words = ["--small", "--families", "dream", "--ways", "eager", "--caches", "none", "--samplers", "less"]
    words += ["--out", str(tmp_path), "--reference", f"{written(SAMPLER)}:fill"]
    result = CliRunner().invoke(gpu.app, words)
    assert result.exit_code == 0, result.output
    assert "| Dream-7B: other.py:fill |" in result.output
    content = json.loads((tmp_path / "gpu.json").read_text())
    assert content["command"].startswith("python -m benchmarks.gpu --families dream")
    assert content["command"].endswith("--reference other.py:fill --small")
    assert content["families"]["dream"]["references"]["other.py:fill"]["forward_ms"] > 0


@pytest.mark.slow
def test_without_a_reference_the_released_rules_are_timed(tmp_path):
    words = ["--small", "--families", "llada", "--ways", "eager", "--caches", "none", "--samplers", "less"]
    result = CliRunner().invoke(gpu.app, [*words, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    timed = json.loads((tmp_path / "gpu.json").read_text())["families"]["llada"]["references"]
    assert list(timed) == [f"{name} as released, in plain torch" for name in RULES]
    for row in timed.values():  # a step is the difference of two runs, so its sign is open here
        assert row["forward_ms"] > 0
        assert isinstance(row["step_ms"], float)
