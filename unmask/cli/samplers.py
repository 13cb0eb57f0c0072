"""`unmask samplers`: list the presets with their fields, values and types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.fields import describe

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.types import Sampler

Name = Annotated[str | None, typer.Argument(help="Only this one.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with all of them.")]


def samplers(name: Name = None, json: AsJson = False) -> None:
    """List the samplers and the fields that --set can change."""
    from unmask.samplers import SAMPLERS, make_sampler

    chosen = SAMPLERS if name is None else {name: make_sampler(name)}
    if json:
        _print_json(chosen)
    else:
        _print_table(chosen)


def _print_json(chosen: dict[str, Sampler]) -> None:
    import json

    described = {name: _fields(sampler) for name, sampler in chosen.items()}
    typer.echo(json.dumps(described, ensure_ascii=False))


def _print_table(chosen: dict[str, Sampler]) -> None:
    from rich.console import Console

    table = _table()
    for name, sampler in chosen.items():
        for number, (field, facts) in enumerate(_fields(sampler).items()):
            style = "bold" if facts["changed"] else ""
            table.add_row(
                name if number == 0 else "", field, _shown(facts["value"]), facts["type"], style=style
            )
        table.add_section()
    Console().print(table)


def _table() -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, caption="bold: not the default of its class; --set FIELD=VALUE changes a field"
    )
    table.add_column("sampler", style="cyan", no_wrap=True)
    table.add_column("field", no_wrap=True)
    table.add_column("default", justify="right", no_wrap=True)
    table.add_column("type", style="dim")
    return table


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
