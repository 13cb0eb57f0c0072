"""Any Hugging Face masked LM, such as BERT, behind the same interface. Loading needs transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unmask.models.load import pick_device
from unmask.types import Cache, ModelInfo

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HuggingFaceLM(nn.Module):
    """A transformers model whose logits at column i predict column i."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        mask_id: int,
        eos_ids: tuple[int, ...] = (),
        pad_id: int | None = None,
    ) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.info = ModelInfo(
            vocab_size=config.vocab_size,
            mask_id=mask_id,
            eos_ids=eos_ids,
            pad_id=config.pad_token_id or 0 if pad_id is None else pad_id,
            max_length=config.max_position_embeddings,
        )
        self.eval()

    def forward(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        if cache is not None:
            raise ValueError("a Hugging Face masked LM cannot reuse keys and values; use cache=None")
        if attend is None:
            return self._logits(tokens, torch.ones_like(tokens))[:, window]
        # families count positions in different ways; with the padding last all of them start at 0
        order = (~attend).to(torch.uint8).argsort(dim=-1, stable=True)
        logits = self._logits(tokens.gather(1, order), attend.gather(1, order).to(tokens.dtype))
        column = order.argsort(dim=-1)[:, window]
        return logits.gather(1, column[..., None].expand(-1, -1, logits.shape[-1]))

    def _logits(self, tokens: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens, attention_mask=mask).logits
        return logits


def load_hf(
    source: str | Path, *, device: str | torch.device = "auto", dtype: torch.dtype = torch.float32
) -> HuggingFaceLM:
    """The masked LM of a folder or hub id, its ids taken from its tokenizer; never runs remote code."""
    try:
        from transformers import AutoModelForMaskedLM, AutoTokenizer
    except ImportError:
        raise ValueError("Hugging Face masked LMs need transformers; pip install 'unmask[hf]'") from None
    tokenizer = AutoTokenizer.from_pretrained(source)
    if tokenizer.mask_token_id is None:
        raise ValueError(f"the tokenizer of {source} has no mask token; is it a masked LM?")
    model = AutoModelForMaskedLM.from_pretrained(source).requires_grad_(False)
    ends = (tokenizer.eos_token_id, tokenizer.sep_token_id)
    return HuggingFaceLM(
        model.to(pick_device(device), dtype),
        mask_id=tokenizer.mask_token_id,
        eos_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        pad_id=tokenizer.pad_token_id,
    )
