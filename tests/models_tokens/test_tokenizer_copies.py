"""A model is a plain module: it can be copied, pickled and quantised with its tokenizer on."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path

import torch
from torch import nn

from tests.checkpoints import write_checkpoint
from unmask import load


def test_a_model_with_a_chat_template_can_be_copied_and_pickled(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path / "model", "llada_tiny"), device="cpu")
    chat = [{"role": "user", "content": "the cat"}]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.tokenizer.chat(chat) == model.tokenizer.chat(chat)
        assert all(map(torch.equal, twin.parameters(), model.parameters()))


def test_a_model_with_a_chat_template_can_be_quantised(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path / "model", "llada_tiny"), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch moves this function to another package
        small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    tokens = torch.arange(12)[None]
    assert small(tokens, None, slice(0, 12), None).shape == model(tokens, None, slice(0, 12), None).shape
