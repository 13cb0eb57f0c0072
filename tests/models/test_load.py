"""Loading: from folders and the hub, in any dtype, and the sentence that every broken checkpoint gets."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.raises import raises_field
from unmask.models import load
from unmask.models.trunk import Trunk

from .goldens import GOLDENS

Copy = Callable[[str], Path]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A writable copy of a tiny checkpoint."""
    return lambda name: Path(shutil.copytree(GOLDENS / name, tmp_path / name))


def edit_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def refuses(source: str | Path, *parts: str, **options: str) -> None:
    """Loading fails with one sentence that has all these parts."""
    with pytest.raises(ValueError, match="(?s)" + ".*".join(map(re.escape, parts))) as caught:
        load(source, **options)
    assert "\n" not in str(caught.value)


def test_info_comes_from_the_checkpoints_own_files() -> None:
    llada, dream = load(GOLDENS / "llada_tiny").info, load(GOLDENS / "dream_tiny").info
    assert (llada.mask_id, llada.eos_ids, llada.pad_id, llada.max_length) == (509, (500,), 500, 4096)
    assert (dream.mask_id, dream.eos_ids, dream.pad_id, dream.max_length) == (510, (501,), 501, 131072)
    assert (llada.block_length, llada.schedule) == (64, "linear")
    assert (dream.block_length, dream.schedule) == (None, "dream")


def test_end_tokens_of_both_configs_are_kept(copy: Copy) -> None:
    folder = copy("dream_tiny")
    (folder / "generation_config.json").write_text('{"eos_token_id": [501, 77], "mask_token_id": null}')
    assert load(folder).info.eos_ids == (501, 77)


def test_a_missing_mask_id_comes_from_the_generation_config(copy: Copy) -> None:
    folder = copy("dream_tiny")
    edit_config(folder, mask_token_id=None)
    (folder / "generation_config.json").write_text('{"mask_token_id": 510}')
    assert load(folder).info.mask_id == 510


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16, "float32"])
def test_a_dtype_may_be_a_name_or_a_torch_dtype(dtype: str | torch.dtype) -> None:
    model = load(GOLDENS / "dream_tiny", device="cpu", dtype=dtype)
    assert {f"{p.dtype}" for p in model.parameters()} == {f"torch.{dtype}".replace("torch.torch.", "torch.")}


def test_auto_means_float32_on_the_cpu() -> None:
    assert load(GOLDENS / "llada_tiny", device="cpu").embed.weight.dtype == torch.float32


def test_a_loaded_model_is_frozen_and_in_eval_mode() -> None:
    model = load(GOLDENS / "dream_tiny", device="cpu")
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.folder == GOLDENS / "dream_tiny"


def test_a_loaded_model_does_not_change_with_its_file(copy: Copy) -> None:
    folder = copy("dream_tiny")
    model = load(folder, device="cpu")
    before = model.norm.weight.clone()
    file = folder / "model.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    assert torch.equal(model.norm.weight, before)


def test_a_tied_head_needs_no_tensor(copy: Copy) -> None:
    folder = copy("dream_tiny")
    edit_config(folder, tie_word_embeddings=True)
    with_spare_head = load(folder, device="cpu")
    edit_weights(folder, lm_head__weight=None)
    model = load(folder, device="cpu")
    tokens = torch.arange(9)[None]
    logits, again = (m(tokens, None, slice(2, 6), None) for m in (model, with_spare_head))
    assert logits.shape == (1, 4, 512)
    assert torch.equal(logits, again)


def test_a_tie_that_drops_another_head_is_told(copy: Copy, caplog: pytest.LogCaptureFixture) -> None:
    folder = copy("dream_tiny")
    weights = load_file(folder / "model.safetensors")
    load(folder, device="cpu")
    edit_config(folder, tie_word_embeddings=True)
    edit_weights(folder, lm_head__weight=weights["model.embed_tokens.weight"].clone())
    load(folder, device="cpu")
    assert not caplog.records
    edit_weights(folder, lm_head__weight=weights["lm_head.weight"])
    load(folder, device="cpu")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "lm_head.weight" in caplog.text


