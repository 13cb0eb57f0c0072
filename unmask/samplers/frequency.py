"""How common each token is in a corpus: an input of the PC sampler."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from unmask.errors import FieldError, whole

NAME = "frequencies"  # name of the tensor in a file
MAX_HEADER = 1 << 20  # most bytes of a file's header


class TokenFrequency:
    """The share of each token in a corpus. Two instances are equal if their numbers are."""

    def __init__(self, values: Tensor) -> None:
        if not isinstance(values, Tensor) or values.ndim != 1 or not values.is_floating_point():
            raise FieldError("values", values, "must be a tensor of frequencies, one for each token")
        if not len(values) or not bool(((values >= 0) & (values <= 1)).all()):
            raise FieldError(
                "values", values, "must be frequencies from 0 to 1", "divide counts by their sum"
            )
        self._bytes = bytearray(4 * len(values))
        self._values = torch.frombuffer(self._bytes, dtype=torch.float32).copy_(values.detach())
        self._copies: dict[torch.device, Tensor] = {}
        self.fingerprint = sha256(self._bytes).hexdigest()[:16]

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

    # written without the safetensors library, because the core needs only torch
    def save(self, path: str | Path) -> None:
        """Write the frequencies to a safetensors file."""
        entry = {"dtype": "F32", "shape": [len(self)], "data_offsets": [0, len(self._bytes)]}
        header = json.dumps({NAME: entry}).encode()
        header += b" " * (-len(header) % 8)
        Path(path).write_bytes(len(header).to_bytes(8, "little") + header + self._bytes)

    @staticmethod
    def load(path: str | Path) -> TokenFrequency:
        """Read frequencies from a safetensors file."""
        with Path(path).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            try:
                entry = json.loads(file.read(min(size, MAX_HEADER)))[NAME]
                if entry["dtype"] != "F32":
                    raise TypeError(entry["dtype"])
                first, last = entry["data_offsets"]
                file.seek(8 + size + first)
                values = torch.frombuffer(bytearray(file.read(last - first)), dtype=torch.float32)
            except (ValueError, KeyError, TypeError):
                problem = f"must be a safetensors file with frequencies as float32 {NAME!r}"
                raise FieldError("path", str(path), problem, "write it with TokenFrequency.save") from None
        return TokenFrequency(values)

    def on(self, device: torch.device) -> Tensor:
        """Return the frequencies on a device, [V] float32. They are copied there once."""
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

    def __reduce__(self) -> tuple[type[TokenFrequency], tuple[Tensor]]:
        return TokenFrequency, (self._values,)  # copies on devices are not pickled
