"""Masked language models with one interface. Only diffusion_gemma.py imports `unmask.decoding`."""

from unmask.models.checkpoint.load import MODEL_TYPES, build, load, register_model
from unmask.models.checkpoint.save import random_checkpoint, random_model, save

__all__ = ["MODEL_TYPES", "build", "load", "random_checkpoint", "random_model", "register_model", "save"]
