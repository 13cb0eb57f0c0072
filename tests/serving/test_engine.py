"""What a request gets from the engine is what it gets alone, whoever its neighbours are."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.conftest import GOLDENS
from tests.raises import raises_field
from tests.serving.conftest import Gated, Slow, wait_until
from tests.text.conftest import tiny
from tests.toy import Toy
from unmask import (
    SAMPLERS,
    Base,
    BlockCache,
    GenerationConfig,
    Prophet,
    Regex,
    Threshold,
    compile,
    generate,
    infill,
    load,
)
from unmask.serving import Closing, DeadlineExceeded, Engine, Job, Limits, QueueFull, RequestFailed
from unmask.serving.monitor import NoMonitor
from unmask.serving.request import RunningRequest
from unmask.types import Cache, Decision, ModelInfo, Needs, Observation

ONE_BY_ONE = Threshold(min_confidence=1)
SERVED = [
    each
    for each in SAMPLERS.values()
    if not (each.needs.shadow or each.needs.attention or each.needs.speculation)
]
EAGER = [Threshold(min_confidence=0.4), Prophet(early=2.0, mid=1.5, late=1.0), Base(order_temperature=0.3)]


class NoSpecial:
    bos = None
    pad = None


@dataclass(frozen=True)
class Letters:
    """A tokenizer for token ids: every token is one letter."""

    special: Any = field(default_factory=NoSpecial)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, token_ids: Iterable[int]) -> str:
        return "".join(chr(ord("a") + token) for token in token_ids)

    def chat(self, messages: Sequence[Any]) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))


@dataclass(frozen=True)
class TextToy:
    """The toy, whose logits are bit for bit the same in any batch, with letters for tokens."""

    toy: Toy
    tokenizer: Letters = field(default_factory=Letters)

    @property
    def info(self) -> ModelInfo:
        return self.toy.info

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        return self.toy(tokens, attend, window, cache)


@dataclass(frozen=True)
class Ask:
    """One request of a mix."""

    prompt: Any
    sampler: Any
    config: GenerationConfig
    pause: float = 0.0  # seconds before it is sent


@st.composite
def mixes(draw: st.DrawFn) -> list[Ask]:
    """Requests that have enough in common to be decided together, in all stages of their way."""
    samplers = draw(st.lists(st.sampled_from([*SERVED, *EAGER]), min_size=1, max_size=3))
    lengths = draw(st.lists(st.integers(1, 14), min_size=1, max_size=2))
    return draw(st.lists(asks(samplers, lengths), min_size=1, max_size=12))


@st.composite
def asks(draw: st.DrawFn, samplers: list[Any], lengths: list[int]) -> Ask:
    dice = random.Random(draw(st.integers(0, 2**20)))
    length = draw(st.sampled_from(lengths))
    block = draw(st.none() | st.integers(1, length))
    blocks = 1 if block is None else -(-length // block)
    return Ask(
        prompt=[dice.randrange(2, 12) for _ in range(draw(st.integers(1, 9)))],
        sampler=draw(st.sampled_from(samplers)),
        config=GenerationConfig(
            max_new_tokens=length,
            steps=draw(st.none() | st.integers(blocks, 2 * length + 2)),
            block_length=block,
            temperature=draw(st.sampled_from([0.0, 0.0, 0.8])),
            seed=dice.randrange(10**6),
            guidance=draw(st.sampled_from([0.0, 0.0, 0.5])),
            stop=draw(st.sampled_from([(), ("d",), ("ef", "k")])),
            min_new_tokens=dice.choice([0, 0, length // 2]),
            end_tokens=dice.choice(["keep", "keep", "suppress"]),
            reuse=dice.random() < 0.8,
        ),
        pause=dice.choice([0.0, 0.0, 0.003]),
    )


def answers(engine: Engine, mix: Sequence[Ask]) -> list[Any]:
    """What the engine says to all of them, sent in order; nothing may fail on the way."""
    jobs = []
    with no_complaints():
        for ask in mix:
            time.sleep(ask.pause)
            jobs.append(engine.submit(ask.prompt, ask.sampler, ask.config))
        return [job.result(20) for job in jobs]


@contextmanager
def no_complaints() -> Iterator[None]:
    """The engine isolates what fails and tries again, so its log must be read too."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(handler.format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("unmask.serving.engine")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    assert told == []


