"""LLaDA2.0 and 2.1: experts with a grouped router, block-causal attention, half of each head rotated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from unmask.errors import FieldError
from unmask.models.checkpoint.config import (
    CONFIG,
    attention_block,
    count,
    expert_count,
    known_routing,
    model_info,
    positive,
    require,
    size,
)
from unmask.models.checkpoint.shape import read_shape
from unmask.models.experts import ExpertShape
from unmask.models.trunk import Shape, Trunk
from unmask.types import BlockGrid

SUPPORTED = {
    "hidden_act": "silu",
    "use_bias": False,
    "use_qkv_bias": False,
    "use_rmsnorm": True,
    "use_sliding_window": False,
    "using_split_qkv_in_self_attention": False,
    "score_function": "sigmoid",
    "norm_head": False,
    "norm_softmax": False,
}
ROUTING = {
    "num_experts",
    "num_experts_per_tok",
    "num_shared_experts",
    "moe_intermediate_size",
    "n_group",
    "topk_group",
    "score_function",
    "routed_scaling_factor",
    "first_k_dense_replace",
    # known, but without effect in the released code
    "moe_router_enable_expert_bias",
    "norm_topk_prob",
    "router_dtype",
}
BLOCK_LENGTH = 32  # block length of the released models; no config names it


class LLaDA2(Trunk):
    """LLaDA2 (mini and flash) with the released tensor names."""

    names: ClassVar[dict[str, str]] = {
        "model.word_embeddings": "embed",
        "model.layers.{}.input_layernorm": "layers.{}.attention_norm",
        "model.layers.{}.attention.query_key_value": "layers.{}.attention.query_key_value",
        "model.layers.{}.attention.query_layernorm": "layers.{}.attention.query_norm",
        "model.layers.{}.attention.key_layernorm": "layers.{}.attention.key_norm",
        "model.layers.{}.attention.dense": "layers.{}.attention.output",
        "model.layers.{}.post_attention_layernorm": "layers.{}.mlp_norm",
        "model.layers.{}.mlp.gate_proj": "layers.{}.mlp.gate",
        "model.layers.{}.mlp.up_proj": "layers.{}.mlp.up",
        "model.layers.{}.mlp.down_proj": "layers.{}.mlp.down",
        "model.layers.{}.mlp.gate": "layers.{}.mlp.router",
        "model.layers.{}.mlp.experts": "layers.{}.mlp.experts",
        "model.layers.{}.mlp.shared_experts.gate_proj": "layers.{}.mlp.shared.gate",
        "model.layers.{}.mlp.shared_experts.up_proj": "layers.{}.mlp.shared.up",
        "model.layers.{}.mlp.shared_experts.down_proj": "layers.{}.mlp.shared.down",
        "model.norm": "norm",
        "lm_head": "head",
    }
    counts_padding: ClassVar[bool] = False

    def __init__(self, config: Mapping[str, object]) -> None:
        require(config, SUPPORTED)
        shape = self.shape_of(config)
        max_length = size(config, "max_position_embeddings", default=32768)
        length = attention_block(config, "block_size", max_length, default=BLOCK_LENGTH)
        info = model_info(
            config,
            vocab_size=shape.vocab_size,
            max_length=max_length,
            block_length=length,
            schedule="block",
        )
        super().__init__(config, shape, replace(info, grid=BlockGrid(length=length)))

    @staticmethod
    def shape_of(config: Mapping[str, object]) -> Shape:
        shape = read_shape(
            config,
            mlp_size=size(config, "intermediate_size"),
            default_eps=1e-6,
            default_theta=600000.0,
            experts=experts_of(config),
        )
        factor = positive(config, "partial_rotary_factor", default=0.5)
        return replace(shape, rotated=int(shape.head_size * factor), fused_qkv=True)


def experts_of(config: Mapping[str, object]) -> ExpertShape:
    """Read the experts and their router. Raise unless the experts form groups of equal size."""
    known_routing(config, ROUTING)
    experts, chosen = expert_count(config)
    for name in ("n_group", "topk_group", "routed_scaling_factor"):
        if config.get(name) is None:
            raise FieldError(name, None, "must be there", "copy it from the published config", CONFIG)
    groups, kept = size(config, "n_group"), size(config, "topk_group")
    if experts % groups or experts // groups < 2:
        problem = f"must divide the {experts} experts into groups of two or more"
        raise FieldError("n_group", groups, problem, "copy it from the published config", CONFIG)
    if kept > groups or chosen > kept * (experts // groups):
        problem = f"must keep at most {groups} groups, with {chosen} experts or more in them"
        raise FieldError("topk_group", kept, problem, "copy it from the published config", CONFIG)
    moe_size = size(config, "moe_intermediate_size")
    return ExpertShape(
        router="grouped",
        experts=experts,
        chosen=chosen,
        size=moe_size,
        shared_size=moe_size * count(config, "num_shared_experts"),
        dense=range(min(count(config, "first_k_dense_replace"), size(config, "num_hidden_layers"))),
        bias=True,
        groups=groups,
        kept_groups=kept,
        scale=positive(config, "routed_scaling_factor"),
    )
