# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""The command ``dpfed stats``: what a query costs, how wide its intervals will be, its answers.

``dpfed stats QUERY.toml`` is short for ``dpfed stats ask QUERY.toml``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer
from typer.core import TyperGroup


class _AskByDefault(TyperGroup):
    """A first word that is no command is a query."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = args and args[0] in self.commands
        return super().resolve_command(ctx, args if known else ["ask", *args])


stats_app = typer.Typer(
    cls=_AskByDefault,
    no_args_is_help=True,
    help="Private statistics: dpfed stats QUERY.toml, or a command.",
)


@stats_app.command("ask")
def ask(
    query: Annotated[Path, typer.Argument(help="A query in TOML; see docs/statistics.md.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one value, e.g. --set privacy.epsilon=1. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the answers. Default: runs/<query's name>.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="in-process, or flower-simulation: the same through 'flwr run'.")
    ] = "in-process",
    cost: Annotated[
        bool, typer.Option("--cost", help="Say what it would cost, and ask nothing.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite another run's result in the folder.")
    ] = False,
) -> None:
    """Ask questions about a table: counts, means, quantiles, tables, survival; one private release.

    First it says what the query costs and how wide the intervals will be. All questions share the
    epsilon, so that fewer questions have narrower intervals. Asking again costs again.

    Example: dpfed stats query.toml --cost

    \f

    Args:
        query: a query's TOML file.
        overrides: ``key=value`` texts that change the query; None changes nothing.
        out: the folder for answers.csv, answers.png and guarantee.json; None is runs/NAME.
        engine: in-process or flower-simulation.
        cost: stop before anything is asked.
        overwrite: write over another run's result in ``out``.
    """
    from dpfed.recipes.answers import answers_text, cost_text
    from dpfed.recipes.result import free_folder
    from dpfed.recipes.run import resolve, run
    from dpfed.recipes.session import prepare

    changes = tuple(overrides or ())
    session = prepare(resolve(query, None, changes, {}), query.resolve().parent)
    typer.echo(cost_text(session.plan, session.federation.model))
    if cost:
        return
    folder = out or Path("runs") / query.stem
    folder = free_folder(folder) if out is None and not overwrite else folder
    result = run(query, out=folder, overrides=changes, engine=engine, overwrite=overwrite)
    for warning in result.warnings:
        typer.secho(f"warning: {warning}", err=True, fg=typer.colors.YELLOW)
    typer.echo(f"\n{answers_text(result.answers)}\n\n{result.guarantee.sentence}")
    typer.echo(f"results in {folder}/")


@stats_app.command("ranges-query")
def ranges_query_command(
    contract: Annotated[Path, typer.Argument(help="A draft, as 'dpfed data describe' writes it.")],
    epsilon: Annotated[float, typer.Option(help="For all columns together.")],
    name: Annotated[str, typer.Option(help="The query's name, which no other will have.")],
    delta: Annotated[float, typer.Option(help="Below 1 / the number of units.")] = 1e-5,
    unit: Annotated[str, typer.Option(help="record, or group: a person.")] = "record",
    secure: Annotated[
        bool, typer.Option("--secure", help="By a secure sum: the server opens totals only.")
    ] = False,
) -> None:
    """Write the query by which several owners ask their gates for the ranges of one contract.

    It goes into terms as any query does. 'dpfed stats ranges DRAFT --answers OUT/answers.csv' makes
    the contract of what it leaves. Its cost is in each owner's ledger, in the account of the data.

    Example: dpfed stats ranges-query draft.toml --epsilon 0.5 --name ranges-2026 > ranges.toml

    \f

    Args:
        contract: the draft.
        epsilon: what all columns together cost.
        name: the query's name.
        delta: of the guarantee.
        unit: record or group.
        secure: distributed trust, by a secure sum.
    """
    from dpfed.data.contract import read_contract
    from dpfed.recipes.ranges import ranges_options, ranges_query
    from dpfed.recipes.schema import to_toml

    draft = read_contract(contract)
    privacy = {"epsilon": epsilon, "delta": delta, "unit": unit}
    privacy |= {"trust": "distributed"} if secure else {}
    made = ranges_query(draft, privacy, name) | ({"sum": {"name": "secure"}} if secure else {})
    options = ranges_options(draft)
    typer.echo(to_toml(made), nl=False)
    typer.echo(
        f"terms: dpfed silo terms FILE --dataset NAME --shape {len(options['x'])} --sizes ..."
        f"{' --roster roster.json' if secure else ''}\n"
        f"each owner's policy for it, without a contract: shape = [{len(options['x'])}], methods "
        f"with 'statistics', and\n{to_toml({'load': {'options': options}})}",
        err=True,
    )


@stats_app.command("ranges")
def ranges(
    contract: Annotated[Path, typer.Argument(help="A draft, as 'dpfed data describe' writes it.")],
    out: Annotated[Path, typer.Option(help="The contract with the ranges that are proposed.")],
    table: Annotated[Path | None, typer.Argument(help="The table: .csv or .parquet.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="For all columns together; with a table.")
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(help="The answers.csv of a ranges-query, and no table.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Below 1 / the number of units.")] = 1e-5,
    unit: Annotated[str, typer.Option(help="record, or group: a person.")] = "record",
    dataset: Annotated[
        str, typer.Option(help="The data's name in the ledger, which then counts the cost.")
    ] = "",
    budget: Annotated[float | None, typer.Option(help="The data's budget in the ledger.")] = None,
) -> None:
    """Propose ranges for a drafted contract by private quantiles, where none are public.

    Numbers whose range is marked as read off records get one from noisy quantiles, rounded
    outwards, and the mark is taken out. Look at each of them before you agree.

    Example: dpfed stats ranges draft.toml patients.csv --epsilon 0.2 --out contract.toml

    \f

    Args:
        contract: the draft.
        out: the file for the contract.
        table: one owner's records.
        epsilon: what all columns together cost.
        answers: what several owners' gates have answered already, and nothing is released here.
        delta: of the guarantee.
        unit: record or group.
        dataset: the name under which the ledger counts the cost; "" enters it nowhere.
        budget: the data's epsilon in the ledger; None only records.
    """
    from dpfed.core.checks import refuse
    from dpfed.data.contract import read_contract
    from dpfed.recipes.ranges import answers_in, proposed, ranges_recipe, with_ranges
    from dpfed.recipes.run import run
    from dpfed.recipes.schema import to_toml

    draft = read_contract(contract)
    given = [name for name, value in (("TABLE", table), ("--answers", answers)) if value]
    if len(given) != 1 or (table is None) != (epsilon is None):
        bound = "TABLE and --epsilon, or --answers alone"
        raise refuse("what is asked", bound, given, "see 'dpfed stats ranges --help'")
    if answers is not None:
        found = proposed(answers_in(answers, draft))
        sentence = "read off answers that were released already: nothing more is spent"
    else:
        privacy = {"epsilon": epsilon, "delta": delta, "unit": unit}
        ledger = {"dataset": dataset, "epsilon": budget, "delta": delta} if dataset else None
        partition = {"name": "iid", "clients": 1}
        recipe = ranges_recipe(draft, str(table), privacy, ledger)
        result = run({**recipe, "data": {**recipe["data"], "partition": partition}})
        found, sentence = proposed(result.answers), result.guarantee.sentence
    for each in found:
        said = f"holds the quantiles {each.low_part:g} to {each.high_part:g}"
        said = said if each.sure else "NOT KNOWN well enough: give more epsilon, or records"
        typer.echo(f"{each.column}: {each.low:g} to {each.high:g}; {said}")
    out.write_text(to_toml(with_ranges(draft, found)), encoding="utf-8")
    typer.echo(sentence)
    typer.echo(f"contract in {out}")
