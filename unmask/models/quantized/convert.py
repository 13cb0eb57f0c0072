"""Replace the layers of a model with quantized ones, and fill them part by part while it loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from unmask.errors import FieldError
from unmask.models.experts import Experts
from unmask.models.quantized.experts import QuantizedExperts
from unmask.models.quantized.fp8 import FP8Linear
from unmask.models.quantized.int4 import Int4Linear, Int4PairLinear
from unmask.models.quantized.int8 import Int8Embedding, Int8Linear
from unmask.models.quantized.linear import QuantizedLinear
from unmask.models.trunk import Trunk

FIELD = "quantization_config"  # the field of config.json
METHOD = "unmask"  # the quant_method in it
REMEDY = "load the checkpoint that it was made from, and let dtype quantize it"
WEIGHTS = 1 << 23  # weights to quantize at a time
LAST_LAYERS = 2  # the last layers, whose rounding changes the logits more than that of the others
Model = TypeVar("Model", bound=Trunk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The layer classes of a format. Norms and routers are never quantized."""

    layer: type[QuantizedLinear]  # the class for attention, MLP and experts
    last: type[QuantizedLinear] | None = None  # the class for the last layers; None means the same as `layer`
    head: type[QuantizedLinear] | None = None  # None keeps 16 bits, so that a few logits can be recomputed
    embed: type[Int8Embedding] | None = None  # None keeps 16 bits
    version: int = 1  # config.json must have the same version

    def layer_of(self, path: str, layers: int) -> type[QuantizedLinear]:
        """Return the class that replaces a module of a model with this many layers."""
        is_last = path.startswith(tuple(f"layers.{layers - back}." for back in range(1, LAST_LAYERS + 1)))
        return self.last if is_last and self.last is not None else self.layer


FORMATS = {
    "fp8": Format(layer=FP8Linear),
    "int8": Format(layer=Int8Linear),
    "int4": Format(layer=Int4Linear, last=Int4PairLinear, head=Int8Linear, embed=Int8Embedding, version=2),
}


def quantize_modules(model: Trunk, name: str) -> dict[str, str]:
    """Replace the layers of a model on `meta`. Return each replaced weight's name and its layer's name."""
    chosen = FORMATS[name]
    swapped: dict[str, str] = {}
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            layer = chosen.head if path == "head" else chosen.layer_of(path, model.shape.layers)
            if layer is not None:
                narrow = layer(module.in_features, module.out_features, bias=module.bias is not None)
                model.set_submodule(path, narrow.to("meta"))
                swapped[f"{path}.weight"] = path
        elif isinstance(module, nn.Embedding) and chosen.embed is not None:
            table = chosen.embed(module.embedding_dim, module.num_embeddings)
            model.set_submodule(path, table.to("meta"))
            swapped[f"{path}.weight"] = path
        elif isinstance(module, Experts):
            layer = chosen.layer_of(path, model.shape.layers)
            model.set_submodule(path, QuantizedExperts(module, layer).to("meta"))
            swapped |= {f"{path}.{stack}": f"{path}.{stack}" for stack in ("gate_up", "down")}
    return swapped


class Quantizer:
    """Replaces the layers of a model and collects its state dict, quantizing some rows at a time."""

    def __init__(self, model: Trunk, name: str, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.layers = quantize_modules(model, name)
        model.config |= format_field(name)
        self.state: dict[str, Tensor] = {}

    def write(self, name: str, rows: Tensor, start: int = 0) -> None:
        """Quantize rows [n, in] of a replaced weight, and store them from row `start` on."""
        path = self.layers[name]
        layer = self.model.get_submodule(path)
        assert isinstance(layer, QuantizedLinear)
        keys = f"{path}.weight", f"{path}.scale"
        if keys[0] not in self.state:
            with self.device:
                self.state |= zip(keys, layer.empty(layer.outputs, layer.inputs), strict=True)
        for part in torch.split(rows, max(1, WEIGHTS // rows.shape[1])):
            place = slice(start, start + len(part))
            for key, narrow in zip(keys, layer.encode(part.to(self.device)), strict=True):
                self.state[key][place] = narrow
            start += len(part)


def quantize_model(model: Model, name: str) -> Model:
    """Quantize the weights of a model in place."""
    weights = model.state_dict()
    quantizer = Quantizer(model, name, next(iter(weights.values())).device)
    for key in list(weights):
        weight = weights.pop(key)  # free each weight before quantizing the next
        if key in quantizer.layers:
            quantizer.write(key, weight.flatten(0, -2))
        else:
            quantizer.state[key] = weight
    model.load_state_dict(quantizer.state, assign=True)
    return model.requires_grad_(False)


def stored_format(config: Mapping[str, object]) -> str | None:
    """Return the format of a quantized checkpoint, or None if it has plain weights."""
    value = config.get(FIELD)
    if value is None:
        return None
    known = isinstance(value, dict) and value.get("quant_method") == METHOD
    if not known or not isinstance(value, dict) or value.get("format") not in FORMATS:
        problem = f"must be of quant_method {METHOD} and one of the formats {', '.join(FORMATS)}"
        raise FieldError(FIELD, value, problem, REMEDY, "config.json")
    name = str(value["format"])
    if value.get("version", 1) != FORMATS[name].version:
        problem = f"must be of version {FORMATS[name].version}, the one that this release reads"
        raise FieldError(FIELD, value, problem, REMEDY, "config.json")
    return name


def format_field(name: str) -> dict[str, object]:
    """Return the field of config.json that names a format."""
    return {FIELD: {"quant_method": METHOD, "format": name, "version": FORMATS[name].version}}
