"""Our rules inside transformers' generation of DiffusionGemma, on a tiny random model built in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.raises import raises_field
from unmask import KLASS, LESS, WINO, Base, EntropyBound, Speculative, Threshold
from unmask.models.diffusion_gemma import REPLACED, RuleSampler, RuleStop, using_rules

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
PROMPT = torch.tensor([[5, 9, 7, 20, 31]])
SETTINGS = {"max_new_tokens": 16, "max_denoising_steps": 6, "t_min": 0.1, "t_max": 0.2}


@pytest.fixture(scope="module", autouse=True)
def transformers() -> Any:
    """The package with DiffusionGemma; its import takes seconds, so no other worker has to wait for it."""
    package = pytest.importorskip("transformers")
    if not hasattr(package, "DiffusionGemmaForBlockDiffusion"):
        pytest.skip("this transformers has no DiffusionGemma")
    return package


@pytest.fixture(scope="module")
def model(transformers: Any) -> Any:
    text = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 32,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "num_experts": 4,
        "top_k_experts": 2,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "patch_size": 4,
    }
    config = transformers.DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=8)
    torch.manual_seed(0)
    made = transformers.DiffusionGemmaForBlockDiffusion(config).eval()
    made.set_experts_implementation("eager")
    with torch.no_grad():  # else every prediction is nearly uniform
        made.model.decoder.embed_tokens.weight.mul_(20)
    return made


def generate(model: Any, **settings: Any) -> Any:
    torch.manual_seed(1)
    return model.generate(PROMPT, **{**SETTINGS, **settings})


def test_our_entropy_bound_equals_the_family_s_own(model: Any, transformers: Any) -> None:
    config = transformers.models.diffusion_gemma.EntropyBoundSamplerConfig(entropy_bound=2.0)
    theirs = generate(model, sampler_config=config)
    with using_rules(model, accept=EntropyBound(bound=2.0)):
        ours = generate(model)
    assert torch.equal(ours.sequences, theirs.sequences)


def test_after_the_block_the_model_is_as_before(model: Any) -> None:
    before = generate(model).sequences
    with pytest.raises(ZeroDivisionError), using_rules(model, accept=LESS(), stop=LESS()):
        raise ZeroDivisionError
    assert torch.equal(generate(model).sequences, before)


@pytest.mark.parametrize(
    "rule", [LESS(), LESS(exact=False), Threshold(), KLASS(), Base(), Base(order="random")]
)
def test_every_rule_on_predictions_fills_all_canvases(model: Any, rule: Any) -> None:
    with using_rules(model, accept=rule):
        made = generate(model).sequences
    assert made.shape == (1, PROMPT.shape[1] + SETTINGS["max_new_tokens"])


def test_rules_inside_rules_apply_until_they_end(model: Any) -> None:
    with using_rules(model, accept=EntropyBound(bound=1e9)):
        before = generate(model).sequences
        with using_rules(model, accept=Base()):
            generate(model)
        assert torch.equal(generate(model).sequences, before)
    assert not {*REPLACED} & {*vars(model)}


def test_a_canvas_ends_when_the_rule_finds_it_stable(model: Any) -> None:
    never = {"stability_threshold": None, "confidence_threshold": None}
    with using_rules(model, stop=LESS(min_confidence=0, max_jsd=float("inf"), persistence=1)):
        at_once = generate(model, **never)
    with using_rules(model, stop=LESS(min_confidence=1.0)):
        at_last = generate(model, **never)
    assert float(at_once.tokens_per_forward[0]) == 8  # a canvas of 8 in a single step
    assert float(at_last.tokens_per_forward[0]) == pytest.approx(8 / 6, abs=0.01)


def logits(*best: int, size: int = 12, strength: float = 20.0) -> Tensor:
    """A row of columns that are sure of these tokens."""
    scores = torch.zeros(1, len(best), size)
    return scores.scatter(-1, torch.tensor(best)[None, :, None], strength)


def test_less_accepts_the_columns_that_persist() -> None:
    sampler = RuleSampler(LESS(), canvas_length=3, vocab_size=12, max_denoising_steps=8)
    canvas, drawn = torch.tensor([[9, 9, 9]]), torch.tensor([[1, 2, 3]])
    sampler.initialize_canvas(1, torch.device("cpu"))
    sampler.accept_canvas(canvas, drawn, logits(1, 2, 3), 8)
    accepted = sampler.accept_canvas(canvas, drawn, logits(1, 5, 3), 7)
    assert accepted.tolist() == [[1, 9, 3]]
    renoised = sampler.renoise_canvas(accepted, 7)
    assert renoised[0, [0, 2]].tolist() == [1, 3]
    sampler.initialize_canvas(1, torch.device("cpu"))  # nothing persists across canvases
    sampler.accept_canvas(canvas, drawn, logits(1, 5, 3), 8)
    assert sampler.accepted_token_mask is not None
    assert sampler.accepted_token_mask.sum() == 1  # the schedule's quota


def test_a_rule_sees_the_rows_of_a_batch_apart() -> None:
    stop = RuleStop(LESS(), max_denoising_steps=8)
    both = torch.cat([logits(1, 2, 3), logits(4, 5, 6)])
    assert stop(both.argmax(-1), both).tolist() == [False, False]
    changed = torch.cat([logits(1, 2, 3), logits(4, 5, 7)])
    assert stop(changed.argmax(-1), changed).tolist() == [True, False]
    stop.reset()
    assert stop(changed.argmax(-1), changed).tolist() == [False, False]


def test_transformers_does_not_keep_a_compiled_copy_of_our_rule(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda work, **options: work)
    theirs = generate(model).sequences
    with using_rules(model, accept=EntropyBound(bound=1e9), stop=LESS()):
        ours = generate(model, cache_implementation="static").sequences
    after = generate(model, cache_implementation="static").sequences
    assert not torch.equal(ours, after)
    assert torch.equal(theirs[:, :13], after[:, :13])  # the first canvas; rounding changes the second


@pytest.mark.parametrize("rule", [WINO(), Speculative(LESS())])
def test_a_rule_that_needs_masks_is_refused(model: Any, rule: Any) -> None:
    with raises_field("sampler", rule), using_rules(model, accept=rule):
        pass


def test_another_model_is_refused() -> None:
    with raises_field("model", "Linear"), using_rules(torch.nn.Linear(1, 1), accept=LESS()):
        pass
