"""One stage of `full_size.py`. argv[1] is a Job as JSON; the results go to a JSON file.

Each stage has its own process, so that memory peaks are its own and a failed or killed stage harms no other.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from unmask import Options, Result, blank, decode, make_sampler, plan
from unmask.decoding.summary import ban, summarize
from unmask.models import load, random_checkpoint
from unmask.models.trunk import Trunk
from unmask.samplers.signals import logit_margin

SHARES = (0.25, 0.5, 0.75, 1.0)  # masked shares of the generation, which the canvases take in turn
SAMPLE_SECONDS = 0.003
WARMUP_STEPS = 8
# failures that are recorded while the stage continues; running out of GPU memory is a RuntimeError
FAILURES = (RuntimeError, ValueError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The input of a stage. Lengths are in tokens."""

    stage: str
    folder: str  # the checkpoint
    result: str  # the results file
    device: str
    config: dict[str, object]
    shard_bytes: int
    prompt: int
    length: int
    steps: int  # budget of `less`
    base_steps: int  # budget of `base`
    batches: tuple[int, ...]
    warmups: int
    runs: int
    canvases: int  # canvases on which two precisions are compared

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def generation(self) -> slice:
        return slice(self.prompt, self.prompt + self.length)


class Record:
    """The results of a stage. Each is written immediately, so that a killed stage keeps the earlier ones."""

    def __init__(self, job: Job) -> None:
        self.path = Path(job.result)
        self.content: dict[str, Any] = {"problems": []}

    def keep(self, name: str, value: object) -> None:
        self.content[name] = value
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.content), encoding="utf-8")
        part.replace(self.path)

    def attempt(self, name: str, work: Callable[[], object]) -> None:
        """Keep the result of `work`, or record why it failed."""
        start = time.perf_counter()
        try:
            self.keep(name, work())
        except FAILURES as error:
            problem = f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
            self.keep("problems", [*self.content["problems"], problem])
            print(f"    {problem}", flush=True)
            torch.cuda.empty_cache()
        else:
            print(f"    {name}: done in {time.perf_counter() - start:.1f} s", flush=True)


def main(argument: str) -> None:
    job = Job(**json.loads(argument))
    torch.set_float32_matmul_precision("highest")  # float32 means float32, not TF32
    record = Record(job)
    record.keep("machine", machine(job))
    STAGES[job.stage](job, record)


# ---- stages


def write(job: Job, record: Record) -> None:
    """Write a random checkpoint in the published format and names."""
    record.attempt("write", partial(_write, job))


def _write(job: Job) -> dict[str, object]:
    start = time.perf_counter()
    random_checkpoint(job.config, job.folder, device=job.device, shard_bytes=job.shard_bytes)
    seconds = time.perf_counter() - start
    sizes = shard_sizes(job)
    return {"seconds": seconds, "bytes": sum(sizes), "shards": len(sizes), "largest_shard": max(sizes)}


def load_only(job: Job, record: Record) -> None:
    """Load the model and do nothing else."""
    record.attempt("load", lambda: measured_load(job, "auto")[1])


def speed(job: Job, record: Record) -> None:
    """Load, run forwards and decode in the checkpoint's own precision."""
    model, loaded = measured_load(job, "auto")
    record.keep("load", loaded)
    record.keep("parameters", sum(weight.numel() for weight in model.parameters()))
    weights = loaded["gpu_after"]
    record.attempt("forward", partial(forward_times, model, job, weights))
    for name, steps in {"less": job.steps, "base": job.base_steps}.items():
        record.attempt(f"decode_{name}", partial(decoding, model, job, name, steps=steps, weights=weights))


def float32(job: Job, record: Record) -> None:
    """Compare bfloat16 with float32 on the same weights."""
    candidate, _ = measured_load(job, "bfloat16")
    reference, loaded = measured_load(job, "float32")
    record.keep("load", loaded)
    record.attempt("agreement", partial(agreement, candidate, reference, job))


