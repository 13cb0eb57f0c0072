"""LLaDA-MoE: Qwen's tensor names. As in LLaDA, state i predicts column i, and positions count padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from unmask.models.checkpoint.config import (
    expert_count,
    flag,
    known_routing,
    layer_flags,
    model_info,
    require,
    size,
)
from unmask.models.checkpoint.shape import read_shape
from unmask.models.experts import ExpertShape
from unmask.models.llada import BLOCK_LENGTH
from unmask.models.qwen import NAMES
from unmask.models.trunk import Shape, Trunk

SUPPORTED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "qk_layernorm": True,
    "partial_rotary_factor": 1,
    "moe_router_score_function": "softmax",
    "routed_scaling_factor": 1,
}
ROUTING = {
    "num_experts",
    "num_experts_per_tok",
    "expert_intermediate_size",
    "shared_expert_intermediate_size",
    "moe_layer_freq",
    "moe_router_enable_expert_bias",
    # known, but without effect in the released code
    "moe_router_score_function",
    "routed_scaling_factor",
    "norm_topk_prob",
    "router_num_group",
    "router_topk_group",
}


class LLaDAMoE(Trunk):
    """LLaDA-MoE (7B-A1B) with the released tensor names."""

    names: ClassVar[dict[str, str]] = NAMES | {
        "model.layers.{}.mlp.expert_bias": "layers.{}.mlp.router.expert_bias",
        "model.layers.{}.shared_expert.gate_proj": "layers.{}.mlp.shared.gate",
        "model.layers.{}.shared_expert.up_proj": "layers.{}.mlp.shared.up",
        "model.layers.{}.shared_expert.down_proj": "layers.{}.mlp.shared.down",
    }

    def __init__(self, config: Mapping[str, object]) -> None:
        require(config, SUPPORTED, absent=("clip_qkv",))
        shape = self.shape_of(config)
        info = model_info(
            config,
            vocab_size=shape.vocab_size,
            max_length=size(config, "max_position_embeddings", default=8192),
            block_length=BLOCK_LENGTH,
            schedule="linear",
        )
        super().__init__(config, shape, info)

    @staticmethod
    def shape_of(config: Mapping[str, object]) -> Shape:
        known_routing(config, ROUTING)
        experts, chosen = expert_count(config)
        shared = config.get("shared_expert_intermediate_size")
        sparse = layer_flags(config, "moe_layer_freq", size(config, "num_hidden_layers"))
        return read_shape(
            config,
            mlp_size=size(config, "dense_intermediate_size", default=1),
            default_eps=1e-5,
            default_theta=50000.0,
            experts=ExpertShape(
                router="softmax",
                experts=experts,
                chosen=chosen,
                size=size(config, "expert_intermediate_size"),
                shared_size=size(config, "shared_expert_intermediate_size") if shared else 0,
                dense=frozenset(layer for layer, flag in enumerate(sparse) if not flag),
                bias=flag(config, "moe_router_enable_expert_bias"),
            ),
        )
