"""`unmask samplers`: list the presets, or the fields of one with their values and types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.fields import describe

if TYPE_CHECKING:
    from unmask.types import Sampler

Name = Annotated[str | None, typer.Argument(help="Only this one.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with all of them.")]


def samplers(name: Name = None, json: AsJson = False) -> None:
    """List the samplers by group, or the fields of one that --set can change."""
    from unmask.samplers.registry import all_samplers, make_sampler

    if json:
        _print_json(all_samplers() if name is None else {name: make_sampler(name)})
    elif name is None:
        _print_names()
    else:
        _print_fields(make_sampler(name))


def _print_json(chosen: dict[str, Sampler]) -> None:
    import json

    described = {name: _fields(sampler) for name, sampler in chosen.items()}
    typer.echo(json.dumps(described, ensure_ascii=False))


def _print_names() -> None:
    """Print every name with a sentence, group by group."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from unmask.samplers import GROUPS
    from unmask.samplers.registry import all_samplers

    console = Console()
    ours = {name for group in GROUPS.values() for name in group}
    others = {name: sampler for name, sampler in all_samplers().items() if name not in ours}
    shown: dict[str, str] = {}  # sentence -> the first name that has it
    for title, group in {**GROUPS, **({"your own": others} if others else {})}.items():
        table = Table(box=box.SIMPLE, title=title, title_justify="left", show_header=False)
        table.add_column(style="cyan", no_wrap=True)
        table.add_column()
        for name, sampler in group.items():
            sentence, changes = about(sampler)
            first = shown.setdefault(sentence, name)
            text = sentence if first == name else f"{first} with" if changes else f"The same as {first}."
            table.add_row(name, f"{text} {changes}".rstrip())
        console.print(table)
    console.print("`unmask samplers NAME` shows the fields of one. docs/choosing.md says which to use.")


def about(sampler: Sampler) -> tuple[str, str]:
    """Return a sentence on a sampler, and what it changes: wrappers around it and fields of its class."""
    from unmask.samplers.wrapper import inner, kind

    [sentence, *_] = (type(inner(sampler)).__doc__ or "").split("\n")
    fields = _fields(sampler).items()
    changes = [f"{name}={_shown(facts['value'])}" for name, facts in fields if facts["changed"]]
    return sentence, ", ".join([*kind(sampler).rstrip(")").split("(")[:-1], *changes])


def _print_fields(sampler: Sampler) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, caption="bold: not the default of its class; --set FIELD=VALUE changes a field"
    )
    table.add_column("field", no_wrap=True)
    table.add_column("default", justify="right", no_wrap=True)
    table.add_column("type", style="dim")
    for field, facts in _fields(sampler).items():
        table.add_row(field, _shown(facts["value"]), facts["type"], style="bold" if facts["changed"] else "")
    console = Console()
    console.print(about(sampler)[0])
    console.print(table)


def _fields(sampler: Any) -> dict[str, dict[str, Any]]:
    """Return value and type of every field, and whether the preset changed it."""
    from unmask.samplers.wrapper import defaults, settings
    from unmask.trace import plain

    values, usual = plain(sampler), defaults(sampler)
    return {
        name: {"value": values[name], "type": describe(kind), "changed": values[name] != plain(usual[name])}
        for name, kind in settings(sampler).items()
    }


def _shown(value: object) -> str:
    """Write a value as --set takes it."""
    if isinstance(value, dict):  # another sampler, by its name
        from unmask.samplers import SAMPLERS
        from unmask.trace import plain

        return next((name for name, sampler in SAMPLERS.items() if plain(sampler) == value), "its own")
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
