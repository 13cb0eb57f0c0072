"""A compiled model decodes what the plain one does: padded to buckets, with joined weights and kept keys."""

from __future__ import annotations

import functools
import gc
import pickle
import weakref
from collections.abc import Iterator
from itertools import product, zip_longest

import pytest
import torch

import unmask
from tests.conftest import GOLDENS
from tests.raises import raises_field
from unmask.fast import compile as compiled
from unmask.fast import executor, graphs
from unmask.fast.compile import compile
from unmask.models import load
from unmask.models.layers import Attention, SwiGLU
from unmask.types import Decision, Needs, Observation

FAMILIES = ["llada_tiny", "dream_tiny"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPTS = {"alone": [[7, 42, 99]], "batch": [[7, 42, 99], [5, 6, 8, 9, 10]]}
# compiled layers round differently in the last bit
CLOSE = {"rtol": 1e-3, "atol": 1e-3}
# keeps hidden states, not logits; random weights are never sure
RECALLING = unmask.LESS(min_confidence=0.05, max_jsd=0.3, top_k=4)


class EveryThirdStep:
    """Commits a position, then nothing for two steps."""

    needs = Needs()

    def decide(self, obs: Observation) -> Decision:
        first = obs.active & (obs.active.cumsum(-1) == 1)
        commit = first & (obs.step % 3 == 0)[:, None]
        return Decision(commit, commit, torch.zeros_like(obs.step, dtype=torch.bool))


def tiny(family: str, **options: object) -> unmask.models.trunk.Trunk:
    # "auto" would be bfloat16 for one of them on a GPU, where other kernels write other tokens
    model = load(str(GOLDENS / family), device=DEVICE, dtype="float32")
    return compile(model, **options) if options else model


def started(family: str, **options: object) -> unmask.models.trunk.Trunk:
    """A model whose decisions are compiled, and whose layers are not."""
    model = tiny(family, layers=False, **options)
    model.executor = functools.partial(model.executor, compiled=True)
    return model


def asked(
    model,
    prompts,
    *,
    cache=None,
    refresh=4,
    sampler="less",
    length=32,
    block=16,
    steps=32,
    **options,
) -> dict[str, object]:
    """What to decode, as `decode` and `denoise` have it."""
    info = model.info
    canvas = unmask.blank(prompts, length, mask_id=info.mask_id, pad_id=info.pad_id, device=DEVICE)
    return {
        "model": model,
        "canvas": canvas,
        "sampler": unmask.make_sampler(sampler) if isinstance(sampler, str) else sampler,
        "plan": unmask.plan(canvas.start, length, steps=steps, block_length=block),
        "options": unmask.Options(**options),
        "cache": None if cache is None else unmask.BlockCache(cache, refresh_every=refresh),
    }


def decoded(model, prompts, **wanted) -> unmask.Result:
    return unmask.decode(**asked(model, prompts, **wanted))


def recalling(model, prompts=PROMPTS["batch"], *, stop=None, **wanted) -> Iterator[unmask.Step]:
    return unmask.denoise(**asked(model, prompts, sampler=RECALLING, **wanted), stop=stop)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", [None, "suffix", "block"])
@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize("bucket", [16])
def test_captured_forwards_give_the_tokens_of_plain_ones(family, cache, prompts, bucket):
    plain = decoded(tiny(family), PROMPTS[prompts], cache=cache)
    fast = decoded(tiny(family, layers=False, bucket=bucket), PROMPTS[prompts], cache=cache)
    assert torch.equal(plain.tokens, fast.tokens)
    assert torch.equal(plain.forwards, fast.forwards)


@pytest.mark.parametrize("family", FAMILIES)
def test_joined_weights_are_the_weights_and_take_no_second_copy(family):
    plain, joined = tiny(family), tiny(family, layers=False)
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, joined.state_dict()[name]), name
    for module in joined.modules():
        if isinstance(module, Attention | SwiGLU):
            parts = (module.query, module.key) if isinstance(module, Attention) else (module.gate, module.up)
            storages = {part.weight.untyped_storage().data_ptr() for part in parts}
            assert storages == {module.joined.weight.untyped_storage().data_ptr()}


