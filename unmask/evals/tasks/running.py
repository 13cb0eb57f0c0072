"""Verdicts on programs, shared by the code benchmarks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from unmask.evals.task import Verdict
from unmask.sandbox import Job, Limits, run_jobs

# one MBPP reference needs 2.9 s on an idle core, so the released limit of 3 s would test the machine
LIMITS = Limits(seconds=10.0, cpu_seconds=10)
WORKERS = min(8, os.cpu_count() or 1)


def judge(jobs: Sequence[Job]) -> list[Verdict]:
    """Return whether each program passes all its checks."""
    outcomes = run_jobs(jobs, LIMITS, workers=WORKERS)
    return [Verdict(outcome.passed, job.program) for job, outcome in zip(jobs, outcomes, strict=True)]
