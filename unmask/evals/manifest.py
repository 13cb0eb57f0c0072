"""`run.json`: every setting that decides the records of a run, and the machine that ran it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unmask import __version__
from unmask.evals.batches import EncodedSample
from unmask.evals.fingerprint import fingerprint
from unmask.evals.records import digest, settings_of
from unmask.evals.task import Sample, Task
from unmask.fast.load import is_compiled
from unmask.models.checkpoint.hub import MINI
from unmask.plugins import source_digest
from unmask.samplers.wrapper import kind, layers
from unmask.sandbox import isolation
from unmask.text.config import GenerationConfig
from unmask.text.prompts import TextModel, device_of
from unmask.types import Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The configuration of a run. Two runs of the same configuration write the same records."""

    configuration: Mapping[str, Any]
    environment: Mapping[str, Any]


class Difference(NamedTuple):
    """A field that differs between two configurations."""

    name: str
    first: object
    second: object


def describe(
    model: TextModel,
    task: Task,
    encoded: Sequence[EncodedSample],
    sampler: Sampler,
    config: GenerationConfig,
    batch_size: int,
    *,
    known_fingerprint: str | None = None,
) -> Manifest:
    """Return the manifest of a run that is about to start. A known fingerprint is not computed again."""
    length = config.new_tokens(model.info)
    configuration = {
        "task": {"name": task.name, "protocol": task.protocol, "version": task.version},
        "model": describe_model(model, known_fingerprint),
        "prompts": "",
        "sampler": {"kind": kind(sampler), **settings_of(sampler), **sources(sampler)},
        "decoding": {
            **settings_of(config),
            "steps": config.steps or length,
            "block_length": config.block_size(model.info, length),
        },
        "batch_size": batch_size,
        "versions": {"unmask": __version__, "torch": torch.__version__},
    }
    samples = [one.sample for one in encoded]
    configuration = with_samples(configuration, samples, hash_prompts(encoded))
    return Manifest(configuration=configuration, environment=environment(model, task))


def with_samples(configuration: Mapping[str, Any], samples: Sequence[Sample], prompts: str) -> dict[str, Any]:
    """Return the configuration with these samples and this hash of their prompts."""
    names = [item.name for item in fields(Sample)]
    data = digest([{name: getattr(one, name) for name in names} for one in samples])
    task = {**configuration["task"], "samples": len(samples), "data": data}
    return {**configuration, "task": task, "prompts": prompts}


def hash_prompts(encoded: Sequence[EncodedSample]) -> str:
    """Return a hash of the token ids, which depend on the chat template and the tokenizer too."""
    return digest([one.ids if one.canvas is None else (one.ids, one.canvas) for one in encoded])


def hash_settings(configuration: Mapping[str, Any]) -> str:
    """Return a short hash of all settings except the samples, so that it does not depend on the limit."""
    return digest(with_samples(configuration, [], ""))[:8]


def sources(sampler: Sampler) -> dict[str, dict[str, str]]:
    """Return a hash of the file of each sampler class outside unmask; its code decides the records too."""
    hashes = {type(layer).__name__: source_digest(type(layer)) for layer in layers(sampler)}
    known = {name: value for name, value in hashes.items() if value is not None}
    return {"sources": known} if known else {}


def describe_model(model: TextModel, known_fingerprint: str | None = None) -> dict[str, Any]:
    """Return the fingerprint, the device, and whether the model is compiled, which changes its rounding."""
    return {
        "fingerprint": known_fingerprint or fingerprint(model),
        "device": device_name(model),
        "compile": is_compiled(model),
    }


def environment(model: TextModel, task: Task) -> dict[str, Any]:
    """Return the machine and the time; nothing here changes a result."""
    return {
        **({"isolation": _isolation()} if task.runs_programs else {}),
        "model": _model_name(model),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "workers": 1,
    }


@lru_cache(maxsize=1)
def _isolation() -> str:
    """Return what isolates generated programs from this machine."""
    return str(isolation())


def _model_name(model: TextModel) -> str:
    """Return the folder of a checkpoint, or the name of a shipped one."""
    folder = getattr(model, "folder", None)
    if folder is None:
        return type(model).__name__
    return folder.name if folder.parent == MINI else str(folder)


def device_name(model: TextModel) -> str:
    """Return the name of the GPU, or the type of another device."""
    device = device_of(model)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _processor() -> str:
    """Return the name of the processor, as well as the system knows it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Return the fields in which two configurations differ, by dotted name."""
    left, right = dict(_flat(first)), dict(_flat(second))
    names = dict.fromkeys((*left, *right))
    pairs = (Difference(name, left.get(name), right.get(name)) for name in names)
    return [pair for pair in pairs if pair.first != pair.second]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