@settings(max_examples=25)
@given(
    mix=mixes(),
    rows=st.integers(2, 8),
    tokens=st.integers(46, 200),
    schedule=st.sampled_from(["linear", "dream"]),
    quantum=st.sampled_from([0.0, 1.0]),
)
def test_a_request_gets_what_it_gets_alone(mix, rows, tokens, schedule, quantum) -> None:
    model = TextToy(Toy(schedule=schedule, quantum=quantum, drift=0.3))
    with Engine(model, Limits(max_rows=rows, max_batch_tokens=tokens)) as engine:
        together = answers(engine, mix)
    assert together == [generate(model, [ask.prompt], ask.sampler, ask.config)[0] for ask in mix]


@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny", "dream_calm_tiny"])
def test_real_models_give_every_sampler_the_tokens_of_a_run_alone(name: str) -> None:
    model, dice = tiny(name), random.Random(7)
    mix = [
        Ask(
            "".join(dice.choice("the cat sat") for _ in range(dice.randrange(1, 40))),
            sampler,
            GenerationConfig(
                max_new_tokens=dice.randrange(8, 18),
                block_length=dice.choice([None, 8]),
                temperature=dice.choice([0.0, 0.7]),
                seed=number,
                stop=dice.choice([(), ("t",)]),
            ),
        )
        for number, sampler in enumerate(SERVED[len(name) % 2 :: 2])
    ]
    with Engine(model, Limits(max_rows=8)) as engine:
        together = answers(engine, mix)
    assert together == [generate(model, [ask.prompt], ask.sampler, ask.config)[0] for ask in mix]


def test_gaps_are_filled_as_infill_does_beside_other_requests() -> None:
    model = tiny("dream_tiny")
    texts = ["The [[gap 4]] sat on the [[gap 1-6]].", "[[gap 3]] is", "a [[gap 2-9]]"]
    config = GenerationConfig(max_new_tokens=12, temperature=0.7, seed=3, guidance=0.5)
    with Engine(model) as engine:
        jobs = [engine.submit_infill(text, SAMPLERS["klass"], config) for text in texts]
        other = engine.submit("the", SAMPLERS["klass"], config)
        filled = [job.result(20) for job in jobs]
        assert other.result(20) == generate(model, ["the"], SAMPLERS["klass"], config)[0]
    alone = replace(config, max_new_tokens=None)
    assert filled == [infill(model, text, SAMPLERS["klass"], alone) for text in texts]


def test_equal_samplers_are_decided_together_and_all_rows_share_a_forward() -> None:
    toy, sampler = Toy(eos_ids=()), Counting()
    with Engine(Gated(TextToy(toy))) as engine:
        hold = hold_up(engine)
        jobs = [engine.submit([2, 3], sampler, GenerationConfig(max_new_tokens=4)) for _ in range(5)]
        let_go(engine, hold)
        for job in jobs:
            job.result(20)
    assert max(sampler.rows) == 5
    assert max(toy.calls) == 5


def test_an_exact_engine_runs_the_model_on_every_row_as_it_is_alone() -> None:
    model, shapes = tiny("llada_tiny"), []

    hook = model.embed.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    config = GenerationConfig(max_new_tokens=6, temperature=0.7, seed=0)
    prompts = [[7] * length for length in (3, 9, 5, 9)]
    with no_complaints(), Engine(model, exact=True) as engine:
        jobs = [engine.submit(prompt, ONE_BY_ONE, config) for prompt in prompts]
        together = [job.result(20).token_ids for job in jobs]
    hook.remove()
    assert set(shapes) == {(1, length + 6) for length in (3, 9, 5)}
    assert together == [generate(model, [prompt], ONE_BY_ONE, config)[0].token_ids for prompt in prompts]


