# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""``dpfed methods``: the papers' methods, and the plug-ins with their options."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from dpfed.core.errors import RecipeError
from dpfed.core.files import jsonable


def methods(
    name: Annotated[
        str | None, typer.Argument(help="Only this method, or with --plug-ins this plug-in.")
    ] = None,
    plug_ins: Annotated[
        bool, typer.Option("--plug-ins", help="The plug-ins, each with its options, instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
) -> None:
    """List the methods: what each protects, releases, sends and keeps.

    A method's name goes into a recipe as method = "dp-fedadam"; it stands for client, server and
    mechanism tables, whose options can be set as any other: --set client.steps=3.

    upload: vectors of the model's size that a client sends in a round; keeps: vectors between
    rounds; client memory: what its work needs, by model size d and inputs f; post-processing only:
    it costs exactly what DP-FedGD costs.

    dpfed methods --plug-ins sofim tells what each option of a plug-in means, its range and default.

    \f

    Args:
        name: show only what has this name; None shows all.
        plug_ins: list the plug-ins with their options instead of the methods.
        as_json: print one JSON array.
        as_markdown: print a Markdown table, of methods only; ``as_json`` goes before it.
    """
    from dpfed.core.registry import catalogue
    from dpfed.recipes.methods import methods_markdown, methods_table

    found = _named(
        catalogue() if plug_ins else methods_table(), name, "name" if plug_ins else "method"
    )
    if as_json:
        typer.echo(json.dumps(jsonable(found)))
    elif plug_ins and name:
        _print_options(found)
    elif plug_ins:
        _print_plug_ins(found)
    elif as_markdown:
        typer.echo(methods_markdown(found), nl=False)
    else:
        _print_methods(found)


def _named(found: list[Any], name: str | None, key: str) -> list[Any]:
    """The rows of that name; all of them for None."""
    from dpfed.core.registry import suggest

    if name is None:
        return found
    if not (chosen := [row for row in found if row[key] == name]):
        known = sorted({str(row[key]) for row in found})
        what = "plug-in" if key == "name" else key
        raise RecipeError(f"there is no {what} {name!r}; {suggest(name, known)}")
    return chosen


def _print_options(found: list[dict[str, Any]]) -> None:
    """One card per plug-in: each option with its default and what it means."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    for plug_in in found:
        console.print(f"[bold]{plug_in['kind']} {plug_in['name']}[/]  {escape(plug_in['paper'])}")
        console.print(f"    {escape(plug_in['summary'])}", soft_wrap=True)
        for key, default in plug_in["options"].items():
            text = escape(plug_in["about"].get(key, ""))
            console.print(
                f"    {f'{key} = {json.dumps(jsonable(default))}':28}{text}", soft_wrap=True
            )


def _print_methods(found: list[dict[str, str]]) -> None:
    """One card per method: a dozen columns would not fit a terminal."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    for row in found:
        console.print(f"[bold]{row['method']}[/]  {escape(row['paper'])}")
        for name in (each for each in list(row)[2:] if row[each]):
            console.print(f"    {name:22}{escape(row[name])}", soft_wrap=True)


def _print_plug_ins(found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("kind", "name", "what it does", "options", "from", box=None, pad_edge=False)
    for plug_in in found:
        options = ", ".join(f"{key}={value}" for key, value in plug_in["options"].items())
        table.add_row(
            plug_in["kind"], plug_in["name"], plug_in["summary"], options, plug_in["paper"]
        )
    Console().print(table)
