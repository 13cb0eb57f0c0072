"""`unmask bench samplers`: the cost of one decision at full size, in units of one pass over the logits."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from unmask.bench.timing import seconds
from unmask.decoding.summary import summarize
from unmask.errors import whole
from unmask.models.checkpoint.load import pick_device
from unmask.samplers import make_sampler
from unmask.types import Observation, Prediction, Sampler

Rule = Callable[[Observation], object]

VOCABULARIES = {"LLaDA-8B": 126_464, "Dream-7B": 152_064}
WINDOW = 256
SAMPLERS = (
    "base",
    "base-entropy",
    "threshold",
    "factor",
    "entropy-bound",
    "prophet",
    "klass",
    "less",
    "less-paper",
    "less-released",
)


def predictions(vocabulary: int, *, window: int, device: torch.device) -> tuple[Prediction, Prediction]:
    """Return the predictions of a step and of the one before. Their confidences, 0 to 1, drift a little."""
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(1, window, vocabulary, generator=generator)
    winners = torch.randint(vocabulary, (1, window, 1), generator=generator)
    before.scatter_(-1, winners, torch.linspace(8, 20, window)[None, :, None])
    now = before + 0.05 * torch.randn(1, window, vocabulary, generator=generator)
    return summarize(now.to(device), 8), summarize(before.to(device), 8)


def observation(sampler: Sampler, now: Prediction, before: Prediction) -> Observation:
    """Return an observation halfway through full-sequence decoding, with every other position masked."""
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
    """Do the loop's work after a forward: one summary, one decision."""
    return sampler.decide(replace(obs, now=summarize(obs.now.full_logits, sampler.needs.top_k)))


def best_seconds(works: Sequence[Callable[[], object]], repeat: int, device: torch.device) -> list[float]:
    """Return the best time of each after one warm-up. They take turns, so that other load slows all alike."""
    best = [float("inf")] * len(works)
    for turn in range(repeat + 1):
        for index, work in enumerate(works):
            taken = seconds(work, device)
            best[index] = min(best[index], taken) if turn else best[index]
    return best


def measure(
    vocabulary: int,
    *,
    repeat: int,
    device: torch.device,
    window: int = WINDOW,
    names: Iterable[str] = SAMPLERS,
    rules: Mapping[str, Rule] | None = None,
) -> Iterator[tuple[str, list[float]]]:
    """Yield each sampler with the cost of its step, in units of one pass over the logits.

    With `rules`, the cost of the rule of the same name follows. The sampler and its rule are timed in turns.
    """
    now, before = predictions(vocabulary, window=window, device=device)
    logits = now.full_logits
    for name in names:
        sampler = make_sampler(name)
        obs = observation(sampler, now, before)
        works: list[Callable[[], object]] = [
            lambda: (logits.topk(8), logits.logsumexp(-1)),
            partial(step, sampler, obs),
        ]
        if rules is not None:
            works.append(partial(rules[name], obs))
        unit, *taken = best_seconds(works, repeat, device)
        yield name, [cost / unit for cost in taken]


def run_samplers(
    device: str, repeat: int, *, rules: Mapping[str, Rule] | None = None, log: Callable[[str], None] = print
) -> None:
    """Print the costs as a table. `rules` are other implementations to time along with the samplers."""
    place = pick_device(device)
    whole("--repeat", repeat, 1)
    log(f"one step, B = 1, W = {WINDOW}; unit: torch.topk(8) + torch.logsumexp over the same logits")
    log("best of all turns; run it on an idle machine")
    threads = torch.get_num_threads()
    log(f"torch {torch.__version__}, {place} ({platform.machine()}), {threads} threads")
    for shape, vocabulary in VOCABULARIES.items():
        log(f"\n{shape}, V = {vocabulary:,}")
        log(f"{'sampler':<14} {'summary + decide':>16}" + ("" if rules is None else "  plain rule  faster"))
        for name, (ours, *plain) in measure(vocabulary, repeat=repeat, device=place, rules=rules):
            others = "".join(f" {cost:>11.2f} {cost / ours:>6.1f}x" for cost in plain)
            log(f"{name:<14} {ours:>16.2f}{others}")