def test_a_loaded_model_compiles_and_moves(family: Trunk) -> None:
    tokens = torch.arange(12)[None]
    compiled = torch.compile(family, backend="eager", fullgraph=True)
    expected = family(tokens, None, slice(4, 8), None)
    torch.testing.assert_close(compiled(tokens, None, slice(4, 8), None), expected)
    assert load(family.folder, device="cpu").to("meta").embed.weight.is_meta


def test_the_core_needs_torch_alone_and_loading_adds_only_safetensors() -> None:
    script = f"""
import sys, unmask.models
assert not {{"safetensors", "huggingface_hub", "transformers"}} & sys.modules.keys()
unmask.models.load({str(GOLDENS / "dream_tiny")!r})
assert not {{"huggingface_hub", "transformers"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=GOLDENS.parents[1])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    for source in (tmp_path / "nowhere", "./nowhere/at/all"):
        with raises_field("source", str(source)):
            load(source)


@pytest.mark.parametrize("source", [None, 5, "", b"folder"])
def test_a_source_that_is_no_name_is_refused(source: object) -> None:
    with raises_field("source", source, "'owner/name'"):
        load(source)  # type: ignore[arg-type]


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    refuses(tmp_path, str(tmp_path), "has no config.json")


def test_a_broken_config_is_named(copy: Copy) -> None:
    folder = copy("dream_tiny")
    (folder / "config.json").write_text("{")
    refuses(folder, "config.json is not valid JSON")
    (folder / "config.json").write_text("[]")
    refuses(folder, "config.json must hold a JSON object, got list")


def test_a_folder_without_weights_is_named(copy: Copy) -> None:
    folder = copy("dream_tiny")
    (folder / "model.safetensors").unlink()
    refuses(folder, "has no weights; expected model.safetensors or model.safetensors.index.json")


def test_pickles_are_refused(copy: Copy) -> None:
    folder = copy("dream_tiny")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refuses(folder, "holds pickle weights only", "convert them to safetensors")


def test_a_missing_shard_is_named(copy: Copy) -> None:
    folder = copy("llada_tiny")
    (folder / "model-00002-of-00002.safetensors").unlink()
    refuses(folder, "lacks shards that its index names: model-00002-of-00002.safetensors")


def test_a_broken_index_is_named(copy: Copy) -> None:
    folder = copy("llada_tiny")
    (folder / "model.safetensors.index.json").write_text("{}")
    refuses(folder, "model.safetensors.index.json has no valid weight_map")


@pytest.mark.parametrize("value", [5, None, ["a"], {}])
def test_an_index_that_names_no_file_is_named_with_the_tensor_and_the_value(
    copy: Copy, value: object
) -> None:
    folder = copy("llada_tiny")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a.weight": "model-00001-of-00002.safetensors", "b": value}}))
    refuses(folder, "model.safetensors.index.json: weight_map must name a file for b, got", repr(value))


@pytest.mark.parametrize("size", [0, 4, 100, 5000])
def test_a_truncated_file_is_named(copy: Copy, size: int) -> None:
    folder = copy("dream_tiny")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    refuses(folder, "model.safetensors is not a complete safetensors file", "download it again")


def test_an_unknown_model_type_lists_the_known_ones(copy: Copy) -> None:
    folder = copy("dream_tiny")
    edit_config(folder, model_type="gpt2")
    with raises_field("model_type", "gpt2", "dream", "llada", "sdar"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("llada_tiny", "alibi", True),
        ("llada_tiny", "block_type", "sequential"),
        ("llada_tiny", "layer_norm_type", "default"),
        ("dream_tiny", "hidden_act", "gelu"),
        ("dream_tiny", "use_sliding_window", True),
        ("dream_tiny", "rope_scaling", {"type": "yarn"}),
    ],
)
def test_a_variant_that_no_class_runs_is_refused(copy: Copy, name: str, field: str, value: object) -> None:
    folder = copy(name)
    edit_config(folder, **{field: value})
    refuses(folder, f"{field} must be")


@pytest.mark.parametrize("value", [None, "64", True, 6.5])
def test_a_field_that_is_no_number_is_named(copy: Copy, value: object) -> None:
    folder = copy("dream_tiny")
    edit_config(folder, hidden_size=value)
    with raises_field("hidden_size", value, "config.json"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *(("llada_tiny", field) for field in ("d_model", "n_heads", "n_kv_heads", "n_layers", "vocab_size")),
        *(("llada_tiny", field) for field in ("embedding_size", "mlp_hidden_size", "max_sequence_length")),
        *(("dream_tiny", field) for field in ("hidden_size", "num_attention_heads", "num_key_value_heads")),
        *(("dream_tiny", field) for field in ("num_hidden_layers", "vocab_size", "intermediate_size")),
        *(("dream_tiny", field) for field in ("head_dim", "max_position_embeddings")),
    ],
)
@pytest.mark.parametrize("value", [0, -4])
def test_a_size_below_one_is_named(copy: Copy, name: str, field: str, value: int) -> None:
    folder = copy(name)
    edit_config(folder, **{field: value})
    with raises_field(field, value, "config.json"):
        load(folder)


@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny"])
@pytest.mark.parametrize("field", ["rope_theta", "rms_norm_eps"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_number_that_no_forward_can_use_is_named(copy: Copy, name: str, field: str, value: float) -> None:
    folder = copy(name)
    edit_config(folder, **{field: value})
    with raises_field(field, float(value), "config.json"):
        load(folder)


def test_heads_of_an_odd_size_are_refused(copy: Copy) -> None:
    folder = copy("dream_tiny")
    edit_config(folder, head_dim=15)
    refuses(folder, "config.json: an attention head must have an even size to be rotated, got 15")


def test_heads_that_cannot_share_keys_are_refused(copy: Copy) -> None:
    folder = copy("dream_tiny")
    edit_config(folder, num_key_value_heads=3)
    refuses(folder, "4 attention heads cannot share 3 key heads evenly")


def test_the_wrong_architecture_names_what_is_missing_and_unexpected(copy: Copy) -> None:
    folder = copy("dream_tiny")
    shutil.copy(GOLDENS / "llada_emb_tiny" / "config.json", folder / "config.json")
    refuses(folder, "missing:", "model.transformer.blocks.0.", "unexpected:", "model.embed_tokens.", "more")


def test_every_tensor_at_fault_is_named(copy: Copy) -> None:
    folder = copy("dream_tiny")
    edit_weights(
        folder,
        model__norm__weight=None,
        lm_head__weight=torch.zeros(512, 60),
        model__layers__9__mlp__up_proj__weight=torch.zeros(3),
        model__embed_tokens__weight=torch.zeros(512, 64, dtype=torch.int32),
    )
    refuses(
        folder,
        "missing: model.norm.weight",
        "unexpected: model.layers.9.mlp.up_proj.weight",
        "mis-shaped: lm_head.weight (file [512, 60], model [512, 64])",
        "of unknown dtype: model.embed_tokens.weight (I32)",
    )


def test_stored_rotary_tables_are_ignored(copy: Copy) -> None:
    folder = copy("dream_tiny")
    edit_weights(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8))
    load(folder, device="cpu")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "cuda:x", "xpu", "meta"])
def test_an_unknown_or_absent_device_is_named(device: str) -> None:
    with raises_field("device", device):
        load(GOLDENS / "dream_tiny", device=device)


def test_an_unknown_dtype_lists_the_known_ones() -> None:
    with raises_field("dtype", "int2", "auto, fp8, int8, int4, float32"):
        load(GOLDENS / "dream_tiny", dtype="int2")


@pytest.mark.parametrize(
    ("name", "field"), [("llada_tiny", "weight_tying"), ("dream_tiny", "tie_word_embeddings")]
)
def test_a_flag_in_quotes_is_refused(copy: Copy, name: str, field: str) -> None:
    folder = copy(name)
    edit_config(folder, **{field: "false"})
    with raises_field(field, "false"):
        load(folder)
