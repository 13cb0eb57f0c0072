"""Every recorded trajectory: the sequence after each step, the number of steps, the signals, the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conformance import blocks, golden, references, test_diffusion_gemma
from tests.conftest import golden_folders
from unmask import PC, Base, Guided, Options, Prophet, denoise, plan
from unmask.decoding.cache import BlockCache
from unmask.decoding.result import collect
from unmask.types import Step

TOLERANCE = {
    "confidence": 2e-4,
    "raw_confidence": 2e-4,
    "entropy": 2e-4,
    "jsd": 2e-4,
    "kl": 5e-5,
    "score": 5e-4,
    "gap": 2e-3,
    "shadow": 2e-4,
    "attention": 1e-5,
}
RELATIVE = {"kl": 2e-4}
FLOAT_SIGNALS = {
    "sig_conf": "confidence",
    "sig_entropy": "entropy",
    "sig_drift": "jsd",
    "sig_kl": "kl",
    "score": "score",
    "sig_shadow": "shadow",
}
# the threshold of credit is on the fused confidence
FUSED_SIGNALS = {**FLOAT_SIGNALS, "sig_conf": "raw_confidence", "sig_fused": "confidence"}
COUNTS = {"n_committed": "commit", "n_revoked": "revoke", "n_rewritten": "rewrite"}
OVERWRITES_PROMPT = "prompt_token_0_overwritten"  # a bug of DAWN's released code
FLAGS = {"sig_persist": "persistence", "sig_accept": "eligible", "sig_ready": "eligible"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folders = golden_folders(metafunc.config)
    others = {*blocks.BUILDERS, test_diffusion_gemma.SAMPLER}
    runs = [run for run in golden.runs(folders) if run.case["sampler"] not in others]
    if "padded_run" in metafunc.fixturenames:
        name, runs = "padded_run", [run for run in runs if run.batch > 1]
    elif "unfinished_run" in metafunc.fixturenames:
        name, runs = "unfinished_run", [run for run in runs if "masks_left_in_output" in run.quirks]
    elif "run" in metafunc.fixturenames:
        name = "run"
    else:
        return
    metafunc.parametrize(name, runs, ids=partial(golden.label, folders))


def test_every_step_and_the_end_equal_the_reference(run: golden.Run) -> None:
    if OVERWRITES_PROMPT in run.quirks:
        return check_until_the_prompt_is_overwritten(run)
    arrays, setup = recorded(run)
    if setup.sampler.needs.speculation is not None:
        return check_speculative_run(run, arrays, setup)
    numbers = executed_steps(arrays, setup, run.model.info.mask_id)
    expected = torch.from_numpy(arrays["x_steps"]).long()[numbers]
    # the references run a batch until its last row is done; ours stops each row by itself: see the next test
    stop = setup.options.stop_at_eos and run.batch == 1
    steps = decoding(run, setup, replace(setup.options, stop_at_eos=stop))
    goes_on = run.batch > 1 and setup.options.stop_at_eos
    steps = list(islice(steps, len(expected)) if goes_on else steps)
    taken = [step for step in steps if not step.leftover]
    for step, tokens, number in zip(taken, expected, numbers, strict=False):
        differs = (step.tokens != tokens).nonzero().tolist()
        assert not differs, f"step {number + 1} differs at {differs}; quirks of the run: {run.quirks}"
    assert len(taken) == len(expected)
    check_signals(run, taken, arrays, numbers)
    check_attention(setup, arrays, numbers)
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


def check_speculative_run(run: golden.Run, arrays: dict[str, np.ndarray], setup: references.Setup) -> None:
    """Compare the canvases that a speculative reference accepted, its forwards, and the static path's ids.

    It records a canvas per round: the last guess that it verified. We stand there two steps before the next
    forward: the step between commits the decision on it, and needs none. The canvas before a block's last
    commit is recorded only if the last guess was wrong.
    """
    steps = list(decoding(run, setup, setup.options))
    last = [
        number
        for number, step in enumerate(steps)
        if [step.block] != [s.block for s in steps[number + 1 :][:1]]
    ]
    first = [0, *(number + 1 for number in last[:-1])]
    rounds = [
        number - 2
        for number, step in enumerate(steps)
        if step.forward and not {number, number - 1} & {*first}
    ]
    almost = [steps[number - 1].tokens.tolist() for number in last if number not in first]
    recorded_canvases = [canvas.tolist() for canvas in arrays["x_steps"] if canvas.tolist() not in almost]
    assert [steps[number].tokens.tolist() for number in sorted({*rounds, *last})] == recorded_canvases
    assert steps[-1].tokens.tolist() == arrays["x_final"].tolist() == arrays["static_x_final"].tolist()
    assert sum(step.forward for step in steps) == len(arrays["rows_per_forward"])


def check_until_the_prompt_is_overwritten(run: golden.Run) -> None:
    """The same steps, but for the prompt's first token in the step that overwrites it; later ones differ."""
    arrays, setup = recorded(run)
    start = torch.from_numpy(arrays["x_init"]).long()
    expected = torch.from_numpy(arrays["x_steps"]).long()
    overwritten = expected[..., 0] != start[:, 0]
    last = int(overwritten.any(-1).nonzero()[0])
    steps, numbers = list(decoding(run, setup, setup.options)), list(range(last + 1))
    for number in numbers:
        differs = (steps[number].tokens != expected[number]).nonzero().tolist()
        assert differs == [[row, 0] for row in overwritten[number].nonzero()[:, 0].tolist()]
    others = {name: values for name, values in arrays.items() if name != "n_rewritten"}
    check_signals(run, steps[: last + 1], others, numbers)
    check_attention(setup, arrays, numbers)
    prompt = start != run.model.info.mask_id
    assert all(torch.equal(step.tokens[prompt], start[prompt]) for step in steps)
    assert not (steps[-1].tokens == run.model.info.mask_id).any()


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
    """The arrays of a run, and the run in our terms. Fail if unmask lacks its model or its sampler."""
    problems = references.unknown_sampler(run.case["sampler"]), golden.unloadable(run.checkpoint)
    if any(problems):
        golden.fail(*filter(None, problems))
    arrays = run.arrays
    layers = len(getattr(run.model, "layers", ()))
    settings, info = run.case["settings"], run.model.info
    return arrays, references.setup(run.case["sampler"], settings, arrays, info, layers=layers)


