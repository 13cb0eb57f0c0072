"""Dream (7B, Dream-Coder, DiffuCoder): hidden state i - 1 predicts column i, and positions skip padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.errors import FieldError
from unmask.models.checkpoint.config import model_info, positive, require, size
from unmask.models.trunk import Shape, Trunk

SUPPORTED = {"hidden_act": "silu", "use_sliding_window": False, "use_mrope": False}


class Dream(Trunk):
    """Dream (arXiv:2508.15487) with the released tensor names."""

    names: ClassVar[dict[str, str]] = {
        "model.embed_tokens": "embed",
        "model.layers.{}.input_layernorm": "layers.{}.attention_norm",
        "model.layers.{}.self_attn.q_proj": "layers.{}.attention.query",
        "model.layers.{}.self_attn.k_proj": "layers.{}.attention.key",
        "model.layers.{}.self_attn.v_proj": "layers.{}.attention.value",
        "model.layers.{}.self_attn.o_proj": "layers.{}.attention.output",
        "model.layers.{}.post_attention_layernorm": "layers.{}.mlp_norm",
        "model.layers.{}.mlp.gate_proj": "layers.{}.mlp.gate",
        "model.layers.{}.mlp.up_proj": "layers.{}.mlp.up",
        "model.layers.{}.mlp.down_proj": "layers.{}.mlp.down",
        "model.norm": "norm",
        "lm_head": "head",
    }

    def __init__(self, config: Mapping[str, object]) -> None:
        require(config, SUPPORTED)
        if config.get("rope_scaling") is not None:
            raise FieldError("rope_scaling", config["rope_scaling"], "must be null", where="config.json")
        shape = self.shape_of(config)
        info = model_info(
            config,
            vocab_size=shape.vocab_size,
            max_length=size(config, "max_position_embeddings", default=131072),
            block_length=None,
            schedule="dream",
        )
        super().__init__(config, shape, info)

    @staticmethod
    def shape_of(config: Mapping[str, object]) -> Shape:
        width = size(config, "hidden_size")
        heads = size(config, "num_attention_heads")
        return Shape(
            vocab_size=size(config, "vocab_size"),
            size=width,
            layers=size(config, "num_hidden_layers"),
            heads=heads,
            key_heads=size(config, "num_key_value_heads", default=heads),
            head_size=size(config, "head_dim", default=width // heads),
            mlp_size=size(config, "intermediate_size"),
            norm_eps=positive(config, "rms_norm_eps", default=1e-6),
            rope_theta=positive(config, "rope_theta", default=10000.0),
            qkv_bias=True,
            tied=bool(config.get("tie_word_embeddings")),
        )

    def positions(self, tokens: Tensor, attend: Tensor | None) -> Tensor:
        """Return the position of each column, [1 or B, N], counting only real tokens."""
        if attend is None:
            return super().positions(tokens, attend)
        return (attend.cumsum(-1) - 1).masked_fill(~attend, 1)

    def predicting(self, window: slice) -> slice:
        return slice(max(window.start - 1, 0), window.stop)

    def align(self, states: Tensor, attend: Tensor | None, window: slice) -> Tensor:
        if window.start == 0:  # column 0 has no predecessor and predicts itself
            states = torch.cat([states[:, :1], states], dim=1)
        before, own = states[:, :-1], states[:, 1:]
        if attend is None:
            return before
        attend = attend[:, max(window.start - 1, 0) : window.stop - 1]
        if window.start == 0:
            attend = F.pad(attend, (1, 0), value=True)
        # nor has a row's first real column
        return torch.where(attend[..., None], before, own)
