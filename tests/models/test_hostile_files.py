"""Checkpoints that were made to do harm: links out of the folder, sizes that no file holds, deep JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checkpoints import write_checkpoint
from tests.raises import raises_field
from unmask.models import load
from unmask.models.checkpoint.save import save

from .goldens import GOLDENS

INDEX = "model.safetensors.index.json"
SHARD = "model-00002-of-00002.safetensors"
DEEP = 100_000


@pytest.fixture
def llada(tmp_path: Path) -> Path:
    """A checkpoint of two shards, with a tokenizer, beside a folder of other files."""
    shutil.copytree(GOLDENS / "llada_tiny", tmp_path / "elsewhere")
    return write_checkpoint(tmp_path / "checkpoint", "llada_tiny")


def name_shard(folder: Path, name: str) -> None:
    index = folder / INDEX
    content = json.loads(index.read_text())
    content["weight_map"] = {
        tensor: name if file == SHARD else file for tensor, file in content["weight_map"].items()
    }
    index.write_text(json.dumps(content))


def snapshot(folder: Path, home: Path) -> Path:
    """Lay a checkpoint out as the hub's cache does: the files of a snapshot are links to blobs."""
    blobs, commit = home / "blobs", home / "snapshots" / "0123abcd"
    blobs.mkdir(parents=True)
    commit.mkdir(parents=True)
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, blobs / f"blob{number}")
        (commit / file.name).symlink_to(Path("../../blobs") / f"blob{number}")
    return commit


@pytest.mark.parametrize("up", ["../elsewhere/", "{parent}/elsewhere/", "x/../../elsewhere/"])
def test_an_index_names_no_file_outside_its_folder(llada: Path, up: str) -> None:
    name = up.format(parent=llada.parent) + SHARD
    name_shard(llada, name)
    with pytest.raises(ValueError, match="leads out of the checkpoint folder") as caught:
        load(llada, device="cpu")
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "loop"])
def test_a_name_that_no_file_can_have_is_a_sentence(llada: Path, name: str) -> None:
    (llada / "loop").symlink_to("loop")
    name_shard(llada, name)
    with pytest.raises(ValueError, match=str(llada)):
        load(llada, device="cpu")


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", INDEX, SHARD]
)
def test_no_file_is_a_link_out_of_the_folder(llada: Path, name: str) -> None:
    outside = llada.parent / "secret"
    outside.write_text("a private text")
    (llada / name).unlink(missing_ok=True)
    (llada / name).symlink_to(outside)
    with pytest.raises(ValueError, match=f"{name}.* leads out of") as caught:
        load(llada, device="cpu")
    assert "private" not in str(caught.value)


def test_a_template_is_no_link_out_of_the_folder(llada: Path) -> None:
    (llada / "chat_template.jinja").symlink_to(llada.parent / "elsewhere" / "config.json")
    with pytest.raises(ValueError, match=r"chat_template.jinja.* leads out of"):
        load(llada, device="cpu")


def test_saving_copies_no_link_out_of_the_folder(llada: Path, tmp_path: Path) -> None:
    model = load(llada, device="cpu")
    (llada / "added_tokens.json").symlink_to(tmp_path / "elsewhere" / "config.json")
    with pytest.raises(ValueError, match=r"added_tokens.json.* leads out of"):
        save(model, tmp_path / "copy")


def test_links_inside_the_folder_and_a_link_to_the_folder_work(llada: Path) -> None:
    (llada / "weights").mkdir()
    (llada / SHARD).rename(llada / "weights" / SHARD)
    (llada / SHARD).symlink_to(Path("weights") / SHARD)
    other = llada.parent / "other-name"
    other.symlink_to(llada)
    assert load(other, device="cpu").folder == other


def test_a_hub_snapshot_links_to_its_blobs(llada: Path, tmp_path: Path) -> None:
    folder = snapshot(llada, tmp_path / "hub" / "models--owner--name")
    loaded, expected = load(folder, device="cpu"), load(llada, device="cpu")
    assert torch.equal(loaded.embed.weight, expected.embed.weight)
    assert loaded.tokenizer is not None


