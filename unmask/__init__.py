"""unmask: fast, trustworthy decoding of masked diffusion language models."""

from unmask.decoding.cache import BlockCache
from unmask.decoding.canvas import Canvas, blank
from unmask.decoding.draw import RowNoise, Selection
from unmask.decoding.guidance import Guided
from unmask.decoding.loop import denoise
from unmask.decoding.options import Options
from unmask.decoding.plan import plan
from unmask.decoding.result import Result, decode
from unmask.fast.compile import compile
from unmask.models import load
from unmask.samplers import (
    KLASS,
    LESS,
    SAMPLERS,
    WINO,
    Base,
    Dawn,
    EntropyBound,
    Factor,
    LESSReleased,
    Prophet,
    Threshold,
    make_sampler,
)
from unmask.text.config import GenerationConfig
from unmask.text.gaps import Gap, escape_gaps
from unmask.text.generate import Generation, generate
from unmask.text.infill import Infilling, infill
from unmask.text.stream import Chunk, stream

__version__ = "0.1.0"

__all__ = [
    "KLASS",
    "LESS",
    "SAMPLERS",
    "WINO",
    "Base",
    "BlockCache",
    "Canvas",
    "Chunk",
    "Dawn",
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
