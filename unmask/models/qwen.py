"""Families with Qwen's tensor names: A2D, SDAR, Fast-dLLM v2, RND1. Positions skip padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.models.checkpoint.config import (
    attention_block,
    expert_count,
    flag,
    known_routing,
    layer_numbers,
    model_info,
    require,
    size,
)
from unmask.models.checkpoint.shape import read_shape
from unmask.models.experts import ExpertShape
from unmask.models.trunk import Shape, Trunk
from unmask.types import BlockGrid, ModelInfo

NAMES = {
    "model.embed_tokens": "embed",
    "model.layers.{}.input_layernorm": "layers.{}.attention_norm",
    "model.layers.{}.self_attn.q_proj": "layers.{}.attention.query",
    "model.layers.{}.self_attn.k_proj": "layers.{}.attention.key",
    "model.layers.{}.self_attn.v_proj": "layers.{}.attention.value",
    "model.layers.{}.self_attn.q_norm": "layers.{}.attention.query_norm",
    "model.layers.{}.self_attn.k_norm": "layers.{}.attention.key_norm",
    "model.layers.{}.self_attn.o_proj": "layers.{}.attention.output",
    "model.layers.{}.post_attention_layernorm": "layers.{}.mlp_norm",
    "model.layers.{}.mlp.gate_proj": "layers.{}.mlp.gate",
    "model.layers.{}.mlp.up_proj": "layers.{}.mlp.up",
    "model.layers.{}.mlp.down_proj": "layers.{}.mlp.down",
    "model.layers.{}.mlp.gate": "layers.{}.mlp.router",
    "model.layers.{}.mlp.experts": "layers.{}.mlp.experts",
    "model.norm": "norm",
    "lm_head": "head",
}
SUPPORTED = {
    "hidden_act": "silu",
    "use_sliding_window": False,
    "use_mrope": False,
    "attention_bias": False,  # Qwen2's biases are not optional; Qwen3's would be on the output too
    "mlp_bias": False,
    "partial_rotary_factor": 1,
    "decoder_sparse_step": 1,
}
ROUTING = {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}


class Qwen(Trunk):
    """Qwen3 without its causal mask: heads of any size, whose queries and keys are normed."""

    names: ClassVar[dict[str, str]] = NAMES
    counts_padding: ClassVar[bool] = False
    qkv_bias: ClassVar[bool] = False
    qk_norm: ClassVar[bool] = True
    mixture: ClassVar[bool] = False  # experts in place of the MLP
    longest: ClassVar[int] = 32768  # most positions, if the config does not say

    def __init__(self, config: Mapping[str, object]) -> None:
        require(config, SUPPORTED)
        shape = self.shape_of(config)
        super().__init__(config, shape, self.info_of(config, shape))

    @classmethod
    def info_of(cls, config: Mapping[str, object], shape: Shape) -> ModelInfo:
        """Read the facts about a model from its config."""
        return model_info(
            config,
            vocab_size=shape.vocab_size,
            max_length=size(config, "max_position_embeddings", default=cls.longest),
            block_length=None,
            schedule="linear",
        )

    @classmethod
    def shape_of(cls, config: Mapping[str, object]) -> Shape:
        return read_shape(
            config,
            mlp_size=size(config, "intermediate_size"),
            default_eps=1e-6,
            default_theta=10000.0,
            qkv_bias=cls.qkv_bias,
            qk_norm=cls.qk_norm,
            experts=experts_of(config) if cls.mixture else None,
        )


def experts_of(config: Mapping[str, object]) -> ExpertShape:
    """Read the experts of Qwen3-MoE."""
    known_routing(config, ROUTING)
    renormalised = config.get("norm_topk_prob") is None or flag(config, "norm_topk_prob")
    experts, chosen = expert_count(config)
    return ExpertShape(
        router="renormalised" if renormalised else "softmax",
        experts=experts,
        chosen=chosen,
        size=size(config, "moe_intermediate_size"),
        dense=layer_numbers(config, "mlp_only_layers", size(config, "num_hidden_layers")),
    )


class ShiftedQwen(Qwen):
    """Models whose hidden state i - 1 predicts column i."""

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
        # a row's first real column has no predecessor either
        return torch.where(attend[..., None], before, own)


class A2DQwen3(Qwen):
    """A2D (dllm's Tiny-A2D): full attention, or in blocks if the config has a block_size (BD3LM)."""

    longest: ClassVar[int] = 40960

    @classmethod
    def info_of(cls, config: Mapping[str, object], shape: Shape) -> ModelInfo:
        info = replace(super().info_of(config, shape), schedule="remaining")
        if config.get("block_size") is None:
            return replace(info, block_length=64)
        length = attention_block(config, "block_size", info.max_length)
        # the prompt is padded on the left, so that the generation begins with a block
        return replace(info, block_length=length, grid=BlockGrid(length=length, origin="canvas"))


class A2DQwen2(A2DQwen3):
    """A2D from Qwen2.5."""

    qkv_bias: ClassVar[bool] = True
    qk_norm: ClassVar[bool] = False


class A2DLlama(A2DQwen3):
    """A2D from Llama."""

    qk_norm: ClassVar[bool] = False


class SDAR(Qwen):
    """SDAR and TraDo: block diffusion on a grid that counts from a row's first token, prompt included."""

    @classmethod
    def info_of(cls, config: Mapping[str, object], shape: Shape) -> ModelInfo:
        info = replace(super().info_of(config, shape), schedule="block")
        length = attention_block(config, "block_size", info.max_length, default=4)
        return replace(info, block_length=length, grid=BlockGrid(length=length))


class SDARMoE(SDAR):
    """SDAR with experts."""

    mixture: ClassVar[bool] = True


class FastDLLM(ShiftedQwen):
    """Fast-dLLM v2: attention in blocks, decoded in sub-blocks; logits shift across block borders too."""

    qkv_bias: ClassVar[bool] = True
    qk_norm: ClassVar[bool] = False

    @classmethod
    def info_of(cls, config: Mapping[str, object], shape: Shape) -> ModelInfo:
        info = super().info_of(config, shape)
        length = attention_block(config, "bd_size", info.max_length, default=32)
        grid = BlockGrid(length=length, first_alone=True)
        return replace(info, block_length=min(8, length), grid=grid)


class RND1(ShiftedQwen):
    """RND1: Qwen3-MoE with full attention and shifted logits."""

    mixture: ClassVar[bool] = True
    longest: ClassVar[int] = 40960