def int8(job: Job, record: Record) -> None:
    """Measure memory and speed of int8 weights, and their agreement with bfloat16."""
    candidate, loaded = measured_load(job, "int8")
    record.keep("load", loaded)
    record.attempt("forward", partial(forward_times, candidate, job, loaded["gpu_after"]))
    record.attempt("agreement", lambda: agreement(candidate, measured_load(job, "bfloat16")[0], job))


STAGES = {"write": write, "load": load_only, "speed": speed, "float32": float32, "int8": int8}


# ---- loading


class HostPeak:
    """The rise of this process's memory inside a `with` block, in bytes."""

    def __enter__(self) -> HostPeak:
        self.before = host_memory()
        self.read_before = disk_read()
        self.maxrss_before = maxrss()
        self.peak = dict(self.before)
        self.samples = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self.done.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        self.samples += 1
        for name, value in host_memory().items():
            self.peak[name] = max(self.peak[name], value)

    def facts(self) -> dict[str, Any]:
        """Return the rises. Those other than ru_maxrss are sampled from /proc, and None without it."""
        rise = {name: self.peak[name] - self.before[name] for name in self.peak}
        read = disk_read()
        return {
            "host_maxrss_rise": maxrss() - self.maxrss_before,
            "host_rss_rise": rise.get("VmRSS"),
            "host_anon_rise": rise.get("RssAnon"),
            "host_file_rise": rise.get("RssFile"),
            "host_rss_before": self.before.get("VmRSS"),
            "host_samples": self.samples,
            "disk_read": None if read is None or self.read_before is None else read - self.read_before,
        }


def host_memory() -> dict[str, int]:
    """Return VmRSS, RssAnon and RssFile of this process in bytes, or nothing without /proc."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines)
    return {
        name: int(fields[name].split()[0]) * 1024
        for name in ("VmRSS", "RssAnon", "RssFile")
        if name in fields
    }


def maxrss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def disk_read() -> int | None:
    """Return the bytes that this process has read from disk, without page cache hits."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def measured_load(job: Job, dtype: str) -> tuple[Trunk, dict[str, Any]]:
    """Load the model and return it with the cost. Create the GPU context before the clock starts."""
    torch.zeros(1, device=job.device)
    reset_peak(job)
    gpu_before, largest = allocated(job), max(shard_sizes(job))
    with HostPeak() as host:
        start = time.perf_counter()
        model = load(job.folder, device=job.device, dtype=dtype)
        synchronize(job)
        seconds = time.perf_counter() - start
    facts = host.facts()
    highest = max(facts["host_maxrss_rise"], facts["host_rss_rise"] or 0)
    anon = facts["host_anon_rise"]
    return model, {
        "dtype": dtype,
        "seconds": seconds,
        **facts,
        "largest_shard": largest,
        "host_over_largest_shard": highest / largest,
        "anon_over_largest_shard": None if anon is None else anon / largest,
        "gpu_model": allocated(job) - gpu_before,
        "gpu_after": allocated(job),
        "gpu_peak": peak_allocated(job),
    }


def shard_sizes(job: Job) -> list[int]:
    return [file.stat().st_size for file in Path(job.folder).glob("*.safetensors")]


# ---- speed


def forward_times(model: Trunk, job: Job, weights: int) -> list[dict[str, object]]:
    """Time one forward for every batch size and window."""
    n = job.prompt + job.length
    return [
        _forward(model, job, batch=batch, window=window, weights=weights)
        for batch, window in product(job.batches, (job.generation, slice(0, n)))
    ]


