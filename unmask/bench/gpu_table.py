"""The results of `unmask bench gpu` as tables, and the errors in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from unmask.bench.step import WAYS
from unmask.bench.timing import machine_line

LSE_ERROR = 1e-4  # tolerance, because the two paths sum in different orders in float32


def wrong(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors in the results. Compiled layers round differently, so their tokens may differ."""
    for family in content["families"].values():
        for cache, share in family.get("recorded", {}).get("same_tokens", {}).items():
            if share < 1:
                changed = f"recorded forwards changed {1 - share:.1%} of the tokens"
                yield f"{family['name']}, cache {cache}: {changed}"
        for rows, found in family.get("summary", {}).items():
            if not (found["same_ids"] and found["same_logits"] and found["lse_error"] < LSE_ERROR):
                yield f"{family['name']}, {rows}: the fused summary differs from the torch path"


# ---- the table


def table(content: Mapping[str, Any]) -> str:
    """Return the results as Markdown, one column per family and way."""
    columns = [(family, way) for family in content["families"].values() for way in WAYS if way in family]
    rows: dict[str, Callable[[Any], str]] = {
        "tokens as in the first way": lambda way: ", ".join(
            f"{cache} {share:.1%}" for cache, share in way["same_tokens"].items()
        )
    }
    for batch in content["batches"]:
        rows |= _batch_rows(batch)
    lines = [
        f"`{content['command']}`, {machine_line(content['machine'])}; milliseconds",
        "",
        "| | " + " | ".join(f"{family['name']} {way}" for family, way in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for label, cell in rows.items():
        cells = [_cell(cell, family[way]) for family, way in columns]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_added_lines(content), "", *_summary_lines(content)])


def _batch_rows(batch: int) -> dict[str, Callable[[Any], str]]:
    def ms(name: str, way: Any) -> str:
        value = way[name]
        return f"{value if isinstance(value, float) else value['ms']:.2f}"

    def added(way: Any) -> str:
        found = way[f"step_b{batch}_none"]
        forward, step = found["forward_ms"], found["step_ms"]
        return "-" if step is None else f"{step - forward:.2f} ({(step - forward) / step:.1%})"

    def less_after(way: Any) -> str:
        found = way[f"step_b{batch}_none"]
        step, after = found["ms"], found["after_ms"]
        return f"{step - after:.2f} ({(step - after) / step:.1%})"

    def one_more(way: Any) -> str:
        value = way[f"step_b{batch}_none"]["step_ms"]
        return "-" if value is None else f"{value:.2f}"

    def inside(way: Any) -> str:
        value = way[f"step_b{batch}_dual"]["inside_ms"]
        return "-" if value is None else f"{value:.2f}"

    def memory(way: Any) -> str:
        step = way[f"step_b{batch}_none"]
        return f"{step['peak_bytes'] / batch / 1e9:.3f} ({step['taken_bytes'] / batch / 1e9:.3f})"

    return {
        f"B = {batch}: forward": partial(ms, f"forward_b{batch}"),
        f"B = {batch}: step of `less`, no cache, mean of a run": partial(ms, f"step_b{batch}_none"),
        f"B = {batch}: from forward to forward": one_more,
        f"B = {batch}: of it, all but the forward": added,
        f"B = {batch}: mean of a run less a forward by itself straight after": less_after,
        f"B = {batch}: forward of a block, dual cache": partial(ms, f"block_b{batch}"),
        f"B = {batch}: step, prefix cache": partial(ms, f"step_b{batch}_prefix"),
        f"B = {batch}: step, dual cache": partial(ms, f"step_b{batch}_dual"),
        f"B = {batch}: of its steps, those inside a block": inside,
        f"B = {batch}: GB above the weights per row, no cache: in tensors (taken by torch)": memory,
    }


def _cell(cell: Callable[[Any], str], way: Any) -> str:
    try:
        return cell(way)
    except KeyError:  # not measured
        return "-"


def _added_lines(content: Mapping[str, Any]) -> Iterator[str]:
    yield "| what a sampler adds, B = 1, no cache | forward | step | added |"
    yield "|---|---|---|---|"
    for family in content["families"].values():
        timed = {f"`{name}`, {way}": row for way in WAYS for name, row in _samplers(family, way)}
        for name, row in {**timed, **family.get("references", {})}.items():
            forward, step = row["forward_ms"], row["step_ms"]
            cells = "- | -" if step is None else f"{step:.2f} | {step - forward:+.2f}"
            yield f"| {family['name']}: {name} | {forward:.2f} | {cells} |"


def _samplers(family: Mapping[str, Any], way: str) -> Iterable[tuple[str, Any]]:
    found: Mapping[str, Any] = family.get(way, {}).get("samplers", {})
    return found.items()


def _summary_lines(content: Mapping[str, Any]) -> Iterator[str]:
    yield "| summary, B = 1 | ours | fused | torch path | topk + logsumexp | same ids | lse error |"
    yield "|---|---|---|---|---|---|---|"
    for family in content["families"].values():
        for rows, found in family.get("summary", {}).items():
            same = "yes" if found["same_ids"] and found["same_logits"] else "NO"
            yield (
                f"| {family['name']}, {rows} | {found['ms']:.3f} | {'yes' if found['fused'] else 'no'} "
                f"| {found['torch_path_ms']:.3f} | {found['topk_and_logsumexp_ms']:.3f} "
                f"| {same} | {found['lse_error']:.1e} |"
            )
