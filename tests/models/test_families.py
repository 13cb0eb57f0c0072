"""The newer families: published configs are complete, facts come from the right file, errors are named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.raises import ANYTHING, raises_field
from unmask.bench.step import SHAPES
from unmask.fast.compile import compile
from unmask.models import build, load, random_checkpoint, random_model, save
from unmask.models.trunk import Trunk
from unmask.types import BlockGrid

from .conftest import tiny
from .goldens import GOLDENS, TOLERANCE, left_pad

FOLDER = GOLDENS / "families"
NAMES = (
    "a2d_qwen3_tiny",
    "fast_dllm_v2_tiny",
    "llada2_tiny",
    "llada_moe_mixed_tiny",
    "sdar_moe_tiny",
    "sdar_tiny",
)
MIXTURES = ("llada2_tiny", "llada_moe_mixed_tiny", "sdar_moe_tiny")
# published or derived values, as docs/models.md says of each family
DREAM_LIKE = {
    "model_type": "Dream",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1e6,
    "mask_token_id": 151666,
    "eos_token_id": 151643,
    "pad_token_id": 151643,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
SDAR_4B = {
    "model_type": "sdar",
    "architectures": ["SDARForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
    "eos_token_id": 151643,
    "mask_token_id": 151669,
}
QWEN3_06B = SDAR_4B | {
    "model_type": "a2d-qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "tie_word_embeddings": True,
}
RND1 = SDAR_4B | {
    "model_type": "rnd1",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "moe_backend": "hf",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "rope_scaling": False,
    "sliding_window": False,
}
LLADA_MOE = {
    "model_type": "llada",
    "architectures": ["LLaDAMoEModelLM"],
    "expert_intermediate_size": 1024,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 16,
    "rope_theta": 50000,
    "vocab_size": 157184,
    "mask_token_id": 156895,
}
LLADA2_MINI = json.loads((FOLDER / "llada2_tiny" / "config.json").read_text()) | {
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "mask_token_id": 156895,
    "moe_intermediate_size": 512,
    "n_group": 8,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 20,
    "num_key_value_heads": 4,
    "pad_token_id": 156892,
    "topk_group": 4,
    "vocab_size": 157184,
}
BILLIONS = {  # published config -> weights
    "DiffuCoder-7B": (DREAM_LIKE | {"max_position_embeddings": 131072, "bos_token_id": 151643}, 7.6),
    "Dream-Coder-7B": (DREAM_LIKE | {"max_position_embeddings": 32768, "bos_token_id": 151665}, 7.6),
    "dLLM-Var-8B": (SHAPES["published"]["llada"], 8.0),
    "SDAR-4B": (SDAR_4B, 4.4),
    "Qwen3-0.6B-diffusion": (QWEN3_06B, 0.6),
    "RND1-Base": (RND1, 30.5),
    "LLaDA-MoE-7B-A1B": (LLADA_MOE, 7.4),
    "LLaDA2.1-mini": (LLADA2_MINI, 16.3),
}


@pytest.fixture(params=NAMES)
def family(request: pytest.FixtureRequest) -> Trunk:
    model: Trunk = tiny(f"families/{request.param}")
    return model


def copied(name: str, tmp_path: Path, changes: Mapping[str, object] | None = None) -> Path:
    """A writable copy of a tiny checkpoint whose config.json is changed; None removes a field."""
    folder = Path(shutil.copytree(FOLDER / name, tmp_path / name, copy_function=shutil.copyfile))
    config = json.loads((folder / "config.json").read_text()) | dict(changes or {})
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def forward(model: Trunk, tokens: torch.Tensor, attend: torch.Tensor | None = None) -> torch.Tensor:
    return model(tokens, attend, slice(0, tokens.shape[1]), None)


@pytest.mark.parametrize("name", BILLIONS)
def test_a_published_config_needs_nothing_that_is_missing(name: str) -> None:
    config, billions = BILLIONS[name]
    with torch.device("meta"):
        model = build(config)
    held = sum(tensor.numel() for tensor in model.state_dict().values())
    assert held / 1e9 == pytest.approx(billions, rel=0.03)
    assert model.shape.weights == pytest.approx(held, rel=0.001)


def test_active_weights_count_the_chosen_experts_alone() -> None:
    with torch.device("meta"):
        shape = build(LLADA_MOE).shape
    assert shape.mlp_width(active=True) == 16 * 8 * 1024
    assert shape.mlp_width(active=False) == 16 * 64 * 1024


def test_llada_moe_is_told_from_llada_by_its_architecture() -> None:
    assert type(tiny("families/llada_moe_mixed_tiny")).__name__ == "LLaDAMoE"
    assert tiny("families/llada_moe_mixed_tiny").config["model_type"] == "llada"


def test_blocks_are_a_fact_of_the_model() -> None:
    facts = {name: tiny(f"families/{name}").info for name in NAMES}
    assert facts["a2d_qwen3_tiny"].grid is None
    assert facts["llada_moe_mixed_tiny"].grid is None
    assert facts["sdar_tiny"].grid == facts["sdar_moe_tiny"].grid == BlockGrid(length=4)
    assert facts["llada2_tiny"].grid == BlockGrid(length=32)
    assert (facts["fast_dllm_v2_tiny"].grid, facts["fast_dllm_v2_tiny"].block_length) == (
        BlockGrid(length=32, first_alone=True),
        8,
    )


def test_a_left_padded_row_predicts_what_it_predicts_alone(family: Trunk) -> None:
    rows = [torch.randint(300, (length,)) for length in (1, 7, 14)]
    tokens, attend = left_pad(rows, family.info.pad_id)
    for row, together in zip(rows, forward(family, tokens, attend), strict=True):
        [alone] = forward(family, row[None])
        torch.testing.assert_close(together[-len(row) :], alone, atol=TOLERANCE, rtol=0.0)


def test_a_row_of_padding_only_gives_finite_logits(family: Trunk) -> None:
    attend = torch.tensor([[True] * 6, [False] * 6])
    assert forward(family, torch.zeros(2, 6, dtype=torch.int64), attend).isfinite().all()


@pytest.mark.parametrize("name", ["sdar_tiny", "llada2_tiny", "fast_dllm_v2_tiny"])
def test_no_column_sees_a_later_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(f"families/{name}")
    monkeypatch.setattr(model, "info", replace(model.info, grid=BlockGrid(length=4)))
    tokens = torch.randint(300, (1, 12))
    changed = tokens.clone()
    changed[0, 8:] = 7
    before, after = (
        model.states(tokens, None, slice(0, 12), None),
        model.states(changed, None, slice(0, 12), None),
    )
    torch.testing.assert_close(before[:, :8], after[:, :8])
    changed[0, 7] = 7  # inside a block, the first column sees the last
    assert not torch.allclose(before[:, 4], model.states(changed, None, slice(0, 12), None)[:, 4])


def test_a_grid_may_begin_at_an_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """BD3LM: a prompt that is padded to whole blocks, and a grid that begins behind its cut block."""
    model = tiny("families/a2d_qwen3_tiny")
    row = torch.randint(300, (13,))
    padded, attend = torch.cat([torch.zeros(3, dtype=torch.int64), row]), torch.arange(16) >= 3
    monkeypatch.setattr(model, "info", replace(model.info, grid=BlockGrid(length=8, origin="canvas")))
    expected = forward(model, padded[None], attend[None])[:, 3:]
    monkeypatch.setattr(model, "info", replace(model.info, grid=BlockGrid(length=8, offset=5)))
    torch.testing.assert_close(forward(model, row[None]), expected, atol=TOLERANCE, rtol=0.0)


def test_a_shadow_sees_no_later_block(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("families/sdar_tiny")
    tokens = torch.randint(300, (1, 12))
    changed = torch.where(torch.arange(12) >= 8, 7, tokens)
    [(own, shadow), (same, twin)] = [
        model.shadow_states(canvas, None, slice(4, 8)) for canvas in (tokens, changed)
    ]
    torch.testing.assert_close(own, same)
    torch.testing.assert_close(shadow, twin)
    torch.testing.assert_close(own, model.hidden_states(tokens, None, slice(4, 8), None))


@pytest.mark.parametrize(
    ("name", "length"), [("SDAR-8B-Chat-b32", 32), ("SDAR-4B-Chat", 4), ("x-b8-mine", 8)]
)
def test_sdars_block_length_may_stand_in_the_name(tmp_path: Path, name: str, length: int) -> None:
    folder = copied("sdar_tiny", tmp_path, {"block_size": None}).rename(tmp_path / name)
    assert load(folder, device="cpu").info.grid == BlockGrid(length=length)
    save(load(folder, device="cpu"), tmp_path / "renamed")
    assert load(tmp_path / "renamed", device="cpu").info.grid == BlockGrid(length=length)


def test_a_checkpoint_called_bd3lm_attends_in_blocks(tmp_path: Path) -> None:
    folder = copied("a2d_qwen3_tiny", tmp_path).rename(tmp_path / "Qwen3-0.6B-diffusion-bd3lm-v0.1")
    assert load(folder, device="cpu").info.grid == BlockGrid(length=32, origin="canvas")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("generation_config.json", {"mask_token_id": 381}),
        ("added_tokens.json", {"<|mask|>": 381}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"381": {"content": "|<MASK>|"}}}),
        (
            "tokenizer_config.json",
            {"mask_token": "<blank>", "added_tokens_decoder": {"3": {"content": "<MASK>"}, "381": "<blank>"}},
        ),
    ],
)
def test_a_mask_id_may_stand_in_the_tokenizers_files(
    tmp_path: Path, file: str, content: Mapping[str, object]
) -> None:
    folder = copied("llada2_tiny", tmp_path)
    (folder / "generation_config.json").unlink()
    (folder / file).write_text(json.dumps(content))
    assert load(folder, device="cpu").info.mask_id == 381


@pytest.mark.parametrize("files", [{}, {"tokenizer.json": {"added_tokens": [{"id": 7, "content": None}]}}])
def test_a_missing_mask_id_is_named(tmp_path: Path, files: Mapping[str, object]) -> None:
    folder = copied("llada2_tiny", tmp_path)
    (folder / "generation_config.json").unlink()
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    with raises_field("mask_token_id", None, "config.json", "tokenizer"):
        load(folder)


def test_a_mask_id_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    with raises_field("mask_token_id", 384, "383"):
        load(copied("llada2_tiny", tmp_path, {"mask_token_id": 384}))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("llada2_tiny", "moe_router_jitter", 0.1),
        ("llada2_tiny", "n_group", 3),
        ("llada2_tiny", "n_group", 16),
        ("llada2_tiny", "topk_group", 5),
        ("llada2_tiny", "num_experts_per_tok", 17),
        ("llada2_tiny", "num_shared_experts", -1),
        ("llada2_tiny", "first_k_dense_replace", -1),
        ("llada2_tiny", "rope_scaling", {"type": "yarn"}),
        ("llada_moe_mixed_tiny", "moe_layer_freq", [0, 1]),
        ("llada_moe_mixed_tiny", "moe_layer_freq", 2),
        ("llada_moe_mixed_tiny", "router_temperature", 2.0),
        ("sdar_moe_tiny", "mlp_only_layers", [7]),
        ("sdar_moe_tiny", "router_top_p", 0.9),
        ("sdar_moe_tiny", "block_size", 0),
        ("sdar_moe_tiny", "decoder_sparse_step", 2),
        ("sdar_moe_tiny", "norm_topk_prob", "false"),
        ("sdar_moe_tiny", "scoring_func", "sigmoid"),
        ("sdar_moe_tiny", "routed_scaling_factor", 2.5),
        ("sdar_moe_tiny", "first_k_dense_replace", 1),
        ("sdar_tiny", "attention_bias", True),
        ("sdar_tiny", "partial_rotary_factor", 0.5),
        ("llada2_tiny", "score_function", "softmax"),
        ("llada2_tiny", "scoring_func", "softmax"),
        ("llada2_tiny", "n_group", None),
        ("llada2_tiny", "routed_scaling_factor", None),
        ("llada2_tiny", "use_qkv_bias", True),
        ("llada_moe_mixed_tiny", "clip_qkv", 8.0),
        ("llada_moe_mixed_tiny", "moe_router_score_function", "sigmoid"),
        ("llada_moe_mixed_tiny", "score_function", "sigmoid"),
        ("llada_moe_mixed_tiny", "architectures", ["LLaDAModelLM"]),
        ("llada_moe_mixed_tiny", "architectures", "LLaDAMoEModelLM"),
        ("llada2_tiny", "block_size", 10**6),
        ("sdar_tiny", "block_size", 10**6),
        ("a2d_qwen3_tiny", "block_size", 10**6),
        ("fast_dllm_v2_tiny", "bd_size", 10**6),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, name: str, field: str, value: object) -> None:
    with raises_field(field, value, "config.json"):
        load(copied(name, tmp_path, {field: value}))


def test_an_end_token_that_is_the_mask_is_named(tmp_path: Path) -> None:
    with raises_field("eos_token_id", ANYTHING, "config.json", "(377)"):
        load(copied("sdar_tiny", tmp_path, {"eos_token_id": [360, 377], "mask_token_id": 377}))


@pytest.mark.parametrize("field", ["num_experts", "num_experts_per_tok", "moe_intermediate_size"])
def test_a_missing_size_of_experts_is_named(tmp_path: Path, field: str) -> None:
    with raises_field(field, None, "config.json"):
        load(copied("sdar_moe_tiny", tmp_path, {field: None}))


def test_fused_experts_are_named_with_a_remedy(tmp_path: Path) -> None:
    folder = copied("llada2_tiny", tmp_path, {"_moe_implementation": "fused"})
    tensors = load_file(folder / "model.safetensors")
    fused = {key: value for key, value in tensors.items() if ".experts." not in key}
    key = "model.layers.1.mlp.experts.gate_proj"
    save_file(fused | {key: torch.zeros(16, 16, 64)}, folder / "model.safetensors")
    with raises_field(key, [16, 16, 64], "dFactory", "model.safetensors"):
        load(folder)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    folder = copied("llada2_tiny", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.15.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing: model\.layers\.2\.mlp\.experts\.15\.up_proj\.weight"):
        load(folder)


def test_open_dcoder_must_be_asked_for(tmp_path: Path) -> None:
    folder = copied("fast_dllm_v2_tiny", tmp_path, {"model_type": "qwen2"})
    with raises_field("model_type", "qwen2", "open-dcoder"):
        load(folder)
    shutil.rmtree(folder)
    info = load(copied("fast_dllm_v2_tiny", tmp_path, {"model_type": "open-dcoder"}), device="cpu").info
    assert (info.schedule, info.grid) == ("dream", None)


def test_rnd1_is_sdar_moe_with_full_attention_and_a_shift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shifted = load(copied("sdar_moe_tiny", tmp_path, {"model_type": "rnd1"}), device="cpu")
    plain = tiny("families/sdar_moe_tiny")
    monkeypatch.setattr(plain, "info", replace(plain.info, grid=None))
    tokens = torch.randint(300, (2, 9))
    assert shifted.info.grid is None
    torch.testing.assert_close(forward(shifted, tokens)[:, 1:], forward(plain, tokens)[:, :-1])


@pytest.mark.parametrize(
    ("name", "other"), [("fast_dllm_v2_tiny", "a2d-qwen2"), ("llada_moe_mixed_tiny", None)]
)
def test_positions_that_count_padding_give_the_same_logits(
    tmp_path: Path, name: str, other: str | None
) -> None:
    """Rotations are relative: only the distance of two columns counts."""
    model = load(copied(name, tmp_path, {"model_type": other} if other else {}), device="cpu")
    tokens, attend = left_pad([torch.arange(9), torch.arange(4)], model.info.pad_id)
    moved = torch.cat([tokens[:, :1], tokens], dim=1), torch.cat([attend[:, :1] & False, attend], dim=1)
    logits, later = forward(model, tokens, attend), forward(model, *moved)[:, 1:]
    torch.testing.assert_close(logits[attend], later[attend], atol=TOLERANCE, rtol=0.0)


def test_a_saved_model_is_the_loaded_one(family: Trunk, tmp_path: Path) -> None:
    save(family, tmp_path / "copy", shard_bytes=100_000)
    again = load(tmp_path / "copy", device="cpu")
    assert again.info == family.info
    state = again.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in family.state_dict().items())
    keys = [load_keys(folder) for folder in (family.folder, tmp_path / "copy")]
    assert keys[0] == keys[1]


def load_keys(folder: Path | None) -> dict[str, list[int]]:
    assert folder is not None
    files = folder.glob("*.safetensors")
    return {key: list(tensor.shape) for file in files for key, tensor in load_file(file).items()}


def test_a_random_model_is_what_a_random_checkpoint_holds(family: Trunk, tmp_path: Path) -> None:
    random_checkpoint(family.config, tmp_path / "drawn", seed=3)
    stored = load(tmp_path / "drawn", device="cpu", dtype="bfloat16")
    made = random_model(family.config, seed=3)
    assert made.info == stored.info
    for key, tensor in made.state_dict().items():
        assert torch.equal(tensor, stored.state_dict()[key])
        assert tensor.dtype == stored.state_dict()[key].dtype
    assert forward(made, torch.arange(9)[None]).isfinite().all()


def test_the_bias_of_a_router_stays_in_float32() -> None:
    model = load(FOLDER / "llada2_tiny", device="cpu", dtype="bfloat16")
    stored = load_file(FOLDER / "llada2_tiny" / "model.safetensors")["model.layers.1.mlp.gate.expert_bias"]
    bias = model.state_dict()["layers.1.mlp.router.expert_bias"]
    assert bias.dtype == torch.float32
    assert torch.equal(bias, stored)
    assert model.embed.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("name", NAMES)
def test_int8_stays_near_the_float_model(name: str) -> None:
    narrow, model = load(FOLDER / name, device="cpu", dtype="int8"), tiny(f"families/{name}")
    tokens = torch.randint(300, (2, 16), generator=torch.Generator().manual_seed(0))
    logits, expected = forward(narrow, tokens), forward(model, tokens)
    # the median column: rounding may send a few tokens to other experts, which changes them a lot
    assert (logits - expected).std(-1).median() < 0.1 * expected.std()


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_model_predicts_the_same(name: str) -> None:
    plain, fast = tiny(f"families/{name}"), compile(load(FOLDER / name, device="cpu"), layers=False)
    rows = [torch.randint(300, (length,)) for length in (5, 11)]
    tokens, attend = left_pad(rows, plain.info.pad_id)
    for padding in (None, attend):
        expected = forward(plain, tokens, padding)
        real = torch.ones_like(attend) if padding is None else padding
        torch.testing.assert_close(
            forward(fast, tokens, padding)[real], expected[real], atol=TOLERANCE, rtol=0.0
        )


def test_a_compiled_model_follows_a_changed_grid() -> None:
    model = compile(load(FOLDER / "a2d_qwen3_tiny", device="cpu"), layers=False)
    tokens = torch.randint(300, (1, 64))
    first = forward(model, tokens)
    model.info = replace(model.info, grid=BlockGrid(length=8))
    second = forward(model, tokens)
    plain = tiny("families/a2d_qwen3_tiny")
    torch.testing.assert_close(first, forward(plain, tokens), atol=TOLERANCE, rtol=0.0)
    assert (first - second).abs().max() > 0.1
