"""How each recorded reference is expressed in our terms: its sampler, its loop options, its canvas.

Every setting of a case must be understood here; one that is not is an error, never a skip.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask import KLASS, Base, Canvas, Factor, LESSReleased, Options, Prophet, Threshold
from unmask.decoding.draw import NoiseSource
from unmask.types import Decision, ModelInfo, Needs, Observation, Sampler

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
    noise: NoiseSource | None = None


@dataclass
class Settings:
    """The settings of a case; remembers which were asked for."""

    values: dict[str, Any]
    asked: set[str] = field(default_factory=lambda: {"temperature"})

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return self.values.get(name, default)

    def check(self) -> None:
        unknown = set(self.values) - self.asked
        assert not unknown, f"the harness does not know the settings {sorted(unknown)}"
        assert self.values.get("temperature", 0.0) == 0.0, "recorded runs are greedy"


def setup(sampler: str, values: dict[str, Any], arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    """The run that a manifest entry describes."""
    settings = Settings(values)
    made = BUILDERS[sampler](settings, arrays, info)
    settings.check()
    return made


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
    assert settings.get("remasking", "low_confidence") == "low_confidence"
    sampler = Base(demoted_ids=demoted)
    guidance = settings.get("cfg_scale", 0.0)
    return Setup(sampler, guidance=guidance, **released(settings, banned=banned, schedule="linear"))


def dream(settings: Settings, arrays: dict[str, np.ndarray], info: ModelInfo) -> Setup:
    settings.get("torch_seed")  # the draws themselves are recorded
    assert not settings.get("alg_temp")
    sampler = Base(
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
    return Setup(sampler, cache=settings.get("cache", "none"), **released(settings, schedule="linear"))


BUILDERS = {
    "llada_low_confidence": llada,
    "dream": dream,
    "klass_llada": klass,
    "klass_dream": klass,
    "prophet_llada": prophet,
    "less_dream": less_dream,
    "less_llada": less_llada,
    "fastdllm_llada": fast_dllm,
}


@dataclass(frozen=True)
class Overshoot:
    """KLASS with the stray commits of one recorded run.

    The reference asks for its full quota even when fewer masks are left in the block, and then commits
    whatever position its top-k happens to return. Ours commits what is left. Replaying the stray positions
    lets every later step be compared all the same.
    """

    sampler: KLASS
    stray: dict[int, list[int]]  # step -> window columns outside its block
    step: list[int] = field(default_factory=lambda: [0])

    @staticmethod
    def of(sampler: KLASS, arrays: dict[str, np.ndarray], block_length: int | None) -> Sampler:
        if block_length is None:
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
