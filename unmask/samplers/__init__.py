"""All samplers by name. `make_sampler(name, **fields)` returns a preset with some fields changed."""

from __future__ import annotations

from unmask.samplers.base import Base
from unmask.samplers.credit import Credit
from unmask.samplers.dawn import Dawn
from unmask.samplers.editing import Editing
from unmask.samplers.end_last import EndLast
from unmask.samplers.entropy_bound import EntropyBound
from unmask.samplers.entropy_threshold import EntropyThreshold
from unmask.samplers.factor import Factor
from unmask.samplers.first_mask import FirstMask
from unmask.samplers.frequency import TokenFrequency
from unmask.samplers.hierarchy import Hierarchy
from unmask.samplers.klass import KLASS, RELEASED
from unmask.samplers.less import ABLATIONS, LESS
from unmask.samplers.less_released import LESSReleased
from unmask.samplers.local_leap import LocalLeap
from unmask.samplers.pc import PC
from unmask.samplers.prophet import Prophet
from unmask.samplers.quota_threshold import QuotaThreshold
from unmask.samplers.registry import SAMPLERS, check_fields, make_sampler, register_sampler
from unmask.samplers.saber import Saber
from unmask.samplers.spaced import Spaced
from unmask.samplers.speculative import Speculative
from unmask.samplers.threshold import Threshold
from unmask.samplers.wino import WINO
from unmask.types import Sampler

GROUPS: dict[str, dict[str, Sampler]] = {
    "recommended": {
        "first-mask": FirstMask(),
        "recommended": FirstMask(),  # docs/choosing.md has the evidence
        "first-mask-accurate": FirstMask(window=2),
        "first-mask-along": FirstMask(along="jsd"),
        "first-mask-always": FirstMask(along="confidence", along_confidence=0),
    },
    "the paper's": {
        "less": LESS(),
        "less-paper": LESS(policy="frontier", patience=2),
        "less-released": LESSReleased(),
        "less-first-mask": EndLast(LESS(fallback="first")),
    },
    "fixed schedule": {
        "base": Base(),
        "base-margin": Base(order="margin"),
        "base-entropy": Base(order="entropy"),
        "base-origin": Base(order="origin"),
        "random": Base(order="random"),
        "pc": PC(),
    },
    "this step alone": {
        "threshold": Threshold(),
        "factor": Factor(),
        "factor-released": Factor(last_rank_free=True),
        "entropy-bound": EntropyBound(),
        "entropy-threshold": EntropyThreshold(),
        "local-leap": LocalLeap(),
        "local-leap-dream": LocalLeap(relaxed_confidence=0.8),
        "hierarchy": Hierarchy(),
        "dawn": Dawn(),
        "dawn-dream": Dawn(induced_confidence=0.75, low_confidence=0.75, sink=0.03),
    },
    "with a history": {
        "klass": KLASS(),
        **{f"klass-{name}": KLASS(min_confidence=c, max_kl=kl) for name, (c, kl) in RELEASED.items()},
        "credit": Credit(),
        "prophet": Prophet(),
        "prophet-dream": Prophet(base=Base(order="entropy")),
    },
    "with revocation": {
        "wino": WINO(),
        "wino-strict": WINO(min_confidence=0.8),
        "saber": Saber(),
        "first-mask-revoke": FirstMask(along="confidence", along_confidence=0, revoke_below=0.1),
    },
    "of block models": {
        "sdar": QuotaThreshold(min_confidence=0.85),
        "sdar-static": Base(),
        "sdar-sequential": Base(order="left"),
        "llada2": QuotaThreshold(min_confidence=0.95),
        "llada2.1": Editing(),
        "llada2.1-quality": Editing(min_confidence=0.7, edit_confidence=0.5),
        "llada2.1-speed": Editing(min_confidence=0.5, edit_confidence=0.0),
        "fast-dllm-v2": QuotaThreshold(min_confidence=0.9, at_least=1),
    },
    "speculative": {
        "freedave": Speculative(Base()),
        "freedave++": Speculative(Threshold(min_confidence=0.95), partial=True),
        "less-speculative": Speculative(LESS()),
        "first-mask-speculative": Speculative(FirstMask(), guess="first"),
    },
    "ablations of LESS": {f"less-{name}": sampler for name, sampler in ABLATIONS.items()},
}
SAMPLERS.update({name: sampler for group in GROUPS.values() for name, sampler in group.items()})

__all__ = [
    "GROUPS",
    "KLASS",
    "LESS",
    "PC",
    "SAMPLERS",
    "WINO",
    "Base",
    "Credit",
    "Dawn",
    "Editing",
    "EndLast",
    "EntropyBound",
    "EntropyThreshold",
    "Factor",
    "FirstMask",
    "Hierarchy",
    "LESSReleased",
    "LocalLeap",
    "Prophet",
    "QuotaThreshold",
    "Saber",
    "Spaced",
    "Speculative",
    "Threshold",
    "TokenFrequency",
    "check_fields",
    "make_sampler",
    "register_sampler",
]
