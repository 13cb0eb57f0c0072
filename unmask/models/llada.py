"""LLaDA (8B base and instruct, 1.5): hidden state i predicts column i, and positions count padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from unmask.models.checkpoint.config import flag, model_info, positive, require, size
from unmask.models.trunk import Shape, Trunk

SUPPORTED = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
    "alibi": False,
    "include_bias": False,
    "bias_for_layer_norm": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "multi_query_attention": False,
    "block_group_size": 1,
}
BLOCK_LENGTH = 64  # as in the LESS paper's blockwise regime


class LLaDA(Trunk):
    """LLaDA (arXiv:2502.09992) with the released tensor names."""

    names: ClassVar[dict[str, str]] = {
        "model.transformer.wte": "embed",
        "model.transformer.blocks.{}.attn_norm": "layers.{}.attention_norm",
        "model.transformer.blocks.{}.q_proj": "layers.{}.attention.query",
        "model.transformer.blocks.{}.k_proj": "layers.{}.attention.key",
        "model.transformer.blocks.{}.v_proj": "layers.{}.attention.value",
        "model.transformer.blocks.{}.attn_out": "layers.{}.attention.output",
        "model.transformer.blocks.{}.ff_norm": "layers.{}.mlp_norm",
        "model.transformer.blocks.{}.ff_proj": "layers.{}.mlp.gate",
        "model.transformer.blocks.{}.up_proj": "layers.{}.mlp.up",
        "model.transformer.blocks.{}.ff_out": "layers.{}.mlp.down",
        "model.transformer.ln_f": "norm",
        "model.transformer.ff_out": "head",
    }

    def __init__(self, config: Mapping[str, object]) -> None:
        require(config, SUPPORTED)
        shape = self.shape_of(config)
        info = model_info(
            config,
            vocab_size=shape.vocab_size,
            max_length=size(config, "max_sequence_length", default=4096),
            block_length=BLOCK_LENGTH,
            schedule="linear",
        )
        super().__init__(config, shape, info)

    @staticmethod
    def shape_of(config: Mapping[str, object]) -> Shape:
        width = size(config, "d_model")
        heads = size(config, "n_heads")
        return Shape(
            # the embedding may be padded beyond the vocabulary; logits have its width
            vocab_size=size(config, "embedding_size", default=size(config, "vocab_size")),
            size=width,
            layers=size(config, "n_layers"),
            heads=heads,
            key_heads=size(config, "n_kv_heads", default=heads),
            head_size=width // heads,
            mlp_size=size(config, "mlp_hidden_size", default=size(config, "mlp_ratio", default=4) * width),
            norm_eps=positive(config, "rms_norm_eps", default=1e-5),
            rope_theta=positive(config, "rope_theta", default=10000.0),
            qkv_bias=flag(config, "include_qkv_bias"),
            tied=flag(config, "weight_tying"),
        )
