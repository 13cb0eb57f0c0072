"""Tasks, categories and samplers of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unmask.samplers import SAMPLERS, Base, Threshold, make_sampler
from unmask.samplers.klass import KLASS, RELEASED
from unmask.types import Sampler

ROLES = ("gsm8k", "math", "humaneval", "mbpp", "mmlu", "hellaswag", "winogrande")
PAPER_TASKS = ("gsm8k", "math500", "humaneval", "mbpp-sanitized", "mmlu", "hellaswag", "winogrande")
ORDER_ROLES = ("fim-code", "fim-prose", "sudoku", "countdown", "seating", "recall", "report")
CATEGORIES = {
    "gsm8k": "math",
    "math": "math",
    "humaneval": "code",
    "mbpp": "code",
    "mmlu": "knowledge",
    "hellaswag": "knowledge",
    "winogrande": "knowledge",
    **dict.fromkeys(ORDER_ROLES[:2], "gaps"),
    **dict.fromkeys(ORDER_ROLES[2:5], "constraints"),
    **dict.fromkeys(ORDER_ROLES[5:], "recall"),
}
COST = {"report": 4}  # cost of an item, relative to other tasks; its answers are long
HARD = ("math", "code")  # the categories of every ablation
TITLES = {
    "gsm8k": "GSM8K",
    "math": "MATH",
    "humaneval": "HumanEval",
    "mbpp": "MBPP",
    "mmlu": "MMLU",
    "hellaswag": "HellaSwag",
    "winogrande": "WinoGrande",
    **{name: name for name in ORDER_ROLES},
}


def role(task: str) -> str:
    """Return the paper's benchmark that a task corresponds to, or the task's own name if there is none."""
    name = task.removeprefix("mini-").removesuffix("-sanitized")
    return "math" if name == "math500" else name


def category(task: str) -> str:
    """Return the category of a task."""
    return CATEGORIES[role(task)]


def title(task: str) -> str:
    """Return the name of a task in tables."""
    return f"{'mini-' if task.startswith('mini-') else ''}{TITLES[role(task)]}"


def weights(tasks: Sequence[str]) -> dict[str, float]:
    """Return the weight of each task in the category-macro mean."""
    groups = [category(task) for task in tasks]
    return {task: 1 / (len(set(groups)) * groups.count(category(task))) for task in tasks}


def item_shares(tasks: Sequence[str]) -> dict[str, float]:
    """Return the share of a limit that each task gets. Tasks with costly items get fewer items."""
    parts = {task: 1 / COST.get(role(task), 1) for task in tasks}
    return {task: part / sum(parts.values()) for task, part in parts.items()}


def base(family: str) -> Base:
    """Return the family's own fixed-budget sampler. The release of Dream orders by entropy."""
    return Base(order="entropy" if family == "dream" else "confidence")


def klass(family: str, task: str) -> KLASS:
    """Return KLASS with the thresholds released for the family and task, else with its defaults."""
    released = RELEASED.get(f"{family}-{role(task)}")
    return KLASS() if released is None else KLASS(min_confidence=released[0], max_kl=released[1])


def paper_methods(family: str, task: str) -> dict[str, Sampler]:
    """Return the four methods of the paper's main table."""
    return {
        "Base": base(family),
        "Prophet": make_sampler("prophet-dream" if family == "dream" else "prophet"),
        "KLASS": klass(family, task),
        "LESS": SAMPLERS["less"],
    }


def more_methods(family: str, task: str) -> dict[str, Sampler]:
    """Return the paper's methods, other forms of KLASS and LESS, and plain thresholds."""
    return {
        **paper_methods(family, task),
        "KLASS 0.9 / 0.01": KLASS(),
        "LESS, Algorithm 1": SAMPLERS["less-paper"],
        "LESS, released code": SAMPLERS["less-released"],
        **THRESHOLDS,
    }


THRESHOLDS: Mapping[str, Sampler] = {
    f"Threshold {value:g}": Threshold(min_confidence=value) for value in (0.75, 0.9)
}
SINGLE: Mapping[str, Sampler] = {
    "Confidence only": SAMPLERS["less-confidence-only"],
    "JSD only": SAMPLERS["less-jsd-only"],
    "Persistence only": SAMPLERS["less-persistence-only"],
    "Margin only": SAMPLERS["less-margin-only"],
}
DROP: Mapping[str, Sampler] = {
    "LESS without persistence": SAMPLERS["less-no-persistence"],
    "LESS without JSD": SAMPLERS["less-no-jsd"],
    "LESS without confidence": SAMPLERS["less-no-confidence"],
}
POLICIES: Mapping[str, Sampler] = {
    "Frontier first": SAMPLERS["less-policy-frontier"],
    "Run from the frontier": SAMPLERS["less-policy-run"],
    "All eligible": SAMPLERS["less-policy-all"],
}