def _forward(model: Trunk, job: Job, *, batch: int, window: slice, weights: int) -> dict[str, object]:
    tokens = random_tokens(model, job, rows=batch, seed=batch).to(job.device)
    tokens[:, job.generation] = model.info.mask_id
    reset_peak(job)
    times = timed(partial(model, tokens, None, window, None), job)
    width = window.stop - window.start
    low, *_, high = sorted(times)
    return {
        "batch": batch,
        "columns": tokens.shape[1],
        "window": width,
        "ms": median(times),
        "ms_min": low,
        "ms_max": high,
        "tflops": matrix_flops(model, batch=batch, columns=tokens.shape[1], window=width)
        / median(times)
        / 1e9,
        "gpu_peak_above_weights": peak_allocated(job) - weights,
    }


def timed(work: Callable[[], object], job: Job) -> list[float]:
    """Return the milliseconds of each run of `work`, by CUDA events on a GPU."""
    for _ in range(job.warmups):
        work()
    synchronize(job)
    if not job.cuda:
        marks = [time.perf_counter()]
        for _ in range(job.runs):
            work()
            marks.append(time.perf_counter())
        return [(right - left) * 1e3 for left, right in pairwise(marks)]
    events: list[Any] = [new_event() for _ in range(job.runs + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    synchronize(job)
    return [left.elapsed_time(right) for left, right in pairwise(events)]


def new_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]


def matrix_flops(model: Trunk, *, batch: int, columns: int, window: int) -> int:
    """Return the operations of the weight matrices in one forward, without attention."""
    layers: int = sum(weight.numel() for weight in model.layers.state_dict().values() if weight.ndim == 2)
    return 2 * batch * (columns * layers + window * model.shape.size * model.shape.vocab_size)


def decoding(model: Trunk, job: Job, name: str, *, steps: int, weights: int) -> dict[str, object]:
    """Decode one prompt with the block length of the family."""
    prompt = random_tokens(model, job, rows=1, seed=0)[0, : job.prompt].tolist()
    run = partial(_decode, model, job, name, prompt)
    run(WARMUP_STEPS)
    reset_peak(job)
    synchronize(job)
    start = time.perf_counter()
    result = run(steps)
    synchronize(job)
    seconds = time.perf_counter() - start
    return {
        "sampler": name,
        "budget": steps,
        "block_length": model.info.block_length,
        "steps": int(result.steps),
        "forwards": result.evaluations,
        "accepted": int(result.accepted),
        "forced": int(result.forced),
        "leftovers": int(result.leftovers),
        "masks_left": int((result.generated == model.info.mask_id).sum()),
        "seconds": seconds,
        "ms_per_forward": seconds * 1e3 / result.evaluations,
        "tokens_per_second": job.length / seconds,
        "gpu_peak_above_weights": peak_allocated(job) - weights,
        "gpu_reserved_peak": torch.cuda.max_memory_reserved() if job.cuda else 0,
        "tokens": " ".join(map(str, result.generated[0].tolist())),
    }


def _decode(model: Trunk, job: Job, name: str, prompt: list[int], steps: int) -> Result:
    info = model.info
    canvas = blank([prompt], job.length, mask_id=info.mask_id, pad_id=info.pad_id, device=job.device)
    budget = plan(canvas.start, job.length, steps=steps, block_length=info.block_length)
    return decode(model, canvas, make_sampler(name), budget, Options(stop_at_eos=False))


# ---- agreement


@torch.no_grad()
def agreement(candidate: Trunk, reference: Trunk, job: Job) -> dict[str, object]:
    """Compare the top tokens and the logits of two precisions of a model at masked positions."""
    rows = [_compare(candidate, reference, canvas, job) for canvas in masked_canvases(reference, job)]
    keys = ("equal", "margin", "tied", "winner")
    equal, margin, tied, winner = (torch.cat([row[key] for row in rows]) for key in keys)
    wide = margin > margin.median()
    errors = [row["error"] for row in rows]
    return {
        "canvases": len(rows),
        "positions": equal.numel(),
        "top1_equal": share(equal),
        "top1_equal_by_masked_share": {
            f"{SHARES[i]:.0%}": share(torch.cat([row["equal"] for row in rows[i :: len(SHARES)]]))
            for i in range(len(SHARES))
        },
        "median_margin": float(margin.median()),
        "top1_equal_above_median_margin": share(equal[wide]),
        "top1_equal_up_to_median_margin": share(equal[~wide]),
        "largest_margin_that_differs": float(margin[~equal].max()) if (~equal).any() else 0.0,
        "candidate_ties": share(tied),  # share of positions where the two best logits are equal
        "distinct_winners": len(set(winner.tolist())),
        "mean_abs_error": sum(float(error.sum()) for error in errors) / equal.numel(),
        "max_abs_error": max(float(row["worst"]) for row in rows),
        "logit_std": sum(float(row["spread"].sum()) for row in rows) / equal.numel(),
    }


def _compare(candidate: Trunk, reference: Trunk, tokens: Tensor, job: Job) -> dict[str, Tensor]:
    """Compare one canvas [1, N]. Return one value per masked position, on the CPU."""
    ours, theirs = (masked_logits(model, tokens, job) for model in (candidate, reference))
    error = (ours - theirs).abs()
    facts = {"error": error.mean(-1), "worst": error.amax(), "spread": theirs.std(-1)}
    ours_seen, theirs_seen = (
        summarize(ban(logits, (reference.info.mask_id,))[None], 2) for logits in (ours, theirs)
    )
    facts |= {
        "equal": (ours_seen.top1 == theirs_seen.top1)[0],
        "margin": logit_margin(theirs_seen)[0],
        "tied": (logit_margin(ours_seen) == 0)[0],
        "winner": theirs_seen.top1[0],
    }
    return {name: value.cpu() for name, value in facts.items()}


def masked_logits(model: Trunk, tokens: Tensor, job: Job) -> Tensor:
    """Return the logits of the masked positions, [M, V] float32."""
    exact = model.embed.weight.dtype == torch.float32
    # the fused float32 attention kernels may round their operands
    with sdpa_kernel(SDPBackend.MATH) if exact else nullcontext():
        logits: Tensor = model(tokens, None, job.generation, None)[0]
    return logits[tokens[0, job.generation] == model.info.mask_id].float()


def masked_canvases(model: Trunk, job: Job) -> Iterator[Tensor]:
    """Yield random canvases [1, N] with a share of the generation masked at random."""
    for index in range(job.canvases):
        tokens = random_tokens(model, job, rows=1, seed=index)
        generator = torch.Generator().manual_seed(index)
        count = round(SHARES[index % len(SHARES)] * job.length)
        tokens[0, job.prompt + torch.randperm(job.length, generator=generator)[:count]] = model.info.mask_id
        yield tokens.to(job.device)


def random_tokens(model: Trunk, job: Job, *, rows: int, seed: int) -> Tensor:
    """Return ordinary tokens, below every special id, [rows, N]."""
    ordinary = min(model.info.mask_id, model.info.pad_id, *model.info.eos_ids)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(ordinary, (rows, job.prompt + job.length), generator=generator)


def share(flags: Tensor) -> float:
    return float(flags.float().mean()) if flags.numel() else 1.0


# ---- the device


def machine(job: Job) -> dict[str, object]:
    """Return the hardware and the versions."""
    return {
        "device": torch.cuda.get_device_name() if job.cuda else "cpu",
        "gpu_bytes": torch.cuda.get_device_properties(0).total_memory if job.cuda else 0,
        "driver": driver() if job.cuda else None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "host_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def driver() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def synchronize(job: Job) -> None:
    if job.cuda:
        torch.cuda.synchronize()


def reset_peak(job: Job) -> None:
    if job.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def allocated(job: Job) -> int:
    return torch.cuda.memory_allocated() if job.cuda else 0


def peak_allocated(job: Job) -> int:
    return torch.cuda.max_memory_allocated() if job.cuda else 0


if __name__ == "__main__":
    main(sys.argv[1])
