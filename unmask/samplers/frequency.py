"""How common each token is in a corpus: an input of the PC sampler."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from unmask.errors import FieldError, whole

NAME = "frequencies"  # of the tensor in a file


class TokenFrequency:
    """The share of each token in a corpus. Two are equal if their numbers are."""

    def __init__(self, values: Tensor) -> None:
        if not isinstance(values, Tensor) or values.ndim != 1 or not values.is_floating_point():
            raise FieldError("values", values, "must be a tensor of frequencies, one for each token")
        if not bool(((values >= 0) & (values <= 1)).all()):
            raise FieldError(
                "values", values, "must be frequencies from 0 to 1", "divide counts by their sum"
            )
        self._values = values.detach().to("cpu", torch.float32, copy=True)
        self._copies: dict[torch.device, Tensor] = {}
        digest = sha256(self._values.view(torch.uint8).numpy().tobytes())
        self.fingerprint = digest.hexdigest()[:16]

    @staticmethod
    def count(ids: Tensor | Sequence[int], vocab_size: int) -> TokenFrequency:
        """Count the tokens of a corpus. A token that does not occur counts as one that occurs once."""
        whole("vocab_size", vocab_size, 1)
        tokens = torch.as_tensor(ids, dtype=torch.long).flatten()
        if not len(tokens):
            raise FieldError("ids", ids, "must hold at least one token")
        if bool(((tokens < 0) | (tokens >= vocab_size)).any()):
            raise FieldError("ids", ids, f"must be token ids from 0 to {vocab_size - 1}")
        counts = torch.bincount(tokens, minlength=vocab_size).clamp(min=1)
        return TokenFrequency(counts.double() / len(tokens))

    @staticmethod
    def load(path: str | Path) -> TokenFrequency:
        """Read frequencies from a safetensors file."""
        from safetensors.torch import load_file

        tensors = load_file(path)
        if NAME not in tensors:
            raise FieldError(
                "path", str(path), f"must be a file with a tensor {NAME!r}", "write it with save"
            )
        return TokenFrequency(tensors[NAME])

    def save(self, path: str | Path) -> None:
        """Write the frequencies to a safetensors file."""
        from safetensors.torch import save_file

        save_file({NAME: self._values}, path)

    def on(self, device: torch.device) -> Tensor:
        """Return the frequencies on a device, [V] float32. It is copied there once."""
        if device not in self._copies:
            self._copies[device] = self._values.to(device)
        return self._copies[device]

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenFrequency) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"TokenFrequency({len(self)} tokens, {self.fingerprint})"