@pytest.mark.parametrize("name", ["base", "less", "klass", "prophet", "less-released", "base-origin"])
def test_a_row_joins_rows_that_are_on_their_way(name: str) -> None:
    model = TextToy(Toy(eos_ids=()))
    config = GenerationConfig(max_new_tokens=12, temperature=0.5, seed=0)
    with no_complaints(), Engine(Gated(model)) as engine:
        jobs = [engine.submit([2], SAMPLERS[name], config)]
        for prompt in ([3], [4, 5], [6]):
            engine.model.let(1)
            jobs.append(engine.submit(prompt, SAMPLERS[name], config))
        engine.model.open()
        together = [job.result(20) for job in jobs]
    alone = [generate(model, [prompt], SAMPLERS[name], config)[0] for prompt in ([2], [3], [4, 5], [6])]
    assert together == alone


def test_rows_leave_at_once_and_others_take_their_place() -> None:
    toy = Toy(eos_ids=())
    with Engine(Gated(TextToy(toy)), Limits(max_rows=2)) as engine:
        hold = hold_up(engine)
        long = engine.submit([2], ONE_BY_ONE, GenerationConfig(max_new_tokens=40))
        short = [engine.submit([3] * 37, ONE_BY_ONE, GenerationConfig(max_new_tokens=4)) for _ in range(5)]
        let_go(engine, hold)
        for job in (long, *short):
            job.result(20)
    # the hold, five short ones beside the long one without a break, and the long one's own last steps
    assert toy.calls == [1, *[2] * 20, *[1] * 20]


def test_a_short_row_is_not_padded_to_a_long_one() -> None:
    toy = Toy(eos_ids=())
    with Engine(Gated(TextToy(toy))) as engine:
        hold = hold_up(engine)
        lengths = (40, 30, 29, 4)
        jobs = [engine.submit([2], ONE_BY_ONE, GenerationConfig(max_new_tokens=n)) for n in lengths]
        let_go(engine, hold)
        for job in jobs:
            job.result(20)
    assert toy.calls[1:4] == [2, 1, 1]  # 41 with 31 columns, 30, 5


def test_requests_are_admitted_in_the_order_of_their_arrival() -> None:
    order: list[int] = []
    with Engine(Gated(TextToy(Toy())), Limits(max_rows=1)) as engine:
        hold = hold_up(engine)
        jobs = [engine.submit([2], ONE_BY_ONE, GenerationConfig(max_new_tokens=3)) for _ in range(6)]
        for number, job in enumerate(jobs):
            job.future.add_done_callback(lambda _, number=number: order.append(number))
        let_go(engine, hold)
        for job in jobs:
            job.result(20)
    assert order == list(range(6))


def test_a_long_request_waits_until_it_fits_and_is_not_overtaken() -> None:
    with Engine(Gated(TextToy(Toy(eos_ids=()))), Limits(max_rows=4, max_batch_tokens=24)) as engine:
        hold = hold_up(engine, length=10)
        jobs = [
            engine.submit([2], ONE_BY_ONE, GenerationConfig(max_new_tokens=length)) for length in (5, 20, 5)
        ]
        engine.model.let(1)
        wait_until(lambda: engine.running == 2)
        assert engine.waiting == 2
        let_go(engine, hold)
        admitted = [job.admitted for job in jobs if job.result(20)]
    assert admitted == sorted(admitted)


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    with Engine(Gated(TextToy(Toy())), Limits(max_rows=1, max_queue=2)) as engine:
        hold = hold_up(engine)
        for _ in range(2):
            engine.submit([2], config=GenerationConfig(max_new_tokens=2))
        with pytest.raises(QueueFull, match="2 requests are waiting already; try again in") as refused:
            engine.submit([2])
        assert 1 <= refused.value.retry_after <= 60
        let_go(engine, hold)


