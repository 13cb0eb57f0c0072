"""Read the sizes of a model from the fields that most families on Hugging Face share."""

from __future__ import annotations

from unmask.models.checkpoint.config import Config, flag, positive, rope_theta, size
from unmask.models.experts import ExpertShape
from unmask.models.trunk import Shape


def read_shape(
    config: Config,
    *,
    mlp_size: int,
    default_eps: float,
    default_theta: float,
    qkv_bias: bool = False,
    qk_norm: bool = True,
    experts: ExpertShape | None = None,
) -> Shape:
    """Return the shape of a trunk. The arguments are the facts in which families differ."""
    width, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    return Shape(
        vocab_size=size(config, "vocab_size"),
        size=width,
        layers=size(config, "num_hidden_layers"),
        heads=heads,
        key_heads=size(config, "num_key_value_heads", default=heads),
        head_size=size(config, "head_dim", default=width // heads),
        mlp_size=mlp_size,
        norm_eps=positive(config, "rms_norm_eps", default=default_eps),
        rope_theta=rope_theta(config, default=default_theta),
        qkv_bias=qkv_bias,
        tied=flag(config, "tie_word_embeddings"),
        qk_norm=qk_norm,
        experts=experts,
    )
