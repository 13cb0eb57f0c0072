"""Set up the model of a recipe: fresh from a config and its tokenizer, or loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import FieldError, at_least
from unmask.models.checkpoint.load import build, load
from unmask.models.text.tokens import Tokenizer
from unmask.models.trunk import Trunk
from unmask.training.objective import LossWeights
from unmask.training.recipe import ModelSpec

INIT_STD = 0.02
EMBEDDING_STD = 0.1  # larger, because the model learns to copy late if the layers drown out the embeddings
OUTPUTS = ("attention.output.weight", "mlp.down.weight")  # output matrices of a layer
EMBEDDING_MULTIPLE = 64  # a width that suits matrix kernels


def make_model(spec: ModelSpec, *, seed: int, device: torch.device) -> Trunk:
    """Make the recipe's model, trainable and in float32, with its tokenizer and folder set."""
    if spec.load is not None:
        model = load(spec.load, device=device, dtype=torch.float32)
        if model.tokenizer is None:
            raise ValueError(f"{spec.load} has no tokenizer, which training on texts needs")
        if spec.layers is not None:
            model = with_layers(model, spec.layers)
        return model.requires_grad_(True).train()
    assert spec.tokenizer is not None
    folder = Path(spec.tokenizer)
    if not folder.is_dir():
        raise ValueError(
            f"model.tokenizer: {folder} is not a folder; python -m unmask.training.vocabulary writes one"
        )
    tokenizer = Tokenizer.from_folder(folder)
    model = build(complete(spec.config, tokenizer, vocabulary_size(tokenizer)))
    initialize(model, seed=seed)
    model.tokenizer, model.folder = tokenizer, folder
    return model.to(device).train()


def complete(config: Mapping[str, Any], tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """Return the config with missing ids and sizes filled in from the tokenizer."""
    special = tokenizer.special
    padded = -(-vocab_size // EMBEDDING_MULTIPLE) * EMBEDDING_MULTIPLE
    if str(config.get("model_type")).lower() == "llada":
        sizes = {"vocab_size": vocab_size, "embedding_size": padded}
    else:
        sizes = {"vocab_size": padded}
    ends = special.ends[0] if len(special.ends) == 1 else list(special.ends)
    pad = special.pad if special.pad is not None else special.ends[0]
    return {**sizes, "mask_token_id": special.mask, "eos_token_id": ends, "pad_token_id": pad, **config}


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the number of ids; raise if the ids have gaps."""
    size = 0
    while tokenizer.id_to_token(size) is not None:
        size += 1
    if any(token >= size for token in (tokenizer.special.mask, *tokenizer.special.ends)):
        raise ValueError(f"{tokenizer.origin} has no token {size}; its special ids come after a gap")
    return size


@torch.no_grad()
def initialize(model: Trunk, *, seed: int) -> None:
    """Set small random weights; the layers' outputs start at zero, so depth does no harm."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if name.endswith((*OUTPUTS, "bias")):
            p.zero_()
        elif name.endswith("norm.weight"):
            p.fill_(1.0)
        else:
            p.normal_(0.0, EMBEDDING_STD if name == "embed.weight" else INIT_STD, generator=generator)


@torch.no_grad()
def with_layers(model: Trunk, layers: int) -> Trunk:
    """Return the model with another number of layers.

    A deeper model computes the same function at first, because the added layers are copies whose output
    matrices are zero. They are spread evenly, and each follows the layer that it copies. A shallower model
    keeps evenly spread layers, including the first and the last, and has to learn the rest again.
    """
    before = len(model.layers)
    if model.shape.experts is not None:
        raise FieldError("layers", layers, "must be left out for a mixture of experts")
    at_least("layers", layers, 2)
    changed = build(config_with_layers(model.config, layers))
    state = {name: value for name, value in model.state_dict().items() if not name.startswith("layers.")}
    if layers < before:
        sources = [round(layer * (before - 1) / (layers - 1)) for layer in range(layers)]
    else:
        sources = [layer * before // layers for layer in range(layers)]
    for number, source in enumerate(sources):
        is_copy = number > 0 and sources[number - 1] == source
        for name, value in model.layers[source].state_dict().items():
            silent = is_copy and name.endswith(OUTPUTS)
            state[f"layers.{number}.{name}"] = torch.zeros_like(value) if silent else value.clone()
    changed.load_state_dict(state)
    changed.tokenizer, changed.folder, changed.info = model.tokenizer, model.folder, model.info
    return changed.to(model.norm.weight.device)


def config_with_layers(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Return the config of the same model with another number of layers."""
    name = "n_layers" if "n_layers" in config else "num_hidden_layers"
    return {**config, name: layers}


def token_weights(weights: LossWeights, tokenizer: Tokenizer, *, vocab_size: int) -> Tensor | None:
    """Return the weight of each token, [V], or None if all are 1."""
    if not weights.tokens:
        return None
    table = torch.ones(vocab_size)
    for text, weight in weights.tokens.items():
        ids = tokenizer.encode(text)
        if len(ids) != 1:
            raise ValueError(f"weights.tokens: {text!r} must be a single token, got the {len(ids)} ids {ids}")
        table[ids[0]] = weight
    return table