def test_a_cancelled_request_leaves_the_batch_and_the_queue() -> None:
    with Engine(Gated(tiny("llada_tiny")), Limits(max_rows=1)) as engine:
        running, waiting = hold_up(engine), engine.submit("the")
        waiting.cancel()
        let_go(engine, running)
        wait_until(lambda: engine.running == engine.waiting == 0)
        for job in (running, waiting):
            with pytest.raises(CancelledError):
                job.result(1)
        short = GenerationConfig(max_new_tokens=2)
        assert (
            engine.submit("the", config=short).result(20) == generate(engine.model, ["the"], config=short)[0]
        )


def test_a_request_that_takes_too_long_ends_and_its_neighbours_go_on() -> None:
    model = Slow(tiny("llada_tiny"), 0.02)
    with Engine(model, Limits(max_rows=2)) as engine:
        late = engine.submit("the", ONE_BY_ONE, GenerationConfig(max_new_tokens=256), deadline=0.1)
        beside = engine.submit("the", ONE_BY_ONE, GenerationConfig(max_new_tokens=12))
        in_queue = engine.submit("the", deadline=0.01)
        with pytest.raises(DeadlineExceeded, match=r"longer than its deadline of 0\.1 seconds"):
            late.result(10)
        with pytest.raises(DeadlineExceeded):
            in_queue.result(10)
        assert beside.result(10).steps == 12


class Outcomes(NoMonitor):
    """Remembers how requests left."""

    def __init__(self) -> None:
        self.arrivals = 0
        self.left_as: list[str] = []

    def arrived(self, job: Job) -> None:
        self.arrivals += 1

    def left(self, job: Job, outcome: str) -> None:
        self.left_as.append(outcome)


def test_every_request_leaves_once_and_in_one_way() -> None:
    outcomes, config = Outcomes(), GenerationConfig(max_new_tokens=6)
    with Engine(Gated(TextToy(Toy(eos_ids=()))), Limits(max_rows=4), outcomes) as engine:
        running = hold_up(engine)
        late = engine.submit([2], config=config, deadline=0.001)
        answered, failed = engine.submit([2], config=config), engine.submit([3], Faulty(quota=1), config)
        waiting = engine.submit([4], config=config)
        waiting.cancel()
        let_go(engine, running)
        assert answered.result(20)
        for job in (late, failed):
            assert job.future.exception(20) is not None
    assert outcomes.arrivals == 5
    assert sorted(outcomes.left_as) == ["answered", "cancelled", "cancelled", "expired", "failed"]


@dataclass(frozen=True)
class Counting:
    """Commits the frontier, and counts the rows of every decision."""

    rows: list[int] = field(default_factory=list, compare=False)
    needs: Needs = field(default_factory=Needs)

    def decide(self, obs: Observation) -> Decision:
        self.rows.append(len(obs.seen))
        commit = obs.active & (obs.active.cumsum(-1) == 1)
        return Decision(commit, commit, torch.zeros_like(obs.seen, dtype=torch.bool))


@dataclass(frozen=True)
class Faulty(Counting):
    """Raises in a batch that holds a row whose schedule would commit `quota` tokens."""

    quota: int = 3
    error: type[Exception] = RuntimeError

    def decide(self, obs: Observation) -> Decision:
        if (obs.quota == self.quota).any():
            raise self.error("the sampler's own words")
        return Counting.decide(self, obs)


@pytest.mark.parametrize(
    ("error", "message"), [(RuntimeError, "an internal error"), (ValueError, "the sampler's own words")]
)
def test_a_sampler_that_raises_fails_the_request_concerned_alone(error, message, caplog) -> None:
    model = TextToy(Toy(eos_ids=()))
    sampler, config = Faulty(error=error), GenerationConfig(max_new_tokens=6, temperature=0.9, seed=0)
    with Engine(Gated(model)) as engine:
        hold = hold_up(engine)
        good = [engine.submit([n], sampler, config) for n in (2, 3)]
        bad = engine.submit([4], sampler, replace(config, steps=2))
        other = engine.submit([4], config=config)
        let_go(engine, hold)
        with pytest.raises(RequestFailed, match=message):
            bad.result(20)
        assert [job.result(20) for job in good] == [
            generate(model, [[n]], Counting(), config)[0] for n in (2, 3)
        ]
        assert other.result(20) == generate(model, [[4]], config=config)[0]
    assert 3 in sampler.rows or 2 in sampler.rows  # those that are well are still decided together
    assert "a sampler failed" in caplog.text


