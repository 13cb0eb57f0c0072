"""Wrap any Hugging Face masked LM, such as BERT. Loading needs transformers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unmask.errors import FieldError
from unmask.models.checkpoint.load import pick_device
from unmask.models.text.chat import ChatTemplate, checked_messages
from unmask.types import Cache, ModelInfo

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class HuggingFaceSpecial:
    """The special ids that the text layer needs, or None if the tokenizer lacks one."""

    bos: int | None
    pad: int | None


class HuggingFaceTokenizer:
    """A transformers tokenizer with the interface of the text layer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, origin: str) -> None:
        self.tokenizer = tokenizer
        self.origin = origin  # name of this checkpoint in error messages
        bos = tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        self.special = HuggingFaceSpecial(bos, tokenizer.pad_token_id)
        self._template: ChatTemplate | None = None

    @property
    def has_chat_template(self) -> bool:
        """Whether chats can be rendered."""
        return bool(self.tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Encode a text. Special tokens in it are recognised, but none are added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def encode_text(self, text: str) -> list[int]:
        """Encode a text literally. Where it spells a special token, encode its letters instead."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Decode token ids."""
        return str(
            self.tokenizer.decode(
                list(token_ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
            )
        )

    def chat(self, messages: Sequence[Mapping[str, str]], *, special_tokens: bool = False) -> list[int]:
        """Encode a conversation, with the generation prompt at its end.

        Raise if a message spells a special token, which could end its turn, unless `special_tokens`.
        """
        if not self.has_chat_template:
            problem = f"cannot be rendered, because the tokenizer of {self.origin} has no chat template"
            raise FieldError("messages", messages, problem, "pass a plain prompt")
        source = self.tokenizer.get_chat_template()
        if self._template is None or self._template.source != source:
            names = {key: str(token) for key, token in self.tokenizer.special_tokens_map.items()}
            self._template = ChatTemplate(source, names, self.origin)
        conversation = checked_messages(messages)
        for index, message in enumerate(conversation if not special_tokens else ()):
            for key, text in message.items():
                if self.encode(text) != self.encode_text(text):
                    raise FieldError(f"messages[{index}].{key}", text, "must not spell special tokens")
        return self.encode(self._template.render(conversation, add_generation_prompt=True))


class HuggingFaceLM(nn.Module):
    """A transformers model whose logits at column i predict column i."""

    tokenizer: HuggingFaceTokenizer | None = None

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
            separable=True,
        )
        self.eval()

    def forward(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        if cache is not None:
            raise ValueError("a Hugging Face masked LM cannot reuse keys and values; use cache=None")
        if attend is None:
            return self._logits(tokens, torch.ones_like(tokens))[:, window]
        # Families number positions differently. With padding moved to the end, all of them start at 0.
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
    """Load the masked LM and tokenizer of a folder or hub id, "name[@revision]"; never run remote code.

    `stream` equals `generate` only if the tokenizer is prefix-stable, so that more tokens only extend the
    text.
    """
    try:
        from transformers import AutoModelForMaskedLM, AutoTokenizer
    except ImportError:
        raise ValueError("Hugging Face masked LMs need transformers; pip install 'unmask[hf]'") from None
    place, _, revision = (str(source), "", "") if Path(source).exists() else str(source).partition("@")
    version = {"revision": revision} if revision else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **version)
        model = AutoModelForMaskedLM.from_pretrained(place, **version).requires_grad_(False)
    except OSError as error:
        problem = "must be the folder or the hub id of a masked LM"
        [reason, *_] = str(error).splitlines() or [type(error).__name__]
        raise FieldError("source", str(source), problem, f"transformers says: {reason}") from error
    if tokenizer.mask_token_id is None:
        raise ValueError(f"the tokenizer of {source} has no mask token; is it a masked LM?")
    ends = (tokenizer.eos_token_id, tokenizer.sep_token_id)
    wrapped = HuggingFaceLM(
        model.to(pick_device(device), dtype),
        mask_id=tokenizer.mask_token_id,
        eos_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        pad_id=tokenizer.pad_token_id,
    )
    wrapped.tokenizer = HuggingFaceTokenizer(tokenizer, str(source))
    return wrapped
