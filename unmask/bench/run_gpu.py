"""`unmask bench gpu`: measure, print the tables, write the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unmask.bench.gpu import CACHES, NAMES, SMALL, WAYS, Sizes, measure
from unmask.bench.gpu_table import table, wrong
from unmask.bench.parts import draw_parts, parts_table
from unmask.bench.place import pick_place
from unmask.bench.reference import Reference
from unmask.bench.released import RULES, released
from unmask.bench.report import Report, command, some_of


def run_gpu(
    *,
    families: Sequence[str] = tuple(NAMES),
    ways: Sequence[str] = tuple(WAYS),
    caches: Sequence[str] = tuple(CACHES),
    references: Sequence[str] = (),
    device: str | None = None,
    small: bool = False,
    minutes: float = 20.0,
    out: Path | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """The results, which are also in `out`/gpu.json, with the figure beside it, and said as tables."""
    some_of("families", families, NAMES)
    some_of("ways", ways, WAYS)
    some_of("caches", caches, CACHES)
    others = [*released(), *map(Reference.read, references)]
    place = pick_place(device, small=small)
    options = [("families", ",".join(families)), ("ways", ",".join(ways)), ("caches", ",".join(caches))]
    options += [("device", place.type), ("minutes", f"{minutes:g}")]
    options += [("reference", other.name) for other in others[len(RULES) :]]  # without this machine's folders
    content: dict[str, Any] = {
        "command": command("gpu", options, small=small),
        "batches": list((SMALL if small else Sizes()).batches),
        "families": {},
    }
    path = None if out is None else out / "gpu.json"
    report = Report(content, path, time.monotonic() + minutes * 60, say)
    measure(report, families, ways, place, small=small, caches=caches, references=others)
    for sentence in wrong(content):
        report.problem(sentence)
    say(f"\n{table(content)}")
    for family in content["families"].values():
        for way in WAYS:
            if "parts" in family.get(way, {}):
                say("\n" + parts_table(f"{family['name']} {way}", family[way]["parts"]))
    if out is not None:
        try:
            draw_parts(content, out / "gpu.png")
        except ValueError as error:  # a missing library is no reason to lose the numbers
            report.problem(f"no figure: {error}")
    report.write()
    return report.result()