def decoding(run: golden.Run, setup: references.Setup, options: Options) -> Iterator[Step]:
    """Our steps from the canvas that the reference started from."""
    canvas = references.canvas(run.arrays, run.model.info.mask_id).to(golden.DEVICE)
    model = Guided.on(run.model, canvas, setup.guidance) if setup.guidance else run.model
    blocks = plan(
        canvas.start,
        setup.length,
        steps=setup.steps,
        block_length=setup.block_length,
        next_block_at=setup.next_block_at,
    )
    cache = (
        None
        if setup.cache == "none"
        else BlockCache(recompute={"prefix": "suffix", "dual": "block"}[setup.cache])
    )
    steps = denoise(model, canvas, setup.sampler, blocks, options, cache=cache, noise=setup.noise)
    return map(on_cpu, steps)


def on_cpu(step: Step) -> Step:
    """The step where the recordings are."""
    parts = ("commit", "eligible", "forced", "revoke", "rewrite")
    values = {name: getattr(step.decision, name) for name in parts}
    decision = replace(
        step.decision,
        **{name: value.cpu() for name, value in values.items() if value is not None},
        signals={name: values.cpu() for name, values in step.decision.signals.items()},
    )
    here = {name: getattr(step, name).cpu() for name in ("tokens", "drawn", "running", "fresh")}
    return replace(step, decision=decision, **here)


def executed_steps(arrays: dict[str, np.ndarray], setup: references.Setup, mask_id: int) -> list[int]:
    """The numbers of the reference's steps that we take too, counted from 0.

    A reference with a fixed budget idles through the rest of it when a block is full, because there are more
    steps than masks, pinned words, or lucky draws. We do not take such steps. Prophet may exit in one.
    """
    states = [arrays["x_init"], *arrays["x_steps"]]
    numbers = range(len(states) - 1)
    if not isinstance(setup.sampler, Base | PC | Prophet):
        return list(numbers)
    start = arrays["prompt_ids"].shape[1]
    blocks = plan(start, setup.length, steps=setup.steps, block_length=setup.block_length).blocks
    columns = [block.columns for block in blocks for _ in range(block.budget)]
    return [
        number
        for number in numbers
        if (states[number][:, columns[number]] == mask_id).any()
        or not np.array_equal(states[number], states[number + 1])
    ]


