"""The names that a user may type, each with a sentence. Imports nothing heavy, so completion is fast."""

from __future__ import annotations

from typing import NamedTuple

MODELS = {
    "mini-llada": "A small LLaDA model that decodes in blocks.",
    "mini-dream": "A small Dream model that decodes the full sequence.",
}
DEFAULT_SAMPLER_NAME = "first-mask"  # used if no sampler is named; docs/choosing.md says why
DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("auto", "float32", "bfloat16", "float16", "fp8", "int8", "int4")

_BENCHMARKS = ("GSM8K", "MATH", "HumanEval", "MBPP")
# None means the class with its defaults, so the sentence comes from the class docstring
PRESETS: dict[str, str | None] = {
    "first-mask": None,
    "recommended": "The sampler to start with, and the default: the same as first-mask.",
    "first-mask-accurate": "As first-mask, but the fallback is the better of the first two masks: "
    "may be more accurate, and is a little slower.",
    "first-mask-along": "As first-mask, but if the distribution of the first mask stands still, "
    "commit it along with the confident positions.",
    "first-mask-always": "As first-mask, but commit the first mask in every step: the fewest forwards.",
    "less": None,
    "less-paper": "The paper's Algorithm 1 to the letter: as less, but up to two steps in a row may commit "
    "nothing, and on a full sequence a step commits one position.",
    "less-released": None,
    "less-first-mask": "As less, but the fallback is the first mask, and end tokens wait for the masks "
    "before them.",
    "base": None,
    "base-margin": "As base, but prefer the widest lead over the second-best token (Dream's topk_margin).",
    "base-entropy": "As base, but prefer the lowest entropy (Dream's entropy).",
    "base-origin": "As base, but commit each position with the schedule's probability (Dream's origin).",
    "random": "As base, but pick positions at random (LLaDA's random).",
    "pc": None,
    "threshold": None,
    "factor": None,
    "factor-released": "As factor, but as in the released code: the least confident position needs no test.",
    "entropy-bound": None,
    "entropy-threshold": None,
    "local-leap": None,
    "local-leap-dream": "As local-leap, with its authors' setting for Dream.",
    "hierarchy": None,
    "dawn": None,
    "dawn-dream": "As dawn, with its authors' settings for Dream.",
    "klass": None,
    **{
        f"klass-{model}-{benchmark}".lower(): f"As klass, set as its authors do for {model} on {benchmark}."
        for model in ("LLaDA", "Dream")
        for benchmark in _BENCHMARKS
    },
    "credit": None,
    "prophet": None,
    "prophet-dream": "As prophet, but for Dream, whose fixed schedule goes by entropy.",
    "wino": None,
    "wino-strict": "As wino, but commit only above a confidence of 0.8.",
    "saber": None,
    "first-mask-revoke": "As first-mask-always, but mask a token again, once, if its probability "
    "is below 0.1.",
    "sdar": "The generation of SDAR: quota-threshold at 0.85.",
    "sdar-static": "SDAR's fixed schedule: the most confident positions of a block, as many as the quota.",
    "sdar-sequential": "SDAR from left to right: the first masks of a block, as many as the quota.",
    "llada2": "The generation of LLaDA2.0: quota-threshold at 0.95.",
    "llada2.1": None,
    "llada2.1-quality": "As llada2.1, with its authors' setting for quality.",
    "llada2.1-speed": "As llada2.1, with its authors' setting for speed: every change of mind is written.",
    "fast-dllm-v2": "The generation of Fast-dLLM v2: every position above 0.9, and at least one.",
    "freedave": "As base, in fewer forwards of more rows, with guesses of the next canvases (FreeDave).",
    "freedave++": "As threshold at 0.95, with guesses of the next canvases, also in parts (FreeDave++).",
    "less-speculative": "As less, in fewer forwards of more rows, with guesses of the next canvases.",
    "first-mask-speculative": "As first-mask, in fewer forwards of more rows, with guesses of the next "
    "canvases.",
    "less-confidence-only": "As less, but test only the confidence.",
    "less-jsd-only": "As less, but test only the change of the distribution.",
    "less-persistence-only": "As less, but test only whether the most likely token stayed the same.",
    "less-margin-only": "As less, but test only the lead of the most likely token over the second.",
    "less-no-confidence": "As less, but without the test of confidence.",
    "less-no-jsd": "As less, but without the test of the change of the distribution.",
    "less-no-persistence": "As less, but without the test that the most likely token stayed the same.",
    "less-policy-frontier": "As less, but commit one position per step, also in blocks.",
    "less-policy-run": "As less, but commit the run from the first mask, also in blocks.",
    "less-policy-all": "As less, but commit all positions that pass, also on a full sequence.",
}