def test_canvases_of_one_bucket_share_a_graph_and_the_oldest_goes_first():
    model = tiny("llada_tiny", layers=False, bucket=64, graphs=2)
    for length in (3, 9, 31):
        decoded(model, [[5] * length])
    assert [key.columns for key in model.runner.captured] == [64]
    decoded(model, [[5] * 40])
    decoded(model, [[5] * 100])
    assert [key.columns for key in model.runner.captured] == [128, 192]


def test_a_shorter_canvas_sees_nothing_of_a_longer_one_of_its_bucket():
    model, plain = tiny("llada_tiny", layers=False, bucket=64), tiny("llada_tiny")
    for prompt in ([5] * 31, [7, 42, 99], list(range(20))):
        assert torch.equal(decoded(model, [prompt]).tokens, decoded(plain, [prompt]).tokens)


def test_one_graph_is_enough_for_a_run_with_a_cache():
    model = tiny("llada_tiny", layers=False, graphs=1)
    plain = decoded(tiny("llada_tiny"), [[7, 42, 99]], cache="block")
    assert torch.equal(decoded(model, [[7, 42, 99]], cache="block").tokens, plain.tokens)


@pytest.mark.slow
def test_what_is_compiled_for_one_sampler_does_not_stop_another(traced):
    samplers = ("threshold", "klass", "less", "base", "factor", "factor-released", "entropy-bound", "prophet")
    samplers += ("credit", "saber", "pc", "first-mask-revoke", "hierarchy")
    for family, block, some in (("llada_tiny", 16, samplers[::4]), ("dream_tiny", None, samplers[2::4])):
        plain, fast = tiny(family), started(family)
        for sampler in some:
            ways = [decoded(model, PROMPTS["batch"], sampler=sampler, block=block) for model in (plain, fast)]
            assert torch.equal(ways[0].tokens, ways[1].tokens), (family, sampler)


@pytest.mark.parametrize(
    "sampler", ["wino", "dawn", unmask.WINO(min_confidence=0.1, min_shadow=0.2)], ids=str
)
def test_shadow_columns_and_attention_maps_are_those_of_a_plain_model(traced, sampler):
    for family, block in (("llada_tiny", 16), ("dream_tiny", None)):
        plain, fast = tiny(family), started(family)
        ways = [decoded(model, PROMPTS["batch"], sampler=sampler, block=block) for model in (plain, fast)]
        assert torch.equal(ways[0].tokens, ways[1].tokens)
        assert torch.equal(ways[0].forwards, ways[1].forwards)
        assert torch.equal(ways[0].revoked, ways[1].revoked)
        assert not fast.runner.captured


def test_the_layers_of_shadow_columns_and_attention_maps_are_not_compiled_for_every_length():
    def refuse(graph, inputs):
        raise AssertionError("a layer was compiled")

    model = tiny("llada_tiny", layers=False)
    for layer in (*model.layers, model.norm):
        layer.compile(backend=refuse)
    model.executor = functools.partial(model.executor, compiled=False)
    for sampler in ("wino", "dawn"):
        plain = decoded(tiny("llada_tiny"), PROMPTS["batch"], sampler=sampler)
        assert torch.equal(decoded(model, PROMPTS["batch"], sampler=sampler).tokens, plain.tokens)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_last_norm_is_compiled_once_per_window_whatever_runs_beside_it(rows):
    compilations = []
    torch._dynamo.reset()
    model, plain = tiny("llada_tiny", layers=False, bucket=16), tiny("llada_tiny")
    model.norm.compile(dynamic=False, backend=lambda graph, _: compilations.append(graph) or graph.forward)
    for length in (20, 30, 40, 70):
        tokens = torch.full((rows, length), 5, device=DEVICE)
        with torch.no_grad():
            answer, expected = (each(tokens, None, slice(2, 18), None) for each in (model, plain))
        torch.testing.assert_close(answer, expected, **CLOSE)
    assert len(compilations) == 1


