"""Dream (7B, Dream-Coder, DiffuCoder) and Open-dCoder: hidden state i - 1 predicts column i."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from unmask.models.qwen import ShiftedQwen
from unmask.models.trunk import Shape
from unmask.types import ModelInfo


class Dream(ShiftedQwen):
    """Dream (arXiv:2508.15487): Qwen2.5 with full attention and its own time grid."""

    qkv_bias: ClassVar[bool] = True
    qk_norm: ClassVar[bool] = False
    longest: ClassVar[int] = 131072

    @classmethod
    def info_of(cls, config: Mapping[str, object], shape: Shape) -> ModelInfo:
        return replace(super().info_of(config, shape), schedule="dream")


class OpenDCoder(Dream):
    """Open-dCoder: Qwen2.5-Coder, changed like Dream."""

    longest: ClassVar[int] = 32768
