"""Saving: the published layout and names, one shard at a time, and the same model back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tests.checkpoints import write_checkpoint
from tests.raises import raises_field
from unmask.fast.compile import compile
from unmask.models import load, random_checkpoint, random_model, save
from unmask.models.trunk import Trunk

from .goldens import GOLDENS


def published(folder: Path) -> dict[str, tuple[list[int], str]]:
    """Shape and dtype of every stored tensor by its published name."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as shard:
            for key in shard.keys():  # noqa: SIM118 - a safetensors file is no mapping
                part = shard.get_slice(key)
                found[key] = part.get_shape(), part.get_dtype()
    return found


@pytest.mark.parametrize("shard_bytes", [60_000, 5_000_000_000])
def test_a_saved_model_comes_back_the_same(model: Trunk, tmp_path: Path, shard_bytes: int) -> None:
    save(model, tmp_path / "copy", shard_bytes=shard_bytes)
    again = load(tmp_path / "copy", device="cpu")
    assert again.info == model.info
    assert again.shape == model.shape
    state = again.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["llada_tiny", "dream_calm_tiny"])
def test_the_files_have_the_published_names_and_dtype(name: str, tmp_path: Path) -> None:
    save(load(GOLDENS / name, device="cpu", dtype="bfloat16"), tmp_path)
    assert published(tmp_path) == published(GOLDENS / name)
    config, original = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path, GOLDENS / name)
    )
    assert config == original | {"torch_dtype": "bfloat16"}


def test_shards_stay_within_their_size_and_the_index_names_them(family: Trunk, tmp_path: Path) -> None:
    save(family, tmp_path, shard_bytes=150_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert {file.name for file in files} == set(index["weight_map"].values())
    assert all(file.stat().st_size < 160_000 for file in files)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in family.state_dict().values())


def test_a_single_shard_has_no_index(family: Trunk, tmp_path: Path) -> None:
    save(family, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("config.json", "generation_config.json", "model.safetensors")
    }


@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny"])
def test_a_saved_model_keeps_its_tokenizer_its_chat_and_its_length(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "original", name)
    settings = folder / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"max_new_tokens": 33}))
    (folder / "README.md").write_text("weights of the original")
    (folder / "modeling.py").write_text("raise SystemExit")
    model = load(folder, device="cpu")
    save(model, tmp_path / "copy")
    again = load(tmp_path / "copy", device="cpu")
    assert again.info == model.info
    assert again.info.new_tokens == 33
    assert model.tokenizer is not None
    assert again.tokenizer is not None
    chat = [{"role": "user", "content": "hello"}]
    assert again.tokenizer.chat(chat) == model.tokenizer.chat(chat)
    assert again.tokenizer.special == model.tokenizer.special
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    }


def test_a_separate_chat_template_is_saved_too(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "original", "llada_tiny")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}!")
    save(load(folder, device="cpu"), tmp_path / "copy")
    tokenizer = load(tmp_path / "copy", device="cpu").tokenizer
    assert tokenizer is not None
    assert tokenizer.render_chat([{"role": "user", "content": "hello"}]) == "hello!"


def test_a_model_is_saved_where_its_tokenizer_already_lies(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path / "original", "llada_tiny"), device="cpu")
    for file in (tmp_path / "original").glob("model*"):
        file.unlink()
    save(model, tmp_path / "original")
    assert load(tmp_path / "original", device="cpu").tokenizer is not None


def test_replaced_end_tokens_are_saved(tmp_path: Path) -> None:
    model = load(GOLDENS / "llada_tiny", device="cpu")
    model.info = replace(model.info, eos_ids=(500, 498))
    save(model, tmp_path)
    assert load(tmp_path, device="cpu").info.eos_ids == (500, 498)


def test_an_end_token_that_was_taken_away_does_not_come_back(tmp_path: Path) -> None:
    model = load(GOLDENS / "llada_tiny", device="cpu")
    model.info = replace(model.info, eos_ids=(498,))
    save(model, tmp_path)
    assert load(tmp_path, device="cpu").info.eos_ids == (498,)


def test_a_folder_with_weights_is_not_overwritten(family: Trunk, tmp_path: Path) -> None:
    save(family, tmp_path)
    with pytest.raises(ValueError, match="already holds weights; choose an empty folder"):
        save(family, tmp_path)


def test_a_random_checkpoint_has_the_published_layout(family: Trunk, tmp_path: Path) -> None:
    random_checkpoint(family.config, tmp_path, shard_bytes=100_000)
    expected = {family.publish(name): list(tensor.shape) for name, tensor in family.state_dict().items()}
    assert {key: shape for key, (shape, _) in published(tmp_path).items()} == expected
    assert {dtype for _, dtype in published(tmp_path).values()} == {"BF16"}
    logits = load(tmp_path, device="cpu")(torch.arange(16)[None], None, slice(0, 16), None)
    assert logits.isfinite().all()


def test_random_weights_depend_on_the_seed_and_not_on_the_shards(family: Trunk, tmp_path: Path) -> None:
    for name, options in {"a": {}, "b": {"shard_bytes": 90_000}, "c": {"seed": 1}}.items():
        random_checkpoint(family.config, tmp_path / name, **options)
    first, resharded, reseeded = (load(tmp_path / name, device="cpu").state_dict() for name in "abc")
    assert all(torch.equal(first[name], resharded[name]) for name in first)
    assert not torch.equal(first["embed.weight"], reseeded["embed.weight"])


def test_a_compiled_model_is_saved_like_any_other(tmp_path: Path) -> None:
    model = load(GOLDENS / "dream_tiny", device="cpu")
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save(compile(model, layers=False), tmp_path / "copy")
    state = load(tmp_path / "copy", device="cpu").state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in expected.items())


@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny"])
def test_a_random_model_is_what_a_random_checkpoint_holds(name: str, tmp_path: Path) -> None:
    config = json.loads((GOLDENS / name / "config.json").read_text())
    random_checkpoint(config, tmp_path / "drawn", seed=3)
    stored = load(tmp_path / "drawn", device="cpu", dtype="bfloat16")
    made = random_model(config, seed=3)
    assert made.info == stored.info
    assert all(torch.equal(tensor, stored.state_dict()[key]) for key, tensor in made.state_dict().items())


@pytest.mark.parametrize(("field", "value"), [("folder", ""), ("shard_bytes", 0)])
def test_a_wrong_argument_of_save_is_named(family: Trunk, tmp_path: Path, field: str, value: object) -> None:
    with raises_field(field, value):
        save(family, **{"folder": tmp_path / "out", field: value})  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_saved_weights_can_be_read_by_whoever_may_read_other_new_files(family: Trunk, tmp_path: Path) -> None:
    (other := tmp_path / "other").touch()
    save(family, tmp_path / "copy")
    assert {file.stat().st_mode for file in (tmp_path / "copy").iterdir()} == {other.stat().st_mode}


def test_a_file_is_no_place_to_save_into(family: Trunk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with raises_field("folder", str(tmp_path / "file")):
        save(family, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
