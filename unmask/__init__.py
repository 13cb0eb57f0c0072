"""unmask: fast, trustworthy decoding of masked diffusion language models."""

from unmask.canvas import Canvas, blank
from unmask.draw import RowNoise, Selection
from unmask.guidance import Guided
from unmask.loop import Options, denoise
from unmask.result import Result, decode
from unmask.samplers import (
    KLASS,
    LESS,
    SAMPLERS,
    Base,
    EntropyBound,
    Factor,
    LESSReleased,
    Prophet,
    Threshold,
    make_sampler,
)
from unmask.schedule import plan

__version__ = "0.1.0"

__all__ = [
    "KLASS",
    "LESS",
    "SAMPLERS",
    "Base",
    "Canvas",
    "EntropyBound",
    "Factor",
    "Guided",
    "LESSReleased",
    "Options",
    "Prophet",
    "Result",
    "RowNoise",
    "Selection",
    "Threshold",
    "blank",
    "decode",
    "denoise",
    "make_sampler",
    "plan",
]