@dataclass(frozen=True)
class Picky(TextToy):
    """A model that cannot bear some token, or says nonsense about rows that hold it."""

    token: int = 9
    nonsense: bool = False

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        hit = (tokens[:, 0] == self.token) | (tokens == self.token).any(-1)
        if hit.any() and not self.nonsense:
            raise RuntimeError("no such token")
        logits = super().__call__(tokens, attend, window, cache)
        return logits.masked_fill(hit[:, None, None], torch.nan)


@pytest.mark.parametrize("nonsense", [False, True])
def test_a_model_that_fails_on_one_request_still_answers_the_others(nonsense: bool) -> None:
    model = Picky(Toy(eos_ids=(), vocab_size=12), nonsense=nonsense)
    config = GenerationConfig(max_new_tokens=4, temperature=0.9, seed=0)
    kind = Ban9()
    with Engine(Gated(model)) as engine:
        hold = hold_up(engine, sampler=kind)
        good = [engine.submit([n, 2], kind, config) for n in (2, 3)]
        bad = engine.submit([9, 2], kind, config)
        let_go(engine, hold)
        with pytest.raises(RequestFailed, match="NaN or infinite" if nonsense else "an internal error"):
            bad.result(20)
        assert [job.result(20) for job in good] == [
            generate(model, [[n, 2]], kind, config)[0] for n in (2, 3)
        ]


@dataclass(frozen=True)
class Short(TextToy):
    """A model that leaves out a column."""

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        return super().__call__(tokens, attend, window, cache)[:, 1:]


def test_logits_of_a_wrong_shape_end_a_request_with_a_sentence() -> None:
    with Engine(Short(Toy(eos_ids=(), vocab_size=12))) as engine:
        job = engine.submit([2], config=GenerationConfig(max_new_tokens=4))
        with pytest.raises(RequestFailed, match=r"logits of shape \[1, 4, 12\]"):
            job.result(20)


@dataclass(frozen=True)
class Crashing(TextToy):
    """A model whose device fails at the token 9."""

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        if (tokens == 9).any():
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return super().__call__(tokens, attend, window, cache)


old_torch = pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="new in torch 2.8")


@old_torch
def test_a_lost_device_ends_all_requests_and_the_engine() -> None:
    config = GenerationConfig(max_new_tokens=4)
    with Engine(Gated(Crashing(Toy(eos_ids=(), vocab_size=12))), Limits(max_rows=2)) as engine:
        jobs = [hold_up(engine), *(engine.submit([n], config=config) for n in (9, 3))]
        engine.model.open()
        for job in jobs:
            with pytest.raises(RequestFailed, match="an internal error"):
                job.result(20)
        assert not engine.is_ready
        with pytest.raises(Closing):
            engine.submit([3], config=config)
    assert (engine.running, engine.waiting) == (0, 0)


@old_torch
def test_an_error_that_the_device_survives_ends_one_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    model, config = Crashing(Toy(eos_ids=(), vocab_size=12)), GenerationConfig(max_new_tokens=4)
    with Engine(model) as engine:
        with pytest.raises(RequestFailed):
            engine.submit([9], config=config).result(20)
        assert engine.submit([3], config=config).result(20) == generate(model, [[3]], config=config)[0]
        assert engine.is_ready


@dataclass(frozen=True)
class Ban9(Counting):
    """Never writes the token 9."""

    def decide(self, obs: Observation) -> Decision:
        return replace(Counting.decide(self, obs), tokens=torch.full_like(obs.drawn, 3))


def test_closing_finishes_what_was_submitted_and_takes_no_more() -> None:
    engine = Engine(Slow(tiny("llada_tiny"), 0.005), Limits(max_rows=2))
    engine.start()
    jobs = [engine.submit("the", ONE_BY_ONE, GenerationConfig(max_new_tokens=4)) for _ in range(5)]
    engine.drain()
    assert not engine.is_ready
    with pytest.raises(Closing, match="shutting down"):
        engine.submit("the")
    engine.close()
    assert all(job.result(0).steps == 4 for job in jobs)


