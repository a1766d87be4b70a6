# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""The command line of the ledger: ``dpfed ledger show | verify | export | budget | declare-lost``.

Guarantee: ``show``, ``verify`` and ``export`` write nothing into the ledger and make none; what
``budget`` and ``rename`` change is one more row that stays.

| edge case                                  | what happens                                        |
|--------------------------------------------|-----------------------------------------------------|
| there is no ledger                         | one sentence; only ``budget`` makes a new one       |
| a row was edited, deleted, moved, cut off  | ``verify`` says which and exits with 1              |
| the ledger is sound but older than noted   | ``verify --expect`` exits with 1                    |
| a figure                                   | rounded up; what is left is rounded down            |
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfed.accounting.ledger.conversions import Server
from dpfed.core.types import Adjacency, Unit

if TYPE_CHECKING:
    from dpfed.accounting.ledger.balance import AccountTotal, Balance, Entries
    from dpfed.accounting.ledger.conversions import LedgerKey
    from dpfed.accounting.ledger.ledger import Ledger

ledger_app = typer.Typer(
    help="Show what was spent on each data set, set budgets, and verify the ledger's file.",
    no_args_is_help=True,
)

Where = Annotated[
    Path | None,
    typer.Option("--ledger", help="The file. Default: $DPFED_LEDGER, or beside clients' state."),
]
Figures = dict[str, Any]


def _open(path: Path | None, *, create: bool = False) -> Ledger:
    from dpfed.accounting.ledger.ledger import Ledger

    return Ledger(path, create=create)


# ------------------------------------------------------------------------------------------ show