def check_signals(
    run: golden.Run, taken: list[Step], arrays: dict[str, np.ndarray], numbers: list[int]
) -> None:
    """Compare recorded signals wherever the reference had a candidate that our window shows.

    `numbers` are those of the taken steps in the recording. Arrays that we do not know are left alone.
    """
    start = arrays["prompt_ids"].shape[1]
    tied = torch.zeros_like(references.canvas(arrays, run.model.info.mask_id).tokens, dtype=torch.bool)
    for step, number in zip(taken, numbers, strict=True):
        shown = slice(step.window.start - start, step.window.stop - start)
        for recorded_name, name in COUNTS.items():
            if recorded_name in arrays:
                changed = getattr(step.decision, name)
                ours = torch.zeros(len(step.tokens)) if changed is None else changed.sum(-1)
                assert ours.tolist() == arrays[recorded_name][number].tolist(), f"{name}, step {number + 1}"
        for recorded_name, name in (FUSED_SIGNALS if "sig_fused" in arrays else FLOAT_SIGNALS).items():
            if recorded_name in arrays:
                theirs = torch.from_numpy(arrays[recorded_name][number][:, shown])
                compare(signal(step, name, recorded_name), theirs, name, number)
        if "sig_winners" in arrays:
            theirs = torch.from_numpy(arrays["sig_winners"][number][:, shown]).long()
            before = arrays["x_steps"][number - 1] if number else arrays["x_init"]
            tied[:, step.window] |= tied_winners(run, torch.from_numpy(before).long(), step, theirs)
        for recorded_name, name in FLAGS.items():
            if recorded_name in arrays:
                ours = step.decision.eligible if name == "eligible" else signal(step, name, recorded_name)
                known = arrays.get("sig_conf", arrays[recorded_name])[number][:, shown]
                # persistence at a tie depends on which of two tokens came first
                candidates = torch.from_numpy(~np.isnan(known)) & ~tied[:, step.window]
                theirs = torch.from_numpy(arrays[recorded_name][number][:, shown]) == 1
                assert torch.equal(ours & candidates, theirs & candidates), (
                    f"{recorded_name}, step {number + 1}"
                )
        if "step_kind" in arrays:
            kind = torch.from_numpy(arrays["step_kind"][number])
            assert torch.equal(step.decision.forced[kind >= 0], kind[kind >= 0] == 2)
    if "gap" in arrays:
        gaps = [float(signal(step, "gap", "gap")[0, 0]) for step in taken]
        np.testing.assert_allclose(gaps, arrays["gap"][numbers], atol=TOLERANCE["gap"])


def check_attention(setup: references.Setup, arrays: dict[str, np.ndarray], numbers: list[int]) -> None:
    """Compare the attention that the sampler saw in these steps, if it was recorded."""
    if "attention" not in arrays:
        return
    if not isinstance(setup.sampler, references.Watched):
        golden.fail("the sampler was not watched, so its attention cannot be compared")
    for number, ours in zip(numbers, setup.sampler.attention, strict=False):
        weights, confidence = (
            torch.from_numpy(arrays[name][number]) for name in ("attention", "sig_conf_all")
        )
        compare(ours.weights.cpu(), weights, "attention", number)
        compare(ours.confidence.cpu(), confidence, "confidence", number)


def signal(step: Step, name: str, recorded_name: str) -> Tensor:
    """One of our signals, [B, W]. Fail if the sampler does not show what the reference recorded."""
    if name not in step.decision.signals:
        golden.fail(f"the sampler shows no signal {name!r} to compare with the recorded {recorded_name!r}")
    return step.decision.signals[name]


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
    torch.testing.assert_close(
        ours[known],
        theirs[known],
        atol=TOLERANCE[name],
        rtol=RELATIVE.get(name, 0),
        msg=lambda text: f"{name}, step {number + 1}: {text}",
    )


def ends_at(tokens: Tensor, start: int, eos_ids: tuple[int, ...]) -> int:
    """Index behind the first end token of the generation, or the length."""
    found = torch.isin(tokens[start:], torch.tensor(eos_ids)).nonzero()
    return start + int(found[0]) + 1 if len(found) else len(tokens)
