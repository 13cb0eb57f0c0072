"""The samplers that `frontier` compares, their sweeps, and the figures to check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from unmask.experiments.lab import Lab
from unmask.experiments.runs import Run
from unmask.experiments.stats import Estimate
from unmask.samplers import make_sampler
from unmask.text.fields import ConfigFields

Changes = Mapping[str, Any]  # new values of sampler fields or generation settings
SETTINGS = {item.name for item in fields(ConfigFields)}  # all other names are fields of a sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A sampler at its authors' setting, and the sweep of its main field."""

    label: str
    preset: str
    other: Mapping[str, str] = field(default_factory=dict)  # family -> preset, if not `preset`
    changes: Changes = field(default_factory=dict)
    sweep: tuple[str, tuple[float, ...]] | None = None  # a field and its values
    end_rule: bool = False  # whether the sampler has the end rule built in

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets of all families."""
        return (self.preset, *self.other.values())

    def run(self, lab: Lab, model: str, task: str, changes: Changes, *, protocol: str | None = None) -> Run:
        """Return the run on one task with some settings changed."""
        changed = {**self.changes, **changes}
        own = {name: value for name, value in changed.items() if name not in SETTINGS}
        rest = {name: value for name, value in changed.items() if name in SETTINGS}
        sampler = make_sampler(self.other.get(lab.family(model), self.preset), **own)
        return lab.run(model, task, sampler, protocol=protocol, **rest)

    @property
    def swept(self) -> dict[str, Changes]:
        """The changes for each value of the sweep, by label."""
        if self.sweep is None:
            return {}
        name, values = self.sweep
        return {f"{self.label}, {name} = {value:g}": {name: value} for value in values}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim to test: the speedup over another method, and whether accuracy is gained or only kept."""

    label: str
    than: str = "Base"
    gains: bool = False
    speedup: float | None = None
    category: str | None = None  # category of tasks; None means all


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to compare."""

    methods: tuple[Method, ...]
    reference: str = "LESS"  # label of a method that all are compared with
    recommended: str = "First mask"  # label of the sampler that the page recommends
    held_out: tuple[str, ...] = ()  # labels of the methods to run on held-out items
    with_fallback: tuple[str, ...] = ()
    lossless: tuple[tuple[Method, Method], ...] = ()  # a sampler and the one whose texts it promises
    claims: tuple[Claim, ...] = ()
    end_rule: Changes = field(default_factory=lambda: {"end_tokens": "last"})
    first_mask: Changes = field(default_factory=lambda: {"fallback": "first"})

    @property
    def by_label(self) -> dict[str, Method]:
        """The methods by label."""
        return {method.label: method for method in self.methods}

    @property
    def presets(self) -> list[str]:
        """The name of every sampler that it needs."""
        everyone = (*self.methods, *(method for pair in self.lossless for method in pair))
        return list(dict.fromkeys(name for method in everyone for name in method.presets))


CONFIDENCE = ("min_confidence", (0.7, 0.8, 0.9, 0.95, 0.98))
METHODS = (
    Method(
        label="Base", preset="base", other={"dream": "base-entropy"}, sweep=("steps", (16, 32, 64, 96, 128))
    ),
    Method(label="LESS", preset="less", sweep=("min_confidence", (0.6, 0.75, 0.9, 0.95, 0.98))),
    Method(
        label="First mask",
        preset="first-mask",
        sweep=("min_confidence", (0.9, 0.95, 0.97, 0.98, 0.99)),
        end_rule=True,
    ),
    Method(label="First mask, accurate", preset="first-mask-accurate", end_rule=True),
    Method(label="First mask, along", preset="first-mask-along", end_rule=True),
    Method(label="First mask, always", preset="first-mask-always", end_rule=True),
    Method(label="First mask, revoke", preset="first-mask-revoke", end_rule=True),
    Method(label="Threshold 0.9", preset="threshold", sweep=CONFIDENCE),
    Method(label="Threshold 0.95", preset="threshold", changes={"min_confidence": 0.95}),
    Method(label="KLASS", preset="klass", sweep=CONFIDENCE),
    Method(label="Entropy bound", preset="entropy-bound", sweep=("bound", (0.01, 0.03, 0.1, 0.3, 1.0))),
    Method(
        label="LESS, released",
        preset="less-released",
        sweep=("min_confidence", (0.6, 0.75, 0.9, 0.95, 0.98)),
    ),
    Method(label="Factor", preset="factor", sweep=("factor", (0.1, 0.25, 0.5, 1.0, 1.5))),
    Method(
        label="LocalLeap",
        preset="local-leap",
        other={"dream": "local-leap-dream"},
        sweep=("min_confidence", (0.8, 0.85, 0.9, 0.95, 0.98)),
    ),
    Method(label="Credit", preset="credit", sweep=CONFIDENCE),
    Method(label="WINO", preset="wino", sweep=("min_confidence", (0.5, 0.6, 0.7, 0.8, 0.9))),
    Method(label="DAWN", preset="dawn", other={"dream": "dawn-dream"}, sweep=CONFIDENCE),
    Method(label="Hierarchy", preset="hierarchy", sweep=CONFIDENCE),
    Method(label="Entropy threshold", preset="entropy-threshold"),
    Method(label="LESS, spaced", preset="less", changes={"min_gap": "auto"}),
    Method(label="Threshold 0.9, spaced", preset="threshold", changes={"min_gap": "auto"}),
    Method(label="Saber", preset="saber", sweep=("number", (2, 3, 4, 6, 8))),
    Method(label="PC", preset="pc"),
)
STUDY = Study(
    methods=METHODS,
    held_out=("First mask", "First mask, accurate", "Threshold 0.9", "LESS"),
    with_fallback=("LESS", "Threshold 0.9", "KLASS", "Entropy bound"),
    lossless=(
        (Method(label="FreeDave", preset="freedave"), Method(label="Base, by confidence", preset="base")),
        (Method(label="LESS, speculative", preset="less-speculative"), Method(label="LESS", preset="less")),
        (
            Method(label="First mask, speculative", preset="first-mask-speculative"),
            Method(label="First mask", preset="first-mask"),
        ),
    ),
    claims=(  # the papers' claims, for LLaDA-8B and Dream-7B, then ours on the first mask
        Claim(label="Entropy bound", speedup=2.0),
        Claim(label="LocalLeap", speedup=100 / 14.2),
        Claim(label="Credit", gains=True, speedup=5.48),
        Claim(label="WINO", gains=True, speedup=6.10),
        Claim(label="DAWN", speedup=1.80),
        Claim(label="Saber", gains=True, speedup=2.5, category="code"),
        Claim(label="LESS, spaced", than="LESS", gains=True),
        Claim(label="Threshold 0.9, spaced", than="Threshold 0.9", gains=True),
        *(
            Claim(label="First mask", than=label, gains=True, speedup=1.0)
            for label in ("Base", "KLASS", "Threshold 0.9", "LESS")
        ),
    ),
)
# accuracy and forwards in the search that found `first-mask`, on its own held-out items
SEARCH: dict[str, dict[str, tuple[Estimate, Estimate]]] = {
    "mini-llada": {
        "First mask": (Estimate(93.7, 92.8, 94.5), Estimate(8.14, 8.02, 8.28)),
        "First mask, accurate": (Estimate(94.3, 93.4, 95.0), Estimate(9.44, 9.30, 9.59)),
        "Threshold 0.9": (Estimate(87.0, 85.7, 88.0), Estimate(11.31, 11.15, 11.49)),
        "LESS": (Estimate(83.0, 81.7, 84.2), Estimate(11.58, 11.43, 11.75)),
    },
    "mini-dream": {
        "First mask": (Estimate(95.8, 94.9, 96.3), Estimate(7.45, 7.34, 7.56)),
        "First mask, accurate": (Estimate(96.0, 95.2, 96.6), Estimate(8.67, 8.55, 8.80)),
        "Threshold 0.9": (Estimate(90.0, 88.9, 91.0), Estimate(10.66, 10.50, 10.83)),
        "LESS": (Estimate(95.7, 94.9, 96.3), Estimate(18.94, 18.60, 19.28)),
    },
}