def test_a_hub_snapshot_links_to_no_other_repository_and_no_borrowed_blobs(
    llada: Path, tmp_path: Path
) -> None:
    folder = snapshot(llada, tmp_path / "hub" / "models--owner--name")
    blobs = tmp_path / "hub" / "models--owner--name" / "blobs"
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(tmp_path / "elsewhere" / "config.json")
    with pytest.raises(ValueError, match=r"config.json.* leads out of"):
        load(folder, device="cpu")
    shutil.copy(tmp_path / "elsewhere" / "config.json", blobs / "config")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("../../blobs/config")
    load(folder, device="cpu")
    blobs.rename(tmp_path / "borrowed")
    blobs.symlink_to(tmp_path / "borrowed")
    with pytest.raises(ValueError, match="leads out of"):
        load(folder, device="cpu")


@pytest.mark.parametrize("source", ["owner/name@../../refs/main", "owner/..", "owner/name@a/../../b"])
def test_a_hub_id_has_no_way_up(source: str) -> None:
    with raises_field("source", source):
        load(source)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", SHARD])
def test_a_file_that_never_ends_is_not_opened(llada: Path, name: str) -> None:
    (llada / name).unlink()
    os.mkfifo(llada / name)
    with pytest.raises(ValueError, match=f"{name} is not a regular file"):
        load(llada, device="cpu")


def test_a_text_file_of_many_gigabytes_is_not_read(llada: Path) -> None:
    os.truncate(llada / "config.json", 1 << 40)  # takes no place on the disk
    with pytest.raises(ValueError, match=r"config.json has 1099511627776 bytes"):
        load(llada, device="cpu")


LOAD_IN_LITTLE_MEMORY = """
import resource, sys
import unmask.models.llada, unmask.models.dream, safetensors.torch
from unmask.models import load
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), -1))
resource.setrlimit(resource.RLIMIT_CPU, (int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + 4, -1))
for folder in sys.argv[1:]:
    try:
        load(folder, device="cpu")
    except ValueError as error:
        print(error)
"""
TOO_LARGE: list[tuple[str, dict[str, object]]] = [
    ("llada_tiny", {"d_model": 10**9}),
    ("llada_tiny", {"d_model": 10**18}),
    ("llada_tiny", {"n_layers": 10**6}),
    ("llada_tiny", {"n_layers": 10**12}),
    ("llada_tiny", {"mlp_hidden_size": None, "mlp_ratio": 10**400}),
    ("dream_tiny", {"hidden_size": 10**9}),
    ("dream_tiny", {"head_dim": 2 * 10**11}),
    ("dream_tiny", {"vocab_size": 10**12}),
    ("dream_tiny", {"num_attention_heads": 2**40, "num_key_value_heads": 2**40, "head_dim": 2**40}),
    ("dream_tiny", {"num_hidden_layers": 10**6}),
    ("dream_tiny", {"max_position_embeddings": 10**30}),
]


def test_sizes_that_no_file_holds_are_refused_without_time_and_memory(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(len(TOO_LARGE))]
    for folder, (name, fields) in zip(folders, TOO_LARGE, strict=True):
        shutil.copytree(GOLDENS / name, folder)
        config = folder / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    command = [sys.executable, "-c", LOAD_IN_LITTLE_MEMORY, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sentences = done.stdout.splitlines()
    assert len(sentences) == len(TOO_LARGE)
    assert all("config.json" in sentence for sentence in sentences)


def test_a_default_length_beyond_all_bounds_is_named(llada: Path) -> None:
    (llada / "generation_config.json").write_text(json.dumps({"max_new_tokens": 10**18}))
    with raises_field("max_new_tokens", 10**18):
        load(llada, device="cpu")


def nest(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


WAYS: dict[str, Callable[[int], str]] = {
    "objects": nest,
    "lists": lambda depth: '{"model_type": ' + "[" * depth + "]" * depth + "}",
}


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", INDEX])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [100, 940, DEEP])
def test_deep_json_is_a_sentence(llada: Path, name: str, way: str, depth: int) -> None:
    (llada / name).write_text(WAYS[way](depth))
    with pytest.raises(ValueError, match=name) as caught:
        load(llada, device="cpu")
    assert "\n" not in str(caught.value)


def test_a_number_of_many_digits_is_a_sentence(llada: Path) -> None:
    (llada / "config.json").write_text('{"d_model": ' + "9" * 5000 + "}")
    with pytest.raises(ValueError, match=r"config.json is not valid JSON"):
        load(llada, device="cpu")
