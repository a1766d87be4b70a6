# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""The command ``dpfed audit``: try to refute what a recipe claims.

Guarantee: exit code 0 if nothing was flagged, 1 if something was, 2 if the recipe is wrong.

| edge case                              | what happens                            |
|----------------------------------------|-----------------------------------------|
| a recipe without a guarantee ('clear') | an error: there is no claim to audit    |
| --only with a name that is no audit    | an error that lists the audits          |
| no --seed                              | noise as in a run: figures differ a bit |
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def audit_command(
    recipe: Annotated[Path, typer.Argument(help="A recipe in TOML; see examples/recipes/.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one value, e.g. --set privacy.epsilon=5. Repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="noise-scale, clip, order, two-world, one-run, membership. Repeatable."),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Fewer samples: seconds, and less power.")] = False,
    seed: Annotated[int | None, typer.Option(help="Makes the audit's draws repeatable.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the findings. Default: runs/<name>-audit.")
    ] = None,
) -> None:
    """Try to refute a recipe's guarantee, by seven attacks on its own code.

    Each audit says what was claimed, the largest epsilon that it could prove to be exceeded, and
    what it would have seen. An audit that finds nothing proves nothing: see docs/audit.md.

    Example: dpfed audit examples/recipes/quickstart.toml --quick --out runs/audit

    \f

    Args:
        recipe: a recipe's TOML file.
        overrides: ``key=value`` texts that change the recipe; None changes nothing.
        only: names of the audits to run; None means all.
        quick: take fewer samples, which takes seconds and finds less.
        seed: makes the audit's draws repeatable; None draws anew.
        out: the folder for the findings; None is runs/ and the file's name with -audit.
    """
    from rich.console import Console

    from dpfed.audit import report, suite
    from dpfed.audit.finding import QUICK, Effort, Verdict, subject
    from dpfed.recipes import schema as recipes

    names, console = suite.chosen(only or ()), Console()
    loaded = recipes.load_recipe(recipe, tuple(overrides or ()))
    target = subject(loaded, recipe.resolve().parent, seed, QUICK if quick else Effort())
    with console.status("auditing"):
        findings = list(suite.audit(target, names))
    console.print(report.findings_table(findings))
    for each in findings:
        console.print(f"{each.audit}: {each.detail}", style="dim", highlight=False, soft_wrap=True)
    folder = report.write_findings(target, findings, out or Path("runs") / f"{recipe.stem}-audit")
    typer.echo(f"findings in {folder}/")
    if any(each.verdict is Verdict.FLAGGED for each in findings):
        raise typer.Exit(1)
