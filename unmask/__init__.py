"""unmask: fast, trustworthy decoding of masked diffusion language models."""

from unmask.cache import BlockCache
from unmask.canvas import Canvas, blank
from unmask.config import GenerationConfig
from unmask.draw import RowNoise, Selection
from unmask.gaps import Gap, escape_gaps
from unmask.generate import Generation, generate
from unmask.guidance import Guided
from unmask.infill import Infilling, infill
from unmask.loop import Options, denoise
from unmask.models import compile, load
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
from unmask.stream import Chunk, stream

__version__ = "0.1.0"

__all__ = [
    "KLASS",
    "LESS",
    "SAMPLERS",
    "Base",
    "BlockCache",
    "Canvas",
    "Chunk",
    "EntropyBound",
    "Factor",
    "Gap",
    "Generation",
    "GenerationConfig",
    "Guided",
    "Infilling",
    "LESSReleased",
    "Options",
    "Prophet",
    "Result",
    "RowNoise",
    "Selection",
    "Threshold",
    "blank",
    "compile",
    "decode",
    "denoise",
    "escape_gaps",
    "generate",
    "infill",
    "load",
    "make_sampler",
    "plan",
    "stream",
]
