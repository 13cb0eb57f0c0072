"""What one decision costs at the real shapes, in units of the pass over the logits that every rule needs."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from unmask.bench.plain import PLAIN
from unmask.decoding.summary import summarize
from unmask.errors import whole
from unmask.models.checkpoint.load import pick_device
from unmask.samplers import make_sampler
from unmask.types import Observation, Prediction, Sampler

SHAPES = {"LLaDA-8B": 126_464, "Dream-7B": 152_064}
WINDOW = 256


def predictions(vocabulary: int, *, window: int, device: str) -> tuple[Prediction, Prediction]:
    """Two steps of a half-decided model: confidences from 0 to 1, drifting a little."""
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(1, window, vocabulary, generator=generator)
    winners = torch.randint(vocabulary, (1, window, 1), generator=generator)
    before.scatter_(-1, winners, torch.linspace(8, 20, window)[None, :, None])
    now = before + 0.05 * torch.randn(1, window, vocabulary, generator=generator)
    return summarize(now.to(device), 8), summarize(before.to(device), 8)


def observation(sampler: Sampler, now: Prediction, before: Prediction) -> Observation:
    """The middle of a full-sequence decoding: every other position still masked."""
    rows, window = now.lse.shape
    device = now.lse.device
    masked = torch.arange(window, device=device).expand(rows, window) % 2 == 0
    ones = torch.ones(rows, dtype=torch.int64, device=device)
    share = torch.full((rows,), 0.5, device=device)
    lookback = sampler.needs.lookback
    divergences = torch.zeros(rows, window, 1, device=device)
    return Observation(
        now=now,
        past=(before,) * lookback,
        seen=ones * lookback,
        drawn=now.top1,
        masked=masked,
        active=masked,
        quota=ones,
        rate=share,
        step=ones * 9,
        progress=share,
        carry=divergences if sampler.needs.span and sampler.needs.logits else None,
        noise=None,
        blockwise=False,
    )


def step(sampler: Sampler, obs: Observation) -> object:
    """What the loop does after a forward: one summary, one decision."""
    return sampler.decide(replace(obs, now=summarize(obs.now.full_logits, sampler.needs.top_k)))


def best_seconds(works: Sequence[Callable[[], object]], repeat: int, device: str) -> list[float]:
    """Best time of each, after one turn to warm up; they take turns, so that load hits all of them alike."""
    best = [float("inf")] * len(works)
    for turn in range(repeat + 1):
        for index, work in enumerate(works):
            taken = seconds(work, device)
            best[index] = min(best[index], taken) if turn else best[index]
    return best


def seconds(work: Callable[[], object], device: str) -> float:
    """Time of one run, the device's own work included."""
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def measure(
    vocabulary: int, *, repeat: int, device: str, window: int = WINDOW, names: Iterable[str] = PLAIN
) -> Iterator[tuple[str, float, float]]:
    """Sampler, cost of its step, cost of the plain rule, both in units of one pass over the logits."""
    now, before = predictions(vocabulary, window=window, device=device)
    logits = now.full_logits
    for name in names:
        sampler = make_sampler(name)
        obs = observation(sampler, now, before)
        works = (
            lambda: (logits.topk(8), logits.logsumexp(-1)),
            partial(step, sampler, obs),
            partial(PLAIN[name], obs),
        )
        unit, ours, plain = best_seconds(works, repeat, device)
        yield name, ours / unit, plain / unit


def main() -> None:
    """Print the table, or one sentence on what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m unmask.bench", description=__doc__)
    parser.add_argument("what", choices=["samplers"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    try:
        run_samplers(arguments.device, arguments.repeat)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def run_samplers(device: str, repeat: int) -> None:
    """Print the table."""
    place = str(pick_device(device))
    whole("--repeat", repeat, 1)
    _report(place, repeat)


def _report(device: str, repeat: int) -> None:
    print(f"one step, B = 1, W = {WINDOW}; unit: torch.topk(8) + torch.logsumexp over the same logits")
    print("the machine should be idle: best of all turns, but load still shows")
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {device} ({platform.machine()}), {threads} threads")
    for shape, vocabulary in SHAPES.items():
        print(f"\n{shape}, V = {vocabulary:,}")
        print(f"{'sampler':<14} {'summary + decide':>16} {'plain rule':>11} {'faster':>7}")
        for name, ours, plain in measure(vocabulary, repeat=repeat, device=device):
            print(f"{name:<14} {ours:>16.2f} {plain:>11.2f} {plain / ours:>6.1f}x")
