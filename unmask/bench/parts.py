"""The time of a step by kind of kernel, and the time in which no kernel ran."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch.profiler import ProfilerActivity, profile

from unmask.bench.timing import Work, seconds
from unmask.experiments.drawing import COLOURS, panels, save_png

# the first pattern that matches a kernel's name gives its kind
KINDS = {
    "matrix products": r"gemm|nvjet|cutlass|xmma|cublas|splitk|aten::(mm|addmm|bmm)$"
    r"|^_(scaled|int4|multiply)",
    "attention": r"flash|fmha|attention|cudnn_.*sdpa|^_attend$",
    "summary of the logits": r"^_scan$|^_choose$|logsumexp|topk|gatherTopK|radix",
    "compiled layers and decisions": r"^triton_",
    "copies": r"memcpy|memset|copy|aten::(clone|cat)",
    "other small kernels": r"",
}
WAITING = "no kernel running"


class Part(TypedDict):
    """The share of one kind of kernel in a step."""

    kind: str
    ms: float
    kernels: float  # launched per step


def parts_of_a_step(run: Work, steps: int, device: torch.device) -> list[Part]:
    """Profile `run`, which takes `steps` steps, and return the parts of one. On the CPU, count operations."""
    run()
    whole = seconds(run, device) * 1e3 / steps  # timed without the profiler, which is slow
    cuda = device.type == "cuda"
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as profiler:  # torch 2.11 warns without it
        seconds(run, device)
    spent = {kind: Part(kind=kind, ms=0.0, kernels=0.0) for kind in KINDS}
    for event in profiler.key_averages():
        if cuda and event.device_type.name != "CUDA":
            continue
        part = spent[kind_of(event.key)]
        part["ms"] += (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e3 / steps
        part["kernels"] += event.count / steps
    waiting = whole - sum(part["ms"] for part in spent.values())
    return [*spent.values(), Part(kind=WAITING, ms=max(0.0, waiting), kernels=0.0)]


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel, by its name."""
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, kernel, re.IGNORECASE))


def parts_table(title: str, parts: Sequence[Part]) -> str:
    """Return the parts as Markdown."""
    whole = sum(part["ms"] for part in parts)
    lines = [f"| {title} | us | share | kernels |", "|---|---|---|---|"]
    for part in parts:
        lines.append(
            f"| {part['kind']} | {part['ms'] * 1e3:,.0f} | {part['ms'] / whole:.1%} | {part['kernels']:.0f} |"
        )
    return "\n".join(lines)


def draw_parts(content: Mapping[str, Any], path: Path) -> None:
    """Draw one bar per family and way, as a PNG."""
    bars = [
        (f"{family['name']} {way}", found["parts"])
        for family in content["families"].values()
        for way, found in family.items()
        if isinstance(found, dict) and "parts" in found
    ]
    figure, [axes] = panels(1, width=8, height=1.2 + 0.5 * len(bars))
    left = [0.0] * len(bars)
    for kind, colour in zip([*KINDS, WAITING], [*COLOURS[: len(KINDS)], "#DDDDDD"], strict=True):
        widths = [sum(part["ms"] for part in parts if part["kind"] == kind) for _, parts in bars]
        axes.barh([name for name, _ in bars], widths, left=left, label=kind, color=colour)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a step of less, B = 1, no cache")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    save_png(figure, path)