@pytest.mark.slow
def test_what_is_compiled_never_sorts_as_that_would_take_a_minute_to_compile(traced, monkeypatch):
    called: set[str] = set()

    def note(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        called.update(str(getattr(node.target, "__name__", node.target)) for node in graph.graph.nodes)
        return graph

    by_tracer = functools.cache(lambda work: torch.compile(work, dynamic=False, backend=note))
    monkeypatch.setattr(executor, "_compiled", by_tracer)
    samplers = ("base", "threshold", "factor", "entropy-bound", "klass", "prophet", "less")
    samplers += ("credit", "saber", "pc", "first-mask-revoke", "hierarchy")
    for number, sampler in enumerate(samplers):
        block = (16, None)[number % 2]
        decoded(started("dream_tiny"), PROMPTS["batch"], sampler=sampler, block=block, steps=4)
    assert "cumsum" in called  # it does look
    assert not called & {"sort", "argsort", "topk"}


@pytest.mark.parametrize(("family", "sampler"), [("llada_tiny", "threshold"), ("dream_tiny", RECALLING)])
def test_forwards_that_start_early_are_those_that_were_to_run(traced, family, sampler):
    caches = (None, None), ("block", 4), ("block", None), ("suffix", None)
    budgets = (8, True), (8, False), (32, True)
    models = tiny(family), started(family)
    for (cache, refresh), (steps, fill_leftovers) in product(caches, budgets):  # all share what was traced
        wanted = {"cache": cache, "refresh": refresh, "steps": steps, "fill_leftovers": fill_leftovers}
        expected, result = (decoded(model, PROMPTS["batch"], sampler=sampler, **wanted) for model in models)
        assert torch.equal(expected.tokens, result.tokens), wanted
        assert torch.equal(expected.forwards, result.forwards), wanted
        assert expected.evaluations == result.evaluations, wanted


@pytest.mark.parametrize("sampler", ["threshold", RECALLING])
def test_the_next_forward_starts_before_a_step_is_shown(traced, sampler):
    model = started("llada_tiny")
    next(unmask.denoise(**asked(model, PROMPTS["batch"], sampler=sampler)))
    assert (model.runner.submitted, model.runner.finished) == (1, 1)


def test_forwards_that_start_early_keep_no_gradients(traced, monkeypatch):
    model, said = started("llada_tiny").requires_grad_(True), []
    align = type(model).align
    monkeypatch.setattr(type(model), "align", lambda *given: said.append(align(*given)) or said[-1])
    list(recalling(model))
    assert len(said) > 1
    assert not any(states.requires_grad for states in said)


def test_runs_in_turns_on_one_model_do_not_mix(traced):
    prompts = [[[7, 42, 99], [5, 6, 8, 9, 10]], [[300, 12, 77, 31, 9], [2, 3]]]
    model = started("llada_tiny")
    runs = zip_longest(*(recalling(model, few) for few in prompts))
    for few, steps in zip(prompts, zip(*runs, strict=True), strict=True):
        *_, expected = recalling(tiny("llada_tiny"), few)
        *_, last = filter(None, steps)
        assert torch.equal(expected.tokens, last.tokens)


def test_a_judge_of_rows_may_ask_the_same_model(traced):
    plain, fast = tiny("llada_tiny"), started("llada_tiny")

    def ask(tokens):
        fast(torch.full_like(tokens, 5), None, slice(5, 37), None)
        return torch.zeros(len(tokens), dtype=torch.bool, device=DEVICE)

    *_, expected = recalling(plain)
    *_, found = recalling(fast, stop=ask)
    assert torch.equal(expected.tokens, found.tokens)


def test_a_judge_of_rows_may_decode_with_a_cache_too(traced):
    plain, fast = tiny("llada_tiny"), started("llada_tiny")

    def ask(tokens):
        decoded(fast, PROMPTS["alone"], cache="block", length=16)
        return torch.zeros(len(tokens), dtype=torch.bool, device=DEVICE)

    *_, expected = recalling(plain, cache="block", refresh=None)
    *_, found = recalling(fast, cache="block", refresh=None, stop=ask)
    assert torch.equal(expected.tokens, found.tokens)


def test_rows_that_have_ended_are_never_run(traced):
    model = started("llada_tiny", graphs=1)
    over = torch.tensor([True, False], device=DEVICE)
    steps = list(recalling(model, stop=lambda tokens: over))
    assert len(steps) > 3
    assert [key.rows for key in model.runner.captured] == [1]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cached", [False, True])
def test_a_forward_that_was_submitted_and_dropped_changes_nothing(family, cached):
    window, texts = slice(2, 18), [torch.full((1, 20), token, device=DEVICE) for token in (5, 6)]
    answers = []
    for model in (tiny(family), tiny(family, layers=False)):
        cache = unmask.BlockCache("block") if cached else None
        if cache is not None:
            cache.start_block(window)
        with torch.no_grad():
            model(texts[0], None, window, cache)
            if model.runner is not None:
                model.runner.submit(texts[1], None, window, cache)
            answers.append(model(texts[0], None, window, cache))
    torch.testing.assert_close(*answers, rtol=0, atol=1e-4)


def test_the_forward_submitted_first_may_be_asked_for_last():
    window, texts = slice(2, 18), [torch.full((1, 20), token, device=DEVICE) for token in (5, 6)]
    plain, fast = tiny("llada_tiny"), tiny("llada_tiny", layers=False)
    with torch.no_grad():
        submitted = [fast.runner.submit(text, None, window, None) for text in texts]
        for text, pending in zip(texts, submitted, strict=True):
            expected = plain.hidden_states(text, None, window, None)
            torch.testing.assert_close(pending.result(), expected, rtol=0, atol=1e-4)


def test_steps_that_change_nothing_submit_nothing(traced):
    model = started("llada_tiny")
    result = decoded(model, PROMPTS["alone"], sampler=EveryThirdStep(), block=None)
    assert (int(result.steps), int(result.forwards)) == (32, 12)
    assert model.runner.submitted - model.runner.finished == 11  # dropped: one after each forward at most


def test_runs_with_a_cache_may_take_turns_on_one_model(traced):
    settings = {"cache": "block", "refresh": None, "block": 32}
    prompts = [[[7, 42, 99]], [[5, 6, 8]]]
    model = started("llada_tiny")
    runs = zip_longest(*(recalling(model, few, **settings) for few in prompts))
    for few, steps in zip(prompts, zip(*runs, strict=True), strict=True):
        *_, expected = recalling(tiny("llada_tiny"), few, **settings)
        *_, last = filter(None, steps)
        assert torch.equal(expected.tokens, last.tokens)


def test_a_cache_survives_others_in_all_memory_that_it_used():
    window, texts, answers = slice(4, 18), torch.arange(5, 85, device=DEVICE).view(4, 20), []
    for model in (tiny("llada_tiny"), tiny("llada_tiny", layers=False, bucket=16)):
        cache, wide, narrow = (unmask.BlockCache("block") for _ in range(3))

        def full(tokens, used, model=model):
            used.start_block(window)
            model(tokens, None, window, used)

        with torch.no_grad():
            full(texts, cache)
            full(texts[:2], cache)  # of a smaller batch, so elsewhere
            full(texts + 1, wide)
            full(texts[2:], cache)
            full(texts[:2], narrow)
            answers.append(model(texts[2:], None, window, cache))
    torch.testing.assert_close(*answers, rtol=0, atol=1e-4)


def test_a_cache_may_serve_a_longer_canvas_of_its_bucket_next():
    window, answers = slice(4, 18), []
    for model in (tiny("llada_tiny"), tiny("llada_tiny", layers=False, bucket=64)):
        caches = unmask.BlockCache("block"), unmask.BlockCache("block")
        with torch.no_grad():
            for token, length, cache in ((5, 20, caches[0]), (6, 30, caches[0]), (8, 30, caches[1])):
                cache.start_block(window)
                model(torch.full((1, length), token, device=DEVICE), None, window, cache)
            answers.append(model(torch.full((1, 30), 6, device=DEVICE), None, window, caches[0]))
    torch.testing.assert_close(*answers, rtol=0, atol=1e-4)


def test_a_model_with_split_products_can_be_pickled():
    model = tiny("llada_tiny")
    compiled.use_split_products(model)
    again, tokens = pickle.loads(pickle.dumps(model)), torch.full((1, 8), 5, device=DEVICE)
    assert torch.equal(*(each(tokens, None, slice(0, 8), None) for each in (model, again)))


@pytest.mark.parametrize("more", ["bias", "hook", "class"])
def test_a_layer_that_is_more_than_a_product_is_not_split(monkeypatch, more):
    monkeypatch.setattr(compiled, "can_split", lambda weight: True)
    layer = torch.nn.Linear(128, 64, bias=more == "bias")
    if more == "hook":
        layer.register_forward_hook(lambda module, given, out: out + 1)
    if more == "class":
        layer.__class__ = type("Scaled", (torch.nn.Linear,), {"forward": lambda self, x: x[..., :64] * 2})
    x = torch.randn(1, 3, 128)
    with torch.no_grad():
        assert torch.equal(compiled.split_linear(layer, x), layer(x))


def test_one_graph_at_a_time_is_enough():
    model, plain = tiny("llada_tiny", layers=False, bucket=16, graphs=1), tiny("llada_tiny")
    for length in (5, 30, 5):
        tokens = torch.full((1, length), 5, device=DEVICE)
        with torch.no_grad():
            answer, expected = (each(tokens, None, slice(0, length), None) for each in (model, plain))
        torch.testing.assert_close(answer, expected, rtol=0, atol=1e-4)


def test_evicted_graphs_take_their_keys_and_values_along():
    model = tiny("llada_tiny", layers=False, bucket=16, graphs=2)
    decoded(model, [[5, 6]], cache="block")
    assert list(model.runner.stores) == [(1, 48)]
    decoded(model, [[5, 6]])
    decoded(model, [[5, 6]] * 2)
    assert list(model.runner.stores) == []


def test_the_memory_of_a_capture_that_failed_is_reclaimed(monkeypatch):
    def fail(*given):
        raise torch.OutOfMemoryError

    model = tiny("llada_tiny", layers=False)
    with monkeypatch.context() as patch:
        patch.setattr(graphs.CanvasForward, "__init__", fail)
        with pytest.raises(torch.OutOfMemoryError):
            decoded(model, [[5, 6]], cache="block")
    kept = [weakref.ref(side) for store in model.runner.stores.values() for side in store.layers[0]]
    model.runner.clear()
    assert kept
    assert not any(side() is not None for side in kept)
    plain = decoded(tiny("llada_tiny"), [[5, 6]], cache="block")
    assert torch.equal(decoded(model, [[5, 6]], cache="block").tokens, plain.tokens)


@pytest.mark.parametrize("cache", ["suffix", "block"])
def test_a_run_goes_on_after_its_memory_is_reclaimed_which_copies_nothing(monkeypatch, cache):
    def refuse(*given, **options):
        raise torch.OutOfMemoryError

    model, settings = tiny("llada_tiny", layers=False), {"cache": cache, "refresh": None}
    *_, expected = recalling(tiny("llada_tiny"), **settings)
    steps = []
    for step in recalling(model, **settings):
        steps.append(step)
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "clone", refuse)
            model.runner.clear()
        assert not model.runner.captured
    assert torch.equal(steps[-1].tokens, expected.tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_rows_and_buckets_together_give_the_same_logits(family):
    plain, fast = tiny(family), tiny(family, layers=False, bucket=32)
    tokens = torch.randint(5, 50, (3, 21), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    attend = (torch.arange(21)[None] >= torch.tensor([[0], [4], [20]])).to(DEVICE)
    with torch.no_grad():
        expected = plain(tokens, attend, slice(6, 20), None)
        torch.testing.assert_close(fast(tokens, attend, slice(6, 20), None), expected, **CLOSE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bucket": 0}, "bucket must be a whole number >= 1, got 0"),
        ({"graphs": True}, "graphs must be"),
    ],
)
def test_wrong_sizes_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        compile(load(str(GOLDENS / "llada_tiny")), **options)


def test_only_models_of_the_library_can_be_compiled():
    with raises_field("model", "Linear", "unmask.load"):
        compile(torch.nn.Linear(2, 2))


def test_a_dropped_model_is_freed():
    model = tiny("llada_tiny", layers=False)
    decoded(model, [[5]])
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, some tens
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_layers_and_decisions_give_the_same_tokens(family):
    plain, fast = tiny(family), tiny(family, layers=True, bucket=16)
    for sampler in ("less", "base", "threshold"):
        for cache in (None, "block"):
            expected = decoded(plain, PROMPTS["batch"], cache=cache, sampler=sampler)
            assert torch.equal(
                decoded(fast, PROMPTS["batch"], cache=cache, sampler=sampler).tokens, expected.tokens
            )
    drawn = unmask.Selection(temperature=0.7)
    expected = decoded(plain, PROMPTS["alone"], selection=drawn)
    assert torch.equal(decoded(fast, PROMPTS["alone"], selection=drawn).tokens, expected.tokens)