def test_closing_now_ends_everything_at_once() -> None:
    engine = Engine(Gated(tiny("llada_tiny")), Limits(max_rows=1))
    engine.start()
    jobs = [hold_up(engine), engine.submit("the")]
    engine.drain(now=True)
    engine.model.open()
    engine.close()
    for job in jobs:
        with pytest.raises(Closing):
            job.result(0)
    assert (engine.running, engine.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"max_new_tokens": 65}, "max_new_tokens must be at most 64 on this server, got 65"),
        ({"steps": 10**9}, "steps must be at most 1024 on this server, got 1000000000"),
        ({"stop": ("a",) * 17}, "stop strings must be at most 16"),
        ({"stop": ("a" * 257,)}, "a stop string's length must be at most 256"),
    ],
    ids=str,
)
def test_what_costs_too_much_is_refused(config: dict[str, Any], sentence: str) -> None:
    with (
        Engine(tiny("llada_tiny"), Limits(max_new_tokens=64)) as engine,
        pytest.raises(ValueError, match=sentence),
    ):
        engine.submit("the", config=GenerationConfig(**{"max_new_tokens": 8, **config}))


def test_prompts_and_gaps_that_are_too_long_are_refused() -> None:
    limits = Limits(max_prompt_tokens=10, max_new_tokens=20, max_batch_tokens=25)
    with Engine(tiny("llada_tiny"), limits) as engine:
        config = GenerationConfig(max_new_tokens=4)
        with pytest.raises(ValueError, match="the prompt's tokens must be at most 10 on this server"):
            engine.submit([65] * 11, config=config)
        with pytest.raises(ValueError, match="all tokens of a request must be at most 25"):
            engine.submit([65] * 10, config=replace(config, max_new_tokens=16))
        with pytest.raises(ValueError, match="the tokens of all gaps must be at most 20"):
            engine.submit_infill(f"a [[gap {10**12}]]", config=config)


def test_a_sampler_that_cannot_be_compared_is_refused() -> None:
    class Unhashable(Base):
        __hash__ = None  # type: ignore[assignment]

    with (
        Engine(tiny("llada_tiny")) as engine,
        raises_field("sampler", "Unhashable", "hashable"),
    ):
        engine.submit("the", Unhashable())


def hold_up(engine: Engine, length: int = 256, sampler: Any = ONE_BY_ONE) -> Job:
    """A long request that runs, and stands still until its gate opens; others arrive in the meantime."""
    job = engine.submit([2], sampler, GenerationConfig(max_new_tokens=length))
    wait_until(lambda: engine.running == 1)
    return job


def let_go(engine: Engine, held: Job) -> None:
    """Send the long request away and let the others run."""
    held.cancel()
    engine.model.open()


@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny"])
@pytest.mark.parametrize("exact", [True, False])
def test_requests_with_a_cache_get_what_they_get_alone(name: str, exact: bool) -> None:
    model, dice = tiny(name), random.Random(3)
    mix = [
        Ask(
            [dice.randrange(5, 50) for _ in range(dice.choice([4, 9, 9, 9]))],
            SAMPLERS[dice.choice(["less", "threshold", "base"])],
            GenerationConfig(
                max_new_tokens=16,
                block_length=8,
                cache=dice.choice(["prefix", "dual", "dual"]),
                refresh_every=dice.choice([None, None, 3]),
            ),
            pause=dice.choice([0.0, 0.0, 0.01]),
        )
        for _ in range(12)
    ]
    with Engine(model, Limits(max_rows=6), exact=exact) as engine:
        together = answers(engine, mix)
    assert together == [generate(model, [ask.prompt], ask.sampler, ask.config)[0] for ask in mix]


