"""Every recorded trajectory: the sequence after each step, the number of steps, the signals, the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conformance import golden, references
from unmask import Guided, Options, Prophet, denoise, plan
from unmask.decoding.cache import BlockCache
from unmask.decoding.result import collect
from unmask.types import Step

TOLERANCE = {"confidence": 2e-4, "jsd": 2e-4, "kl": 2e-4, "score": 5e-4, "gap": 2e-3}
FLOAT_SIGNALS = {"sig_conf": "confidence", "sig_drift": "jsd", "sig_kl": "kl", "score": "score"}
KNOWN_QUIRKS = {
    "tail_filled_by_argmax_after_eos_stop",
    "eos_search_includes_left_padding",
    "factor_last_rank",
    "masks_left_in_output",
    "ids_ge_vocab_size",
    "reported_used_steps_is_constant_256",
    "extra_cached_forward_at_24cc59e",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    runs = golden.runs(Path(metafunc.config.getoption("--goldens")))
    if "padded_run" in metafunc.fixturenames:
        metafunc.parametrize("padded_run", [run for run in runs if run.batch > 1], ids=str)
    elif "unfinished_run" in metafunc.fixturenames:
        unfinished = [run for run in runs if "masks_left_in_output" in run.quirks]
        metafunc.parametrize("unfinished_run", unfinished, ids=str)
    else:
        metafunc.parametrize("run", runs, ids=str)


def test_every_step_and_the_end_equal_the_reference(run: golden.Run) -> None:
    assert set(run.quirks) <= KNOWN_QUIRKS
    arrays, setup = recorded(run)
    expected = executed_steps(arrays, setup)
    # the references run a batch until its last row is done; ours stops each row by itself: see the next test
    stop = setup.options.stop_at_eos and run.batch == 1
    steps = decoding(run, setup, replace(setup.options, stop_at_eos=stop))
    steps = list(islice(steps, len(expected)) if run.batch > 1 else steps)
    taken = [step for step in steps if not step.leftover]
    for number, (step, tokens) in enumerate(zip(taken, expected, strict=False), start=1):
        assert torch.equal(step.tokens, tokens), (
            f"step {number} differs at {(step.tokens != tokens).nonzero()}"
        )
    assert len(taken) == len(expected)
    check_signals(run, taken, arrays)
    final = torch.from_numpy(arrays["x_final"]).long()
    if stop:
        check_until_the_end(steps, arrays, final, run)
    elif not setup.options.stop_at_eos:
        assert torch.equal(steps[-1].tokens, final)


def test_a_row_of_a_batch_stops_by_itself(padded_run: golden.Run) -> None:
    run = padded_run
    arrays, setup = recorded(run)
    canvas, info = references.canvas(arrays, run.model.info.mask_id), run.model.info
    closing = info.eos_ids if setup.options.stop_at_eos else ()
    result = collect(decoding(run, setup, setup.options), canvas, closing)
    last = torch.from_numpy(arrays["x_steps"][-1]).long()
    for row, ours in enumerate(result.tokens):
        # a reference that takes padding for the end of the text cuts the row off: compare what it committed
        known = last[row] != info.mask_id
        known[ends_at(ours, canvas.start, closing) :] = False
        assert torch.equal(ours[known], last[row][known])
    assert not (result.generated == info.mask_id).any()


def test_by_default_no_mask_is_left_where_the_reference_leaves_some(unfinished_run: golden.Run) -> None:
    run = unfinished_run
    arrays, setup = recorded(run)
    canvas = references.canvas(arrays, run.model.info.mask_id)
    result = collect(decoding(run, setup, replace(setup.options, fill_leftovers=True)), canvas, ())
    assert (result.leftovers > 0).all()
    assert not (result.tokens == canvas.mask_id).any()


def check_until_the_end(
    steps: list[Step], arrays: dict[str, np.ndarray], final: Tensor, run: golden.Run
) -> None:
    """The same text; behind its end the reference writes one more argmax, we write the end token."""
    eos_ids = run.model.info.eos_ids
    canvas = references.canvas(arrays, run.model.info.mask_id)
    ours = collect(steps, canvas, eos_ids).tokens[0]
    end = ends_at(ours, canvas.start, eos_ids)
    assert end == ends_at(final[0], canvas.start, eos_ids)
    assert torch.equal(ours[:end], final[0][:end])
    if "tail_filled_by_argmax_after_eos_stop" in run.quirks:
        unread = arrays["x_steps"][-1][0, end:] == canvas.mask_id
        assert torch.isin(ours[end:][unread], torch.tensor(eos_ids)).all()
    else:
        assert torch.equal(ours, final[0])


def recorded(run: golden.Run) -> tuple[dict[str, np.ndarray], references.Setup]:
    arrays = run.arrays
    return arrays, references.setup(run.case["sampler"], run.case["settings"], arrays, run.model.info)


def decoding(run: golden.Run, setup: references.Setup, options: Options) -> Iterator[Step]:
    """Our steps from the canvas that the reference started from."""
    canvas = references.canvas(run.arrays, run.model.info.mask_id).to(golden.DEVICE)
    model = Guided.on(run.model, canvas, setup.guidance) if setup.guidance else run.model
    blocks = plan(canvas.start, setup.length, steps=setup.steps, block_length=setup.block_length)
    cache = (
        None
        if setup.cache == "none"
        else BlockCache(recompute={"prefix": "suffix", "dual": "block"}[setup.cache])
    )
    steps = denoise(model, canvas, setup.sampler, blocks, options, cache=cache, noise=setup.noise)
    return map(on_cpu, steps)


def on_cpu(step: Step) -> Step:
    """The step where the recordings are."""
    decision = replace(
        step.decision,
        commit=step.decision.commit.cpu(),
        eligible=step.decision.eligible.cpu(),
        forced=step.decision.forced.cpu(),
        signals={name: values.cpu() for name, values in step.decision.signals.items()},
    )
    here = {name: getattr(step, name).cpu() for name in ("tokens", "drawn", "running", "fresh")}
    return replace(step, decision=decision, **here)


def executed_steps(arrays: dict[str, np.ndarray], setup: references.Setup) -> list[Tensor]:
    """The sequence after each step of the reference.

    Prophet idles through what is left of a block's budget when pinned words have filled it; we do not take
    such steps, and check here that nothing happens in them.
    """
    steps = list(torch.from_numpy(arrays["x_steps"]).long())
    if not isinstance(setup.sampler, Prophet):
        return steps
    start, pinned = arrays["prompt_ids"].shape[1], arrays["x_init"]
    blocks = plan(start, setup.length, steps=setup.steps, block_length=setup.block_length).blocks
    idle = []
    for block in blocks:
        masks = int((pinned[0, block.columns] == pinned.max()).sum())
        idle += list(range(block.first_step + min(masks, block.budget), block.first_step + block.budget))
    for number in idle:
        if number < len(steps):
            assert torch.equal(steps[number], steps[number - 1])
    return [tokens for number, tokens in enumerate(steps) if number not in idle]


def check_signals(run: golden.Run, taken: list[Step], arrays: dict[str, np.ndarray]) -> None:
    """Recorded signals, wherever the reference had a candidate that our window shows."""
    start = arrays["prompt_ids"].shape[1]
    tied = torch.zeros_like(references.canvas(arrays, run.model.info.mask_id).tokens, dtype=torch.bool)
    for number, step in enumerate(taken):
        shown = slice(step.window.start - start, step.window.stop - start)
        signals = step.decision.signals
        for recorded_name, name in FLOAT_SIGNALS.items():
            if recorded_name in arrays:
                theirs = torch.from_numpy(arrays[recorded_name][number][:, shown])
                compare(signals[name], theirs, name, number)
        if "sig_winners" in arrays:
            theirs = torch.from_numpy(arrays["sig_winners"][number][:, shown]).long()
            before = arrays["x_steps"][number - 1] if number else arrays["x_init"]
            tied[:, step.window] |= tied_winners(run, torch.from_numpy(before).long(), step, theirs)
        exact = {"sig_persist": "persistence", "sig_accept": "eligible", "sig_ready": "eligible"}
        for recorded_name, name in exact.items():
            if recorded_name in arrays:
                ours = step.decision.eligible if name == "eligible" else signals[name]
                candidates = torch.from_numpy(~np.isnan(arrays["sig_conf"][number][:, shown]))
                candidates &= ~tied[:, step.window]  # what persists there depends on which of two came first
                theirs = torch.from_numpy(arrays[recorded_name][number][:, shown]) == 1
                assert torch.equal(ours & candidates, theirs & candidates), (
                    f"{recorded_name}, step {number + 1}"
                )
        if "step_kind" in arrays:
            kind = torch.from_numpy(arrays["step_kind"][number])
            assert torch.equal(step.decision.forced[kind >= 0], kind[kind >= 0] == 2)
    if "gap" in arrays:
        # an idle step repeats the canvas and the gap of the one before
        steps = arrays["x_steps"]
        own = [n for n in range(len(steps)) if n == 0 or not np.array_equal(steps[n], steps[n - 1])]
        gaps = [float(step.decision.signals["gap"][0, 0]) for step in taken]
        np.testing.assert_allclose(gaps, arrays["gap"][own], atol=TOLERANCE["gap"])


def tied_winners(run: golden.Run, before: Tensor, step: Step, theirs: Tensor) -> Tensor:
    """Where the best token of the canvas before the step is another than the reference's, [B, W] bool: on
    another device than the recording's, two whose logits are equal up to rounding may change places."""
    other = (theirs >= 0) & (step.drawn != theirs)
    if golden.DEVICE == "cpu":
        assert not other.any()
    if other.any():
        logits = run.model(before.to(golden.DEVICE), None, step.window, None).float().cpu()
        both = (logits.gather(-1, ids[..., None])[..., 0] for ids in (step.drawn, theirs.clamp(min=0)))
        ours, recorded = (values[other] for values in both)
        torch.testing.assert_close(ours, recorded, rtol=1e-5, atol=0)  # some 80 steps of float32
    return other


def compare(ours: Tensor, theirs: Tensor, name: str, number: int) -> None:
    """Equal within the tolerance where the reference recorded a value; our +inf means "no earlier step"."""
    known = ~theirs.isnan() & ~ours.isinf()
    if name == "kl":  # the reference adds 1e-12 inside its logarithms, which bounds what it calls large
        assert (ours[known] >= theirs[known] - 1e-3).all()
        known = known & (theirs < 1)
    torch.testing.assert_close(
        ours[known],
        theirs[known],
        atol=TOLERANCE[name],
        rtol=2e-3 if name == "kl" else 0,
        msg=lambda text: f"{name}, step {number + 1}: {text}",
    )


def ends_at(tokens: Tensor, start: int, eos_ids: tuple[int, ...]) -> int:
    """Index behind the first end token of the generation, or the length."""
    found = torch.isin(tokens[start:], torch.tensor(eos_ids)).nonzero()
    return start + int(found[0]) + 1 if len(found) else len(tokens)