class TaskEntry(NamedTuple):
    """What the catalog says about a task.

    Attributes:
        sentence: What the task asks, and how an answer is judged.
        items: Number of items in the default protocol.
        protocols: Ways to prompt and score, the default first.
    """

    sentence: str
    items: int
    protocols: tuple[str, ...] = ("paper", "released")


_MINI = ("mini", "dev", "held-out")
TASKS: dict[str, TaskEntry] = {
    "gsm8k": TaskEntry("Solve a grade-school word problem; the final number counts.", 1319),
    "math": TaskEntry("Solve a competition problem; an equivalent answer counts.", 5000),
    "math500": TaskEntry("500 problems of math.", 500),
    "humaneval": TaskEntry("Complete a Python function; its tests are run.", 164),
    "mbpp": TaskEntry("Write a small Python function; its tests are run.", 500),
    "mbpp-sanitized": TaskEntry("The problems of mbpp that were checked by hand.", 257),
    "mmlu": TaskEntry("Choose one of four answers to a question of 57 subjects.", 14042),
    "hellaswag": TaskEntry("Choose the ending of a text, one of four.", 10042),
    "winogrande": TaskEntry("Choose the name that fills the gap of a sentence, one of two.", 1267),
    "mini-gsm8k": TaskEntry("Solve a synthetic word problem; the final number counts.", 500, _MINI),
    "mini-math": TaskEntry("Solve an equation, a sum or a fraction; an equal value counts.", 500, _MINI),
    "mini-humaneval": TaskEntry("Complete a tiny Python function; hidden tests are run.", 500, _MINI),
    "mini-mbpp": TaskEntry("Write a tiny Python function; hidden tests are run.", 500, _MINI),
    "mini-mmlu": TaskEntry("Choose one of four answers about an invented world.", 500, _MINI),
    "mini-hellaswag": TaskEntry("Choose the next event of a short script.", 500, _MINI),
    "mini-winogrande": TaskEntry("Choose the thing that a pronoun means.", 500, _MINI),
    "mini-fim-code": TaskEntry("Write the missing lines of a function; hidden tests are run.", 500, _MINI),
    "mini-fim-prose": TaskEntry("Write the missing sentence of a story; its effect counts.", 500, _MINI),
    "mini-sudoku": TaskEntry("Fill a sudoku of 4 x 4; every valid solution counts.", 500, _MINI),
    "mini-countdown": TaskEntry("Make a target from given numbers; every way counts.", 500, _MINI),
    "mini-seating": TaskEntry("Seat four people under constraints; every valid order counts.", 500, _MINI),
    "mini-recall": TaskEntry("Repeat pairs of people and things, in any order.", 500, _MINI),
    "mini-report": TaskEntry("Write 150 to 300 tokens about given facts; all must be there.", 500, _MINI),
}

EXPERIMENTS: dict[str, str] = {
    "headline": "The main table: accuracy and steps of every method on every task.",
    "single-signal": "LESS with one of its signals alone.",
    "drop-one": "LESS without one of its signals.",
    "policy": "LESS with other policies: the first position, the run from the first mask, all.",
    "cache": "Block caches under four samplers: the time they save and the accuracy they cost.",
    "budget": "Accuracy and steps as the step budget grows from L/4 to 2L.",
    "selection": "The likeliest token at every committed position against a drawn one.",
    "fallback": "How often no position passes the rule, so that the fallback chooses.",
    "flip-rate": "How often the most likely token of a mask changes from step to step.",
    "flops": "Floating-point operations per sample.",
    "wallclock": "Seconds per sample, each decoded alone.",
    "qualitative": "The same prompts under the paper's four methods, side by side.",
    "calibrate": "The cheapest thresholds of LESS within a loss of accuracy, written as a preset.",
    "pareto": "Accuracy against steps over a grid of the thresholds c and d.",
    "leave-one-out": "Thresholds chosen on all other models and tasks, tested on the one left out.",
    "frontier": "All samplers, as their authors set them and tuned: accuracy against forwards.",
    "evidence": "Tuned samplers on a grid of models: sizes, seeds, and tasks of any order (--grid).",
}