@pytest.mark.parametrize("cache", [None, "dual"])
def test_a_compiled_model_serves_the_same_texts(cache: Any) -> None:
    plain, fast = tiny("llada_tiny"), compile(load(GOLDENS / "llada_tiny", device="cpu"), layers=False)
    fast.tokenizer = plain.tokenizer
    config = GenerationConfig(max_new_tokens=16, block_length=8, cache=cache)
    prompts = [[5 + number] * (3 + number % 3) for number in range(7)]
    with no_complaints(), Engine(fast, Limits(max_rows=5)) as engine:
        jobs = [engine.submit(prompt, config=config) for prompt in prompts]
        together = [job.result(60) for job in jobs]
    assert together == [generate(plain, [prompt], config=config)[0] for prompt in prompts]


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_guided_requests_may_have_a_cache(cache: Any, fast: bool) -> None:
    model = tiny("llada_tiny")
    if fast:
        model, plain = compile(load(GOLDENS / "llada_tiny", device="cpu"), layers=False), model
        model.tokenizer = plain.tokenizer
    config = GenerationConfig(max_new_tokens=16, block_length=8, cache=cache, guidance=0.5)
    mix = [Ask([5 + number] * 3, Threshold(min_confidence=0.1 * number), config) for number in range(5)]
    with Engine(model) as engine:
        together = answers(engine, mix)
    assert together == [generate(tiny("llada_tiny"), [ask.prompt], ask.sampler, config)[0] for ask in mix]


def test_requests_that_stay_together_keep_their_cache_without_copies(monkeypatch: Any) -> None:
    model = compile(load(GOLDENS / "llada_tiny", device="cpu"), layers=False)  # pads three rows to four
    model.tokenizer = tiny("llada_tiny").tokenizer
    config, joined, join = (
        GenerationConfig(max_new_tokens=16, block_length=16, cache="dual"),
        [],
        BlockCache.join,
    )
    monkeypatch.setattr(BlockCache, "join", lambda parts: joined.append(parts) or join(parts))
    with Engine(model, Limits(max_rows=4)) as engine:
        held = [engine.submit([5 + number] * 3, ONE_BY_ONE, config) for number in range(3)]
        assert all(job.result(60).steps == 16 for job in held)
    assert len(joined) <= 5  # when they meet, not at each of 16 steps


class Foreign(Counting):
    """Writes a token that no vocabulary has."""

    def decide(self, obs: Observation) -> Decision:
        first = obs.active & (obs.active.cumsum(-1) == 1)
        tokens = torch.full_like(obs.drawn, 10**6)
        return Decision(first, first, torch.zeros_like(obs.step, dtype=torch.bool), tokens=tokens)


def test_a_token_that_no_vocabulary_has_is_named_to_the_sender() -> None:
    with Engine(tiny("llada_tiny")) as engine:
        job = engine.submit([5, 6], Foreign(), GenerationConfig(max_new_tokens=4))
        with pytest.raises(RequestFailed, match=r"Decision\.tokens.*1000000"):
            job.result(20)


class NoMeta(TorchDispatchMode):
    """Fails if anything is computed on the device "meta"."""

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = call(*args, **(kwargs or {}))
        used = [each for each in tree_leaves((args, kwargs, out)) if isinstance(each, Tensor)]
        assert all(each.device.type != "meta" for each in used), f"{call} touches the model's device"
        return out


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"constraint": Regex("[a-z ]*")},
        {"min_new_tokens": 4},
        {"guidance": 1.0},
        {"cache": "prefix", "block_length": 4},
        {"cache": "dual", "block_length": 4, "refresh_every": 2},
        {"end_tokens": "last"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny"])
def test_a_request_is_prepared_without_the_device_of_the_model(name: str, config: dict[str, Any]) -> None:
    model = deepcopy(tiny(name)).to("meta")
    waiting, settings = Engine(model, Limits(max_rows=4)), GenerationConfig(**config)
    with NoMeta():
        text = waiting.submit("the cat", config=replace(settings, max_new_tokens=8))
        gaps = None if settings.min_new_tokens else waiting.submit_infill("the [[gap 8]]", config=settings)
    for job in (text, gaps):
        if job is not None:
            RunningRequest(job, model.info)
            assert int((job.request.run.canvas.tokens == model.info.mask_id).sum()) == 8
