"""`unmask bench gpu`: measure, print the tables, write the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unmask.bench.gpu import CACHES, COMPARED, NAMES, SMALL, WAYS, Asked, Sizes, measure
from unmask.bench.gpu_table import table, wrong
from unmask.bench.parts import draw_parts, parts_table
from unmask.bench.place import pick_place
from unmask.bench.reference import Reference
from unmask.bench.released import released
from unmask.bench.report import Report, command, some_of


def run_gpu(
    *,
    families: Sequence[str] = tuple(NAMES),
    ways: Sequence[str] = tuple(WAYS),
    batches: Sequence[int | str] | None = None,
    caches: Sequence[str] = tuple(CACHES),
    samplers: Sequence[str] = COMPARED,
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
    some_of("samplers", samplers, COMPARED)
    known = {str(batch): batch for batch in (SMALL if small else Sizes()).batches}
    chosen = list(known) if batches is None else list(map(str, batches))
    some_of("batches", chosen, known)
    ways = [way for way in WAYS if way in ways]  # a model that was compiled is never plain again
    given = list(map(Reference.read, references))
    place = pick_place(device, small=small)
    lists = {"families": families, "ways": ways, "batches": chosen, "caches": caches, "samplers": samplers}
    options = [(name, ",".join(values)) for name, values in lists.items()]
    options += [("device", place.type), ("minutes", f"{minutes:g}")]
    options += [("reference", other.name) for other in given]  # without this machine's folders
    content: dict[str, Any] = {
        "command": command("gpu", options, small=small),
        "batches": [known[name] for name in chosen],
        "families": {},
    }
    path = None if out is None else out / "gpu.json"
    report = Report(content, path, time.monotonic() + minutes * 60, say)
    asked = Asked(
        families=families,
        ways=ways,
        batches=content["batches"],
        caches=caches,
        samplers=samplers,
        references=given or list(released()),
    )
    measure(report, asked, place, small=small)
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