@ledger_app.command()
def show(
    ledger: Where = None,
    delta: Annotated[float, typer.Option(help="Delta, where no budget states one.")] = 1e-5,
    every: Annotated[
        bool, typer.Option("--all", help="Each client's data, not only the most exposed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
) -> None:
    """Show what each data set, run and channel has cost, the budget, and what is left.

    A run's line is in the terms of the run. The total is in the terms of the budget: all that was
    released on the data, converted; "no bound" where something cannot be. What is left is the
    epsilon of one more run, which is not budget minus epsilon: mu^2 adds up, epsilon does not.
    Where the clients of a simulation divide a data set, the line is the most exposed client's.

    \f

    Args:
        ledger: the ledger's file; None is $DPFED_LEDGER, or the one beside the clients' state.
        delta: at which epsilon is stated if no budget states a delta, above 0 and below 1.
        every: a line for each client's data, not only for the most exposed.
        as_json: print one JSON array instead of a table.
    """
    from dpfed.core.files import jsonable

    found = list(_figures(_open(ledger).balance(), delta, every=every))
    if as_json:
        typer.echo(json.dumps(jsonable(found)))
    else:
        _print(found)


def _figures(balance: Balance, delta: float, *, every: bool) -> Iterator[Figures]:
    """Each data set's runs, then its total; only the total is in the budget's terms."""
    for total in balance.totals(delta, every=every):
        yield from _runs(balance, total, every=every)
        yield {
            **_names(balance, total.key),
            "run": "all",
            "channel": "all",
            "clients": total.clients,
            "releases": total.releases,
            "unconfirmed": total.open,
            "epsilon": total.epsilon,
            "delta": total.delta,
            "unbounded": total.unbounded,
            "budget": total.budget.epsilon if total.budget else None,
            "left": total.left,
        }


def _runs(balance: Balance, total: AccountTotal, *, every: bool) -> Iterator[Figures]:
    """A line per run and channel, in the terms of the run's own guarantee."""
    lines: dict[tuple[LedgerKey, str, str], list[Entries]] = {}
    for (key, training, _, channel), usage in balance.entries.items():
        own = key if every else key._replace(dataset=key.base)
        if own.dataset == total.key.dataset and (total.budget or own == total.key):
            lines.setdefault((own, training, channel), []).append(usage)
    for (own, training, channel), used in lines.items():
        yield {
            **_names(balance, own),
            "run": training,
            "channel": channel,
            "clients": len(used),
            "releases": max(each.releases for each in used),
            "unconfirmed": sum(each.open for each in used),
            "epsilon": max(each.cost.epsilon(total.delta, own.adjacency) for each in used),
            "delta": total.delta,
            "unbounded": "",
            "budget": None,
            "left": None,
        }


def _names(balance: Balance, key: LedgerKey) -> Figures:
    names = {name: str(value) for name, value in key._asdict().items()}
    also = sorted(new for new, first in balance.names.items() if first == key.base)
    return {**names, "also": also, "colluders": key.colluders, "against": key.against}


def _print(found: list[Figures]) -> None:
    from rich.console import Console
    from rich.table import Table

    from dpfed.accounting.guarantee import round_up

    table = Table(
        "data set",
        "guarantee",
        "run",
        "channel",
        "releases",
        "unconfirmed",
        "epsilon",
        "budget",
        "left for one more run",
        box=None,
        pad_edge=False,
    )
    for row in found:
        kind = f"{row['unit']}, {row['adjacency']}, {row['against']}, delta {row['delta']:g}"
        style = "bold" if row["run"] == "all" else None
        counts = (str(row["releases"]), str(row["unconfirmed"]))
        spent = "no bound" if row["unbounded"] else round_up(row["epsilon"])
        figures = (spent, _down(row["budget"]), _down(row["left"]))
        also = f" (also {', '.join(row['also'])})" if row["also"] else ""
        names = (f"{row['dataset']}{also}", kind, row["run"], row["channel"])
        table.add_row(*names, *counts, *figures, style=style)
    Console(width=None if Console().is_terminal else 200).print(table)
    if any(row["left"] is not None for row in found):
        typer.echo(
            "epsilon and what is left do not add up to the budget: squares of mu add up, and "
            "epsilon does not"
        )


def _down(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "--"
    return f"{math.floor(value * 1e4) / 1e4:g}"


# --------------------------------------------------------------------------------- verify, export


@ledger_app.command()
def verify(
    ledger: Where = None,
    expect: Annotated[
        str, typer.Option(help="ROWS:HASH that was noted elsewhere: these rows must be there.")
    ] = "",
) -> None:
    """Check every row: the chain of hashes, the head, costs and sums. Exits with 1 if one fails.

    Note the last line on another disk than the ledger's: with --expect it shows whether somebody
    put back an older copy of the ledger, even together with its head.

    Example: dpfed ledger verify --expect 1480:9f86d081
    """
    from dpfed.core.errors import DpfedError

    try:
        opened = _open(ledger)
        wrong = opened.verify()
        rows = [] if wrong else opened.rows()
    except DpfedError as error:
        wrong, rows = [str(error)], []
    hashes = {row.number: row.hash for row in rows}
    if expect and not wrong:
        number, _, digest = expect.partition(":")
        known = hashes.get(int(number) if number.isdigit() else -1, "")
        if not digest or not known.startswith(digest):
            wrong = [
                f"row {number} with hash {digest!r} is not there: the ledger is an older one; "
                f"restore the newest copy, or correct --expect"
            ]
    if wrong:
        typer.secho(f"error: {wrong[0]}", err=True, fg=typer.colors.RED)
        raise typer.Exit(1)
    typer.echo(f"{len(rows)} rows, all in order")
    if rows:
        typer.echo(f"{len(rows)}:{hashes[len(rows)]}")


@ledger_app.command()
def export(
    ledger: Where = None,
    out: Annotated[Path | None, typer.Option(help="A file instead of the terminal.")] = None,
) -> None:
    """Write all rows as JSON; accounting.events.from_json reads their events."""
    text = json.dumps(_open(ledger).export(), indent=1)
    if out is None:
        typer.echo(text)
    else:
        out.write_text(f"{text}\n", encoding="utf-8")


# --------------------------------------------------------------------------------- budget, rename

Name = Annotated[str, typer.Argument(help="The data set's name.")]


@ledger_app.command()
def budget(
    name: Name,
    epsilon: Annotated[float, typer.Option(help="What all runs together may cost.")],
    delta: Annotated[float, typer.Option(help="The budget's delta.")] = 1e-5,
    unit: Annotated[Unit, typer.Option(help="What is protected.")] = Unit.RECORD,
    adjacency: Annotated[
        Adjacency, typer.Option(help="How neighbouring data sets differ.")
    ] = Adjacency.REPLACE_ONE,
    adversary: Annotated[
        str,
        typer.Option(
            help="server (follows the protocol; recipes say curious), malicious, or outsiders."
        ),
    ] = "server",
    colluders: Annotated[
        str, typer.Option(help="How many clients may pool what they know, or 'all'.")
    ] = "1",
    keeps_person: Annotated[
        bool,
        typer.Option("--keeps-person", help="A record that is replaced stays with its person."),
    ] = False,
    anew: Annotated[
        bool, typer.Option("--anew", help="Count nothing that was released before.")
    ] = False,
    ledger: Where = None,
) -> None:
    """Declare or change a data set's budget: one for all that is released on it.

    Every run counts, converted into the budget's terms; a run that cannot be converted is refused.
    The change stays in the ledger, and takes the place of the earlier budget.

    Where clients divide a data set, each client's part has this budget for itself.

    After a loss that has exhausted the account, --anew begins a budget that counts nothing that
    was released before. Statements of later trainings say so.

    Example: dpfed ledger budget adult --epsilon 8 --delta 1e-5

    \f

    Args:
        name: the data set's name.
        epsilon: what all runs together may cost, above 0.
        delta: at which the epsilon is stated, above 0 and below 1.
        unit: whose presence is hidden.
        adjacency: what neighbouring data sets differ in.
        adversary: what the server may do: "server" or "curious" (keep to the protocol),
            "malicious" (anything), or "outsiders", which trusts it.
        colluders: how many clients may pool what they know, at least 1, or "all".
        keeps_person: count what protects whole persons for a record of theirs, too.
        anew: count nothing that was released before; only after a loss that exhausted the account.
        ledger: the ledger's file; None is $DPFED_LEDGER, or the one beside the clients' state.
    """
    from dpfed.accounting.ledger.balance import Budget
    from dpfed.accounting.ledger.conversions import LedgerKey

    key = LedgerKey(
        dataset=name,
        unit=unit,
        adjacency=adjacency,
        adversary=_adversary(adversary),
        colluders=_colluders(colluders),
    )
    asked = Budget(epsilon, delta, keeps_person)
    opened = _open(ledger, create=True)
    before = opened.budget_of(name)
    opened.declare(key, asked, anew=anew)
    stated = "" if before is None or before.key == key else f" for {before.key}"
    earlier = f", before {before.budget}{stated}" if before else ""
    typer.echo(f"{key}: budget {asked}{earlier}")


def _adversary(text: str) -> Server:
    """What the ledger calls ``server``, recipes call ``curious``: both are taken."""
    from dpfed.core.checks import refuse

    known = {**{str(each): each for each in Server}, "curious": Server.CURIOUS}
    if text not in known:
        raise refuse("--adversary", f"one of {', '.join(known)}", text)
    return known[text]


def _colluders(text: str) -> int | None:
    from dpfed.core.checks import refuse

    if text == "all":
        return None
    if not text.isdigit() or int(text) < 1:
        raise refuse("--colluders", "a whole number, at least 1, or 'all'", text)
    return int(text)


@ledger_app.command()
def rename(
    old: Annotated[str, typer.Argument(help="The name so far.")],
    new: Annotated[str, typer.Argument(help="One more name for the same or overlapping data.")],
    ledger: Where = None,
) -> None:
    """Give known data another name: both share one budget.

    Example: dpfed ledger rename adult adult-2026

    \f

    Args:
        old: a name that the ledger has.
        new: one more name for the same or overlapping data.
        ledger: the ledger's file; None is $DPFED_LEDGER, or the one beside the clients' state.
    """
    _open(ledger).rename(old, new)
    typer.echo(f"{new!r} is another name of {old!r}: what was spent stays spent")


@ledger_app.command()
def waive(
    dataset: Annotated[str, typer.Argument(help="The name of the data.")],
    training: Annotated[str, typer.Argument(help="A training that will not continue.")],
    ledger: Where = None,
) -> None:
    """Free the budget that is reserved for a training that will not continue.

    What it has spent stays spent. It may enrol anew, if it still fits.

    Example: dpfed ledger waive ward-7 sepsis-2026

    \f

    Args:
        dataset: the name of the data.
        training: the training's name.
        ledger: the ledger's file; None is $DPFED_LEDGER, or the one beside the clients' state.
    """
    found = _open(ledger).waive(dataset, training)
    kept = "nothing was kept" if not found else "what it has not spent is free again"
    typer.echo(f"training {training!r} on {dataset!r}: {kept}")


# ------------------------------------------------------------------------------- a loss declared


@ledger_app.command("declare-lost")
def declare_lost_command(
    ledger: Where = None,
    no_head: Annotated[
        bool, typer.Option("--no-head", help="Rows are lost, and nobody has kept a head of them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Declare that rows of the ledger are lost: book what they had spent, so that work goes on.

    Others keep signed heads of a silo's ledger, and bring them back. If one of them is not in the
    ledger's chain, an older copy was put in its place, and the gate refuses everything: what is
    spent is no longer known from the ledger alone.

    If you still have the newer ledger, stop the gate, put it back with its file .head, and remove
    the file .conflict. Else this command books, for each data set, what the heads say was spent and
    the ledger does not have, with all that trainings which had enrolled could still spend. It
    writes the heads into the chain, so that they are known from then on. No approval
    stands any more: approve again what is to go on.

    One number per account says what was lost, so runs with draws exhaust their account. Every
    account is exhausted if two heads of one epoch lie on two branches (a machine was put back with
    its memory, or files under a gate that ran), or if nobody has kept a head: --no-head. 'dpfed
    ledger budget --anew' begins a new budget.

    A ledger that was made anew has lost everything. Two gates need two keys: to each of them, a
    head of the other is one that it has lost.

    Example: dpfed ledger declare-lost --ledger /var/lib/dpfed/gate/ledger.sqlite

    \f

    Args:
        ledger: the ledger's file; None is $DPFED_LEDGER, or the one beside the clients' state.
        no_head: exhaust every account, since no head says what was lost.
        yes: do not ask.
    """
    import getpass

    from dpfed.accounting.ledger.heads import Conflict, declare_lost

    opened = _open(ledger)
    conflict = Conflict(opened.path)
    heads = conflict.heads()
    if not conflict and not no_head:
        typer.echo("nothing is lost: no head was met that is not in the ledger's chain")
        return
    rows = opened.balance().last
    for head in heads:
        typer.echo(f"met       head {head.hash} at row {head.row}; here are {rows} rows")
    before = _totals(opened)
    if not yes and not typer.confirm("declare these rows lost?", default=False):
        raise typer.Exit(1)
    user = getpass.getuser()
    declare_lost(opened, heads, by=user, everything=no_head)
    conflict.end()
    for name, spent in _totals(opened).items():
        typer.echo(f"{name}: spent {before.get(name, '0')} -> {spent}")
    _note(opened.path, f"{len(heads)} heads, by {user}")
    typer.echo("declared; no approval stands any more: approve again what is to go on")


def _totals(ledger: Ledger) -> dict[str, str]:
    """What each data set has cost, in words."""
    from dpfed.accounting.guarantee import round_up

    return {
        str(total.key): "no bound"
        if total.unbounded or math.isinf(total.epsilon)
        else f"epsilon {round_up(total.epsilon)}"
        for total in ledger.balance().totals(1e-5, every=True)
    }


def _note(ledger: Path, said: str) -> None:
    """Count the declaration among the events of the gate whose ledger it is, if it is one's."""
    from dpfed.silo.approvals import DECLARED, FILE, Approvals

    if (ledger.parent / FILE).exists():
        Approvals(ledger.parent).note(DECLARED, "", said)
