"""`unmask samplers`: list the presets with a sentence each, or explain the fields of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli import complete
from unmask.cli.fields import describe
from unmask.cli.output import print_table

if TYPE_CHECKING:
    from unmask.types import Sampler

Name = Annotated[
    str | None,
    typer.Argument(help="Explain only this sampler.", show_default=False, autocompletion=complete.samplers),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with all of them.")]


def samplers(name: Name = None, json: AsJson = False) -> None:
    """List the samplers by group, or explain the fields of one that --set can change."""
    from unmask.samplers.registry import all_samplers, make_sampler

    if json:
        _print_json(all_samplers() if name is None else {name: make_sampler(name)})
    elif name is None:
        _print_names()
    else:
        _print_fields(name, make_sampler(name))


def _print_json(chosen: dict[str, Sampler]) -> None:
    import json

    described = {name: _fields(name, sampler) for name, sampler in chosen.items()}
    typer.echo(json.dumps(described, ensure_ascii=False))


def _print_names() -> None:
    """Print every name with a sentence, group by group."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from unmask.samplers.about import about
    from unmask.samplers.registry import all_samplers

    console, groups = Console(), dict[str, dict[str, str]]()
    for name, sampler in all_samplers().items():
        words = about(name, sampler)
        groups.setdefault(words.group, {})[name] = words.summary
    for title, group in groups.items():
        table = Table(box=box.SIMPLE, title=title, title_justify="left", show_header=False)
        table.add_column(style="cyan", no_wrap=True)
        table.add_column()
        for name, sentence in group.items():
            table.add_row(Text(name), Text(sentence))  # the docstring of a user's class may have brackets
        print_table(table)
    console.print("`unmask samplers NAME` explains the fields of one. docs/choosing.md says which to use.")


def _print_fields(name: str, sampler: Sampler) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from unmask.samplers.about import about

    table = Table(
        box=box.SIMPLE_HEAD,
        caption="bold: differs from the default of the class; --set FIELD=VALUE changes a field",
        caption_justify="left",
    )
    table.add_column("field", no_wrap=True)
    table.add_column("default", justify="right", no_wrap=True)
    table.add_column("type", style="dim", max_width=18)
    table.add_column("meaning")
    for field, facts in _fields(name, sampler).items():
        cells = (field, _shown(facts["value"]), facts["type"], facts["about"])
        table.add_row(*map(Text, cells), style="bold" if facts["changed"] else "")
    console, words = Console(), about(name, sampler)
    for text in (words.summary, words.use):
        console.print(text, markup=False, highlight=False)
    print_table(table)


def _fields(name: str, sampler: Any) -> dict[str, dict[str, Any]]:
    """Return value, type and meaning of every field, and whether the preset changed it."""
    from unmask.samplers.about import about
    from unmask.samplers.wrapper import defaults, settings
    from unmask.trace import plain

    values, usual, lines = plain(sampler), defaults(sampler), about(name, sampler).fields
    return {
        field: {
            "value": values[field],
            "type": describe(kind),
            "changed": values[field] != plain(usual[field]),
            "about": lines[field],
        }
        for field, kind in settings(sampler).items()
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
