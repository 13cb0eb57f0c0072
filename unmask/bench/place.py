"""Where a benchmark runs."""

from __future__ import annotations

import torch

from unmask.models.checkpoint.load import pick_device


def pick_place(device: str | None, *, small: bool) -> torch.device:
    """The device of this name; a run at full size takes a GPU, and the CPU only where it is named."""
    if small:
        return pick_device(device or "cpu")
    if device != "cpu" and pick_device("auto").type == "cpu":
        raise ValueError(
            f"device {device or 'cuda'!r} is not available at full size: there is no GPU on this machine; "
            "add --small for the same in miniature, or --device cpu to wait for the CPU"
        )
    place = pick_device(device or "cuda")
    if place.type == "cuda" and place.index is not None:
        torch.cuda.set_device(place)  # where times are taken
    return place
