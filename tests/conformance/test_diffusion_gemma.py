"""Every recorded run of DiffusionGemma: which columns a step accepts, and how the others are renoised.

transformers runs the model; our entropy bound takes the place of its own, on the recorded draws.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conformance import golden
from tests.conftest import golden_folders
from unmask import EntropyBound
from unmask.models import diffusion_gemma
from unmask.models.diffusion_gemma import RuleSampler, using_rules

SAMPLER = "diffusion_gemma_entropy_bound"
TOLERANCE = 2e-4
VOCABULARY = 1 << 10  # of logits made up to have a recorded entropy
STEPWISE = ("canvas_in", "drawn", "accepted", "entropy", "x_steps")
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folders = golden_folders(metafunc.config)
    runs = [run for run in golden.runs(folders) if run.case["sampler"] == SAMPLER]
    metafunc.parametrize("run", runs, ids=[golden.label(folders, run) for run in runs])


def test_acceptance_and_renoising_follow_from_the_recorded_entropies(
    run: golden.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, settings = tensors(run), run.case["settings"]
    rule = EntropyBound(bound=settings["entropy_bound"])
    sampler = RuleSampler(rule, arrays["drawn"].shape[2], VOCABULARY, settings["max_denoising_steps"])
    for step, entropy in enumerate(arrays["entropy"]):
        monkeypatch.setattr(sampler, "_random", lambda *_, step=step: arrays["random"][step])
        left = int(arrays["steps_left"][step])
        taken = sampler.accept_canvas(
            arrays["canvas_in"][step], arrays["drawn"][step], with_entropy(entropy), left
        )
        going = ~finished(arrays, step)
        assert torch.equal(sampler.accepted_token_mask[going], arrays["accepted"][step].bool()[going])
        renoised = sampler.renoise_canvas(taken, left)
        assert torch.equal(renoised[going], arrays["canvas_out"][step][going])


def test_generate_with_our_entropy_bound_takes_the_recorded_steps(
    run: golden.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = getattr(pytest.importorskip("transformers"), "DiffusionGemmaForBlockDiffusion", None)
    if family is None:
        pytest.skip("this transformers has no DiffusionGemma")
    arrays, settings = tensors(run), run.case["settings"]
    model = family.from_pretrained(run.checkpoint, dtype=torch.float32, experts_implementation="eager")
    taken = list[Tensor]()
    monkeypatch.setattr(diffusion_gemma, "RuleSampler", lambda *sizes: Recorded(arrays, taken, *sizes))
    known = ("temperature", "torch_seed", "entropy_bound")  # the draws themselves are recorded
    config = {name: value for name, value in settings.items() if name not in known}
    if "attention_mask" in arrays:
        config["attention_mask"] = arrays["attention_mask"].bool()
    text = model.config.text_config
    ids = {"eos_token_id": text.eos_token_id, "pad_token_id": text.pad_token_id}
    with using_rules(model, accept=EntropyBound(bound=settings["entropy_bound"])):
        made = model.generate(arrays["prompt_ids"], **ids, **config)
    assert torch.equal(made.sequences, arrays["x_final"])
    assert len(taken) == len(arrays["canvas_in"])


class Recorded(RuleSampler):
    """Our sampler with the recorded draws, compared with the recording in every step."""

    def __init__(self, arrays: dict[str, Tensor], taken: list[Tensor], *sizes: Any) -> None:
        super().__init__(*sizes)
        self.arrays, self.taken = arrays, taken

    def initialize_canvas(self, batch_size: int, device: torch.device) -> Tensor:
        super().initialize_canvas(batch_size, device)
        return self.arrays["canvas_in"][len(self.taken)]

    def accept_canvas(self, current: Tensor, drawn: Tensor, logits: Tensor, left: Tensor | int) -> Tensor:
        step, going = len(self.taken), ~finished(self.arrays, len(self.taken))
        recorded = {name: each[step] for name, each in self.arrays.items() if name in STEPWISE}
        assert torch.equal(current, recorded["canvas_in"])
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        assert (entropy - recorded["entropy"])[going].abs().max() < TOLERANCE
        assert torch.equal(logits.argmax(-1)[going], recorded["x_steps"][going])
        accepted = super().accept_canvas(current, recorded["drawn"], logits, left)
        assert torch.equal(self.accepted_token_mask[going], recorded["accepted"].bool()[going])
        return accepted

    def renoise_canvas(self, accepted: Tensor, left: Tensor | int) -> Tensor:
        renoised, step = super().renoise_canvas(accepted, left), len(self.taken)
        going = ~finished(self.arrays, step)
        assert torch.equal(renoised[going], self.arrays["canvas_out"][step][going])
        self.taken.append(renoised)
        return renoised

    def _random(self, rows: int, device: torch.device) -> Tensor:
        return self.arrays["random"][min(len(self.taken), len(self.arrays["random"]) - 1)]


def tensors(run: golden.Run) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(array).long()
        if np.issubdtype(array.dtype, np.integer)
        else torch.from_numpy(array)
        for name, array in run.arrays.items()
    }


def finished(arrays: dict[str, Tensor], step: int) -> Tensor:
    """The rows whose canvas had ended before a step, [B] bool; nothing of them is used any more."""
    begins = step == 0 or arrays["steps_left"][step] >= arrays["steps_left"][step - 1]
    last = arrays["finished"][step - 1].bool()
    return torch.zeros_like(last) if begins else last


def with_entropy(entropy: Tensor) -> Tensor:
    """Logits [..., VOCABULARY] of this entropy [...]: one token, and all others alike."""
    others = VOCABULARY - 1
    low, high = (
        torch.full_like(entropy, 1 / VOCABULARY, dtype=torch.float64),
        torch.ones_like(entropy).double(),
    )
    for _ in range(60):  # entropy falls with the probability of the one
        middle = (low + high) / 2
        rest = 1 - middle
        known = torch.special.entr(middle) + torch.special.entr(rest) + rest * math.log(others)
        low, high = torch.where(known > entropy, middle, low), torch.where(known > entropy, high, middle)
    logits = torch.zeros(*entropy.shape, VOCABULARY, dtype=torch.float64)
    logits[..., 0] = (middle.log() - ((1 - middle) / others).log()).clamp(max=80)
    return logits.float()
