"""Express each recorded reference in our terms: its sampler, its loop options, its canvas.

A sampler or a setting that is unknown here fails the test and is named; nothing is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.conformance import golden
from unmask import (
    KLASS,
    PC,
    WINO,
    Base,
    Canvas,
    Credit,
    Dawn,
    EntropyBound,
    EntropyThreshold,
    Factor,
    Hierarchy,
    LESSReleased,
    LocalLeap,
    Options,
    Prophet,
    Saber,
    Speculative,
    Threshold,
    TokenFrequency,
)
from unmask.decoding.draw import NoiseSource, Selection
from unmask.types import Attention, Decision, ModelInfo, Needs, Observation, Sampler

DREAM_ORDERS = {
    "maskgit_plus": "confidence",
    "topk_margin": "margin",
    "entropy": "entropy",
    "origin": "origin",
}


@dataclass(frozen=True)
class Setup:
    """One recorded run in our terms."""

    sampler: Sampler
    options: Options
    steps: int
    length: int
    block_length: int | None = None
    guidance: float = 0.0
    cache: str = "none"
    next_block_at: float | None = None
    noise: NoiseSource | None = None


@dataclass
class Settings:
    """The settings of a case. It notes which were read, so that none is passed over."""

    values: dict[str, Any]
    layers: int = 0  # of the model
    read: set[str] = field(default_factory=set)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return self.values.get(name, default)

    def only(self, name: str, *known: Any) -> None:
        """Fail unless the setting is absent or has one of the values that we can replay."""
        value = self.get(name)
        if value is not None and value not in known:
            golden.fail(f"the harness cannot replay the setting {name}={value!r}")

    def check_all_read(self) -> None:
        unknown = {name for name, value in self.values.items() if value is not None} - self.read
        if unknown:
            golden.fail(f"the harness does not know the settings {', '.join(sorted(unknown))}")


def setup(
    sampler: str, values: dict[str, Any], arrays: dict[str, np.ndarray], info: ModelInfo, *, layers: int = 0
) -> Setup:
    """The run that a manifest entry describes, on a model of so many layers."""
    settings = Settings(values, layers)
    settings.only("temperature", 0)
    made = BUILDERS[sampler](settings, arrays, info)
    settings.check_all_read()
    return made


def unknown_sampler(sampler: str) -> str | None:
    """Why a recorded sampler cannot be replayed; None if it can."""
    if sampler in BUILDERS:
        return None
    return f"unmask has no sampler {sampler!r}, or it is not in BUILDERS of tests/conformance/references.py"


def released(settings: Settings, *, banned: tuple[int, ...] = (), **options: Any) -> dict[str, Any]:
    """Loop settings of the references: no early stop at the end token, and the mask token is not banned."""
    return {
        "steps": settings.get("steps"),
        "length": settings.get("gen_length"),
        "block_length": settings.get("block_length"),
        "options": Options(**{"stop_at_eos": False, "banned_ids": banned, **options}),
    }


def llada(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    banned = info.eos_ids if settings.get("logits_eos_inf") else ()
    demoted = info.eos_ids if settings.get("confidence_eos_eot_inf") else ()
    settings.only("remasking", "low_confidence")
    sampler = Base(demoted_ids=demoted)
    guidance = settings.get("cfg_scale", 0.0)
    return Setup(sampler, guidance=guidance, **released(settings, banned=banned, schedule="linear"))


def dream(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    settings.get("torch_seed")  # the draws themselves are recorded
    settings.only("alg_temp", 0)
    settings.only("eps", 1e-3)
    settings.only("alg", *DREAM_ORDERS)
    sampler = NucleusFirst(
        order=DREAM_ORDERS[settings.get("alg")],
        top_p=settings.get("top_p") or 1.0,
        top_k=settings.get("top_k") or 0,
    )
    noise = Replay(arrays["uniform_draws"], settings.get("gen_length")) if "uniform_draws" in arrays else None
    return Setup(sampler, noise=noise, **released(settings, schedule="dream"))


def klass(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    sampler = KLASS(
        min_confidence=settings.get("conf_threshold"),
        max_kl=settings.get("kl_threshold"),
        history=settings.get("kl_history_length"),
        unmask_strategy=settings.get("unmask_strategy", "all"),
    )
    made = released(settings, schedule="linear", fill_leftovers=False)
    return Setup(Overshoot.of(sampler, arrays, made["block_length"]), **made)


def prophet(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    settings.get("constraints")  # already written into x_init
    sampler = Prophet(**settings.get("thresholds"), answer_start=settings.get("answer_start"))
    return Setup(sampler, **released(settings, schedule="linear"))


def less_released(settings: Settings, **options: Any) -> dict[str, Any]:
    sampler = LESSReleased(
        min_confidence=settings.get("conf_threshold"),
        max_jsd=settings.get("drift_threshold"),
        persistence=settings.get("persistence_len"),
    )
    return {"sampler": sampler, **released(settings, **options)}


def less_dream(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    return Setup(
        **less_released(
            settings,
            banned=(info.mask_id,),
            schedule="dream",
            stop_at_eos=settings.get("enable_eos_early_stop", True),
            min_new_tokens=settings.get("min_new_tokens_before_eos", 0),
        )
    )


def less_llada(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    return Setup(**less_released(settings, schedule="linear", fill_leftovers=False))


def fast_dllm(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    threshold, factor = settings.get("threshold"), settings.get("factor")
    sampler: Sampler = Base()
    if threshold is not None:
        sampler = Threshold(min_confidence=threshold)
    if factor is not None:
        sampler = Factor(factor=factor, last_rank_free=True)
    budget = released if threshold is None and factor is None else unbounded
    return Setup(sampler, cache=settings.get("cache", "none"), **budget(settings, schedule="linear"))


def freedave(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    """FreeDave, or with a threshold FreeDave++."""
    threshold = settings.get("threshold")
    static: Sampler = Base() if threshold is None else Threshold(min_confidence=threshold)
    sampler = Speculative(static, rows=settings.get("draft_steps"), partial=threshold is not None)
    return Setup(sampler, cache=settings.get("cache", "none"), **unbounded(settings, schedule="linear"))


def multiblock(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    settings.only("early_stop", False)
    settings.get("decoded_token_threshold")  # a block is "full" if the one before is finished, at any value
    return Setup(
        EntropyThreshold(max_entropy=settings.get("threshold")),
        next_block_at=settings.get("block_add_threshold"),
        **unbounded(settings, schedule="linear"),
    )


def unbounded(settings: Settings, **options: Any) -> dict[str, Any]:
    """Loop settings of references without a step budget: each of their steps commits at least one token."""
    return {**released(settings, **options), "steps": settings.get("gen_length")}


def entropy_bound(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    return Setup(EntropyBound(bound=settings.get("gamma")), **unbounded(settings))


def local_leap(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    sampler = LocalLeap(
        min_confidence=settings.get("threshold"),
        relaxed_confidence=settings.get("relaxed_threshold"),
        radius=settings.get("radius"),
    )
    return Setup(sampler, **unbounded(settings))


def hierarchy(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    sampler = Hierarchy(
        min_confidence=settings.get("threshold"), low_confidence=settings.get("low_threshold")
    )
    return Setup(sampler, **unbounded(settings))


def credit(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    sampler = Credit(
        min_confidence=settings.get("threshold"),
        weight=settings.get("credit_alpha"),
        power=settings.get("boost_gamma"),
        decay=settings.get("decay_beta"),
    )
    return Setup(sampler, **{**released(settings), "steps": settings.get("gen_length")})


def saber(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    sampler = Saber(number=settings.get("n"))
    return Setup(sampler, **{**released(settings), "steps": settings.get("gen_length")})


def pc(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    sampler = PC(
        position_weight=settings.get("lambd"),
        max_score=settings.get("alpha"),
        frequencies=TokenFrequency(torch.from_numpy(arrays["token_frequency"])),
    )
    return Setup(sampler, **released(settings, schedule="linear"))


def wino(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    sampler = WINO(min_confidence=settings.get("threshold"), min_shadow=settings.get("threshold_back"))
    return Setup(sampler, **until_full(settings))


def dawn(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    sampler = Dawn(
        induced_confidence=settings.get("tau_induce"),
        low_confidence=settings.get("tau_low"),
        sink=settings.get("tau_sink"),
        edge=settings.get("tau_edge"),
        layers=settings.layers - settings.get("layers_from"),
    )
    return Setup(Watched(sampler), **until_full(settings))


def until_full(settings: Settings) -> dict[str, Any]:
    """Loop settings of a reference without a step budget: every step fills a column on balance."""
    return {
        **released(settings, schedule="linear", fill_leftovers=False),
        "steps": settings.get("gen_length"),
    }


BUILDERS = {
    "llada_low_confidence": llada,
    "dream": dream,
    "klass_llada": klass,
    "klass_dream": klass,
    "prophet_llada": prophet,
    "less_dream": less_dream,
    "less_llada": less_llada,
    "fastdllm_llada": fast_dllm,
    "freedave_llada": freedave,
    "multiblock_llada": multiblock,
    "eb_llada": entropy_bound,
    "localleap_llada": local_leap,
    "localleap_dream": local_leap,
    "hierarchy_llada": hierarchy,
    "credit_llada": credit,
    "saber_llada": saber,
    "pc_llada": pc,
    "wino_llada": wino,
    "dawn_llada": dawn,
}


class NucleusFirst(Base):
    """Base that filters as Dream does: by top-p, and what is left by top-k; ours does it the other way."""

    def score_filtered(self, logits: Tensor, drawn: Tensor) -> Tensor:
        nucleus = Selection(top_p=self.top_p).filter(logits.float().clone())
        return Base(order=self.order, top_k=self.top_k).score_filtered(nucleus, drawn)


@dataclass(frozen=True)
class Watched:
    """A sampler that keeps the attention of every step."""

    sampler: Sampler
    attention: list[Attention] = field(default_factory=list)

    @property
    def needs(self) -> Needs:
        return self.sampler.needs

    def decide(self, obs: Observation) -> Decision:
        self.attention.append(obs.attention)
        return self.sampler.decide(obs)


@dataclass(frozen=True)
class Overshoot:
    """KLASS with the stray commits of one recorded run.

    The reference asks for its full quota even when the block has fewer masks left. It then also commits
    the positions that its top-k happens to return. Ours commits only the masks that are left. We replay
    the stray positions, so that every later step can be compared.
    """

    sampler: KLASS
    stray: dict[int, list[int]]  # step -> window columns outside its block
    step: list[int] = field(default_factory=lambda: [0])

    @staticmethod
    def of(sampler: KLASS, arrays: dict[str, np.ndarray], block_length: int | None) -> Sampler:
        if block_length is None or not {"block", "quota"} <= set(arrays):
            return sampler
        start, states = arrays["prompt_ids"].shape[1], [arrays["x_init"], *arrays["x_steps"]]
        stray = {}
        for number, block in enumerate(arrays["block"]):
            columns = np.nonzero(states[number][0] != states[number + 1][0])[0] - start
            outside = [int(column) for column in columns if column // block_length != block]
            if outside:
                masks = len(columns) - len(outside)
                assert masks < arrays["quota"][number], (
                    "the reference strays only when its quota is too large"
                )
                stray[number] = outside
        return Overshoot(sampler, stray) if stray else sampler

    @property
    def needs(self) -> Needs:
        return self.sampler.needs

    def decide(self, obs: Observation) -> Decision:
        decision = self.sampler.decide(obs)
        commit = decision.commit.clone()
        for column in self.stray.get(self.step[0], []):
            assert obs.masked[0, column]
            commit[0, column] = True
        self.step[0] += 1
        return replace(decision, commit=commit)


class Replay:
    """The uniform numbers that a reference drew, step by step."""

    def __init__(self, draws: np.ndarray, length: int) -> None:
        self._draws = iter(draws[:, :, -length:])

    def __call__(self, running: Tensor, width: int) -> Tensor:
        return torch.from_numpy(np.nan_to_num(next(self._draws), nan=1.0)).to(running.device)


def canvas(arrays: dict[str, np.ndarray], mask_id: int) -> Canvas:
    """The canvas that the reference started from."""
    tokens = torch.from_numpy(arrays["x_init"]).long()
    start = arrays["prompt_ids"].shape[1]
    attend = None
    if "attention_mask" in arrays and not arrays["attention_mask"].all():
        prompt = torch.from_numpy(arrays["attention_mask"]).bool()
        attend = torch.cat(
            [prompt, torch.ones(len(tokens), tokens.shape[1] - start, dtype=torch.bool)], dim=1
        )
    return Canvas(tokens, attend, start, mask_id)
