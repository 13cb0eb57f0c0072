"""The public names of `unmask`. The package imports this module when one of them is first used."""

from unmask import trace
from unmask.constraints.language import Choice, Grammar, JSONSchema, Regex
from unmask.decoding.append_cache import AppendCache
from unmask.decoding.cache import BlockCache
from unmask.decoding.canvas import Canvas, blank
from unmask.decoding.draw import RowNoise, Selection
from unmask.decoding.guidance import Guided
from unmask.decoding.loop import denoise
from unmask.decoding.options import Options
from unmask.decoding.plan import plan
from unmask.decoding.result import Result, decode
from unmask.fast.compile import compile
from unmask.models import load, register_model, save
from unmask.samplers import (
    KLASS,
    LESS,
    PC,
    SAMPLERS,
    WINO,
    Base,
    Credit,
    Dawn,
    Editing,
    EndLast,
    EntropyBound,
    EntropyThreshold,
    Factor,
    FirstMask,
    Hierarchy,
    LESSReleased,
    LocalLeap,
    Prophet,
    QuotaThreshold,
    Saber,
    Spaced,
    Speculative,
    Threshold,
    TokenFrequency,
    make_sampler,
    register_sampler,
)
from unmask.text.config import GenerationConfig
from unmask.text.gaps import Gap, escape_gaps
from unmask.text.generate import Generation, generate
from unmask.text.infill import Infilling, infill
from unmask.text.stream import Chunk, stream

__all__ = [
    "KLASS",
    "LESS",
    "PC",
    "SAMPLERS",
    "WINO",
    "AppendCache",
    "Base",
    "BlockCache",
    "Canvas",
    "Choice",
    "Chunk",
    "Credit",
    "Dawn",
    "Editing",
    "EndLast",
    "EntropyBound",
    "EntropyThreshold",
    "Factor",
    "FirstMask",
    "Gap",
    "Generation",
    "GenerationConfig",
    "Grammar",
    "Guided",
    "Hierarchy",
    "Infilling",
    "JSONSchema",
    "LESSReleased",
    "LocalLeap",
    "Options",
    "Prophet",
    "QuotaThreshold",
    "Regex",
    "Result",
    "RowNoise",
    "Saber",
    "Selection",
    "Spaced",
    "Speculative",
    "Threshold",
    "TokenFrequency",
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
    "register_model",
    "register_sampler",
    "save",
    "stream",
    "trace",
]
