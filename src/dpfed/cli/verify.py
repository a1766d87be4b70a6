# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""``dpfed verify OUT``: what the silos have signed, in a table, and one verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dpfed.recipes.verify import Verified


def verify(
    out: Annotated[Path, typer.Argument(help="A run's folder with evidence/, from anyone.")],
    roster: Annotated[
        Path | None,
        typer.Option(help="The silos' roster.json, from elsewhere: without it compare the keys."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Verify a training's evidence offline: signatures, chains, cohorts, claims, and the model.

    Needs no network, and trusts nothing of the folder. Exits with 0 if it is complete, with 3 if
    something is missing, and with 4 if something contradicts what the silos have signed.

    Example: dpfed verify runs/sepsis --roster roster.json

    \f

    Args:
        out: the run's folder, or its folder ``evidence``.
        roster: the silos' names and keys, from elsewhere than the folder.
        as_json: print what was found as one JSON object.
    """
    from dpfed.cli.limits import OverLimits, in_limits

    try:
        code, lines = in_limits(lambda: _verdict(out, roster, as_json))
    except OverLimits as error:
        code, lines = 4, _without_an_end(str(error), as_json)
    for line in lines:
        typer.echo(line)
    if code:
        raise typer.Exit(code)


def _verdict(out: Path, roster: Path | None, as_json: bool) -> tuple[int, list[str]]:
    """The exit code, and what is printed."""
    from dpfed.core.files import jsonable
    from dpfed.core.log import shown
    from dpfed.recipes.verify import COMPLETE, INCOMPLETE, verify_evidence

    found = verify_evidence(out, roster)
    code = {COMPLETE: 0, INCOMPLETE: 3}.get(found.verdict, 4)
    if as_json:
        return code, [json.dumps(jsonable(found.to_json()), allow_nan=False)]
    return code, [shown(line, 2000) for line in table(found)]


def _without_an_end(said: str, as_json: bool) -> list[str]:
    """What is printed of a folder that takes too much memory or time: it is refused."""
    problem = {"name": "over-limits", "said": said, "missing": False}
    if as_json:
        return [json.dumps({"verdict": "refused", "problems": [problem]})]
    return [f"WRONG     over-limits: {said}", "verdict   refused"]


def table(found: Verified) -> Iterator[str]:
    """What was found, line by line; the verdict is the last one.

    Args:
        found: by ``verify_evidence``.
    """
    yield f"training  {found.training or 'unknown'}"
    yield f"{'silo':20} {'key':18} {'stated':7} {'rounds':7} {'receipts':9} by"
    for silo in found.silos:
        rounds = "secret" if silo.answered is None and silo.stated else str(silo.answered or 0)
        stated = "yes" if silo.stated else "NO"
        yield (
            f"{silo.name[:20]:20} {silo.key[:16]:18} {stated:7} {rounds:7} {silo.receipts:<9} "
            f"{silo.by}"
        )
    for silo in found.silos:
        if silo.software:
            yield f"software  {silo.name[:20]}: {silo.software}"
    for adversary, epsilon, delta in found.claims:
        yield f"claim     epsilon {epsilon:.6g} at delta {delta:g}, against {adversary}"
    yield f"model     {found.model[:64] or 'none'}"
    yield f"file      {found.file}"
    if found.sentence:
        yield f"sentence  {found.sentence}"
    yield (
        "keys      those of the roster given"
        if found.anchored
        else "keys      the folder's own: compare them with what each silo's own gate shows (dpfed "
        "silo status), or give --roster"
    )
    for note in found.notes:
        yield f"note      {note}"
    for problem in found.problems:
        kind = "missing" if problem.missing else "WRONG"
        yield f"{kind:9} {problem.name}: {problem.said}"
    under = "" if found.anchored else ", if these are the silos' keys"
    yield f"verdict   {found.verdict}{under}"
