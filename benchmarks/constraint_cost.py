"""The cost of a constraint: a step with and without one, and the time to build an automaton."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import torch

import unmask
from unmask import GenerationConfig, JSONSchema
from unmask.bench.device import full_size_device
from unmask.bench.internals import mark_forwards
from unmask.bench.step import SMALL, Sizes, StepTimer, full_size
from unmask.bench.timing import machine, seconds
from unmask.constraints.automaton import AUTOMATA, Automata, TokenAutomaton
from unmask.constraints.bytes import ByteAutomaton
from unmask.constraints.fitting import Fitting
from unmask.decoding.bans import Bans
from unmask.decoding.loop import denoise
from unmask.decoding.options import Options
from unmask.decoding.plan import plan
from unmask.decoding.result import Result, collect
from unmask.errors import FieldError
from unmask.fast.compile import compile
from unmask.types import ModelInfo

FORM = {  # about 200 states
    "type": "object",
    "properties": {
        "question": {"type": "string"},
        "answer": {"type": "integer"},
        "steps": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        "date": {"type": "string", "format": "date"},
        "unit": {"enum": ["none", "apples", "dollars", "minutes", "kilometres"]},
        "sure": {"type": "boolean"},
    },
    "required": ["question", "answer", "steps", "date", "unit", "sure"],
}
SHORT = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
WORD = re.compile(r" ?[^\W\d_]+|\d| ?[^\w\s]+|\s+")
LONGEST = 16  # characters of a piece
END = 126_081  # the id of LLaDA's end token


def small_model(turns: int) -> dict[str, Any]:
    """Print the time of a step with and without a constraint, on a small model."""
    model = unmask.load("mini-llada")
    constraint, prompt = JSONSchema(FORM), "Tom has 3 apples and buys 4. How many has he?"
    states = ByteAutomaton.compile(constraint).dead
    times: dict[bool, list[float]] = {False: [], True: []}
    for held in [False, True] * (turns + 1):
        config = GenerationConfig(max_new_tokens=128, constraint=constraint if held else None)
        began = process_time()  # on the wall clock, other programs would count
        [answer] = unmask.generate(model, [prompt], unmask.make_sampler("less"), config)
        times[held].append(1000 * (process_time() - began) / answer.forwards)
    return {"states": states, **_compared(times), "machine": machine(torch.device("cpu"))}


@torch.no_grad()
def full_size_model(device_name: str, path: Path | None, turns: int, *, small: bool) -> dict[str, Any]:
    """Print the time of a compiled step of `less` with and without a constraint, on random weights."""
    device = full_size_device(device_name, small=small)
    timer = StepTimer(full_size("llada", device, small=small), SMALL if small else Sizes(), device)
    compile(timer.model, bucket=timer.sizes.block)
    automaton = _made(SHORT if small else FORM, timer.model.info, path)
    language = Fitting.of([automaton], timer.canvas(1), timer.canvas(1).start)
    runs = {held: partial(_decode, timer, language if held else None) for held in (False, True)}
    times: dict[bool, list[float]] = {False: [], True: []}
    for held in [False, True] * (turns + 1):  # the first run of each compiles and captures
        forwards = timer.sizes.budgets[0]
        times[held].append(1000 * seconds(runs[held], device) / forwards)
    runner: Any = timer.model.runner
    begun, used = runner.submitted, runner.finished
    result = runs[True]()
    begun, used = runner.submitted - begun, runner.finished - used
    canvas = timer.canvas(1)
    canvas.tokens[:] = result.tokens
    forward_ms = {held: mark_forwards(timer.model, runs[held], device).forward_ms() for held in runs}
    found = {
        "states": language.parts[0].machine.states,
        "classes": automaton.next.shape[1],
        "edges": len(language.parts[0].machine.edges[0]),
        **_compared(times),
        "free_forward_ms": forward_ms[False],
        "held_forward_ms": forward_ms[True],
        "parts_ms": _parts(timer, language),  # timed alone; in a step, the first overlaps with the forward
        "forwards": result.evaluations,
        "submitted_early": begun,
        "finished_early": used,
        "still_fits": language.shortest(canvas, None) == [None],
        "machine": machine(device),
    }
    print(found)
    return found


def _decode(timer: StepTimer, language: Fitting | None) -> Result:
    """Take the steps of the budget without a cache, and leave the rest masked."""
    canvas, info = timer.canvas(1), timer.model.info
    options = Options(stop_at_eos=False, fill_leftovers=False)
    blocks = plan(canvas.start, timer.sizes.length, steps=timer.sizes.budgets[0])
    bans = Bans((info.mask_id,), language=language)
    steps = denoise(timer.model, canvas, unmask.make_sampler("less"), blocks, options, bans=bans)
    return collect(steps, canvas, ())


def _parts(timer: StepTimer, language: Fitting) -> dict[str, float]:
    """Return the milliseconds of the parts of a constrained step, one after another without a forward."""
    canvas, info = timer.canvas(1), timer.model.info
    window = slice(canvas.start, canvas.tokens.shape[1])
    focused = language.focus(canvas, None, window)
    allowed = focused.allowed(canvas, None)
    tokens = canvas.tokens[:, window]
    dtype = next(timer.model.parameters()).dtype
    logits = torch.zeros(1, timer.sizes.length, info.vocab_size, dtype=dtype, device=timer.device)
    works = {
        "allowed": lambda: focused.allowed(canvas, None),
        "apply": lambda: allowed.apply(logits),
        "fits": lambda: focused._fits(canvas, None, tokens),
    }
    return {name: timer.milliseconds(work) for name, work in works.items()}


def _compared(times: dict[bool, list[float]]) -> dict[str, Any]:
    """Print the median times and their ratio, and return all times and the ratio, without the first turn."""
    free, held = (median(times[held][1:]) for held in (False, True))
    print(f"a step takes {free:.2f} ms, with the constraint {held:.2f} ms: {held / free:.3f} times as long")
    return {"free_ms": times[False][1:], "held_ms": times[True][1:], "ratio": held / free}


# ---- automata


def build(size: int, texts: Path | None, path: Path | None) -> dict[str, Any]:
    """Print the time to build the automaton of a schema for a large vocabulary, and to read it from disk."""
    tokens = vocabulary(size, texts)
    if None in tokens:
        problem = f"must hold enough words for {size} tokens; there are {tokens.index(None)}"
        raise FieldError("texts", texts, problem, "name a larger folder with --texts")
    with TemporaryDirectory() as folder:
        os.environ["UNMASK_CACHE"] = folder
        built = _timed(AUTOMATA, tokens)
        again = _timed(Automata(), tokens)  # with nothing in memory, so it reads from disk
        [file] = (Path(folder) / "constraints").iterdir()
        stored = file.read_bytes()
    if path is not None:
        path.write_bytes(stored)
    made = AUTOMATA.get(JSONSchema(FORM), tokens, [END])
    found: dict[str, Any] = {"tokens": size, "states": len(made.next) - 1, "classes": made.next.shape[1]}
    found |= {"built": built, "from_disk": again, "file_bytes": len(stored)}
    print(found)
    return found | {"machine": machine(torch.device("cpu"))}


def _timed(automata: Automata, tokens: list[bytes | None]) -> dict[str, float]:
    began, worked = perf_counter(), process_time()
    automata.get(JSONSchema(FORM), tokens, [END])
    return {"seconds": perf_counter() - began, "process_seconds": process_time() - worked}


def _made(schema: dict[str, Any], info: ModelInfo, path: Path | None) -> TokenAutomaton:
    """Read the automaton from a file, or build one for a vocabulary of word pieces."""
    if path is None:
        return AUTOMATA.get(JSONSchema(schema), vocabulary(info.vocab_size, None), info.eos_ids)
    stored = torch.load(path, weights_only=True)
    return TokenAutomaton(stored["next"].long(), stored["kinds"].long(), stored["accept"])


def vocabulary(size: int, folder: Path | None) -> list[bytes | None]:
    """Return all bytes and the most frequent word pieces in the texts of a folder, as tokens."""
    words = Counter[str]()
    for text in texts_of(folder or Path(json.__file__).parent):
        words.update(WORD.findall(text))
    pieces = Counter[str]()
    for word, count in words.items():
        for first in range(min(len(word), LONGEST)):
            for last in range(first + 2, min(len(word), first + LONGEST) + 1):
                pieces[word[first:last]] += count
    ranked = (piece.encode() for piece, _ in pieces.most_common())
    tokens = dict.fromkeys([*(bytes([byte]) for byte in range(256)), *islice(ranked, size)])
    return list(tokens)[:size] + [None] * (size - len(tokens))


def texts_of(folder: Path) -> Iterator[str]:
    """Yield the texts of a folder, unpacked."""
    opened: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in (".gz", ".bz2", ".jsonl", ".txt", ".py", ".md"):
            with opened.get(path.suffix, open)(path, "rt", encoding="utf-8", errors="ignore") as file:
                yield file.read()
