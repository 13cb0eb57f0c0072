"""The denoising loop: predict, decide, commit, until nothing is masked. Speed lives in the executor."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from unmask.decoding.bans import Bans
from unmask.decoding.canvas import Canvas
from unmask.decoding.checks import check_run, is_model
from unmask.decoding.draw import NoiseSource, RowNoise
from unmask.decoding.executor import executor_for
from unmask.decoding.options import DEFAULTS, Options
from unmask.decoding.plan import Plan
from unmask.decoding.rows import Rows, Stop
from unmask.decoding.turns import turns
from unmask.types import Cache, MaskedLM, Sampler, Step


@torch.no_grad()
def denoise(
    model: MaskedLM,
    canvas: Canvas,
    sampler: Sampler,
    plan: Plan,
    options: Options = DEFAULTS,
    *,
    cache: Cache | None = None,
    noise: NoiseSource | None = None,
    stop: Stop | None = None,
    bans: Bans | None = None,
) -> Iterator[Step]:
    """Yield one Step per reverse step, until every row is complete or its budget is spent.

    This is Algorithm 1 of LESS with the sampler's rule in place of lines 5 to 12. `turns` handles blocks,
    budgets and the end of a text. `stop` may end rows early. `bans` replaces the bans of the options.
    """
    is_model(model)
    bans = bans or options.bans(model.info, canvas)
    check_run(model, canvas, sampler, plan, options, bans)
    executor = executor_for(model)(
        model,
        sampler,
        options,
        bans,
        blockwise=plan.blockwise,
        cache=cache,
        noise=noise or RowNoise([0] * len(canvas.tokens)),
    )
    rows = Rows(canvas, sampler.needs, options, model.info, stop, bans)
    upcoming = turns(rows, plan, executor.look)
    turn = next(upcoming, None)
    while turn is not None:
        prediction = executor.predict(rows, turn)
        outcome = executor.decide(turn, prediction, rows.history, rows.written(turn))
        step = rows.commit(turn, prediction, outcome)
        turn = next(upcoming, None)  # raises on broken logits, so before the step is shown
        yield step
