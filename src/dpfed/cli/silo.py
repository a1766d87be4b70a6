# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""The command line of a data owner: ``dpfed silo init``, ``check``, ``accept``, ``approve``, ..."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

silo_app = typer.Typer(
    help="Run a silo's gate: the data owner's process, the only one that reads the data.",
    no_args_is_help=True,
)

PolicyFile = Annotated[Path, typer.Option("--policy", help="The owner's policy.")]
DEFAULT = Path("/etc/dpfed/silo.toml")


@silo_app.command("init")
def init_silo(
    folder: Annotated[Path, typer.Argument(help="Where to write, such as /etc/dpfed.")],
    gate_user: Annotated[str, typer.Option(help="The gate's user: owns the data.")] = "dpfed-gate",
    relay_user: Annotated[
        str, typer.Option(help="User that runs the SuperNode; must not have access to the data.")
    ] = "flower",
    data: Annotated[Path, typer.Option(help="The data's file or folder.")] = Path(
        "/srv/dpfed/data.csv"
    ),
    name: Annotated[str, typer.Option(help="The owners' name for the data.")] = "records",
    server: Annotated[str, typer.Option(help="The SuperLink.")] = "fl.example.org:8000",
) -> None:
    """Write a policy with every key explained, two systemd units, and the same as containers.

    Existing files are never overwritten. What to do next is printed.

    Example: dpfed silo init /etc/dpfed --data /srv/sepsis.csv --name sepsis

    \f

    Args:
        folder: where to write; made if missing.
        gate_user: the user that the gate runs under, and that owns the data.
        relay_user: the user that the SuperNode runs under.
        data: the data's file or folder.
        name: the owners' name for the data, as terms have it.
        server: the SuperLink's address, as HOST:PORT.
    """
    from dpfed.cli.silo_install import Silo, next_steps, write_silo

    silo = Silo(gate=gate_user, relay=relay_user, data=data, name=name, server=server)
    for path in write_silo(folder, silo):
        typer.echo(path)
    typer.echo("next, as root:")
    for step in next_steps(folder, silo):
        typer.echo(f"  {step}")


@silo_app.command("check")
def check_owner(
    policy: PolicyFile = DEFAULT,
    relay_user: Annotated[
        list[str] | None,
        typer.Option("--relay-user", help="A user that the SuperNode runs under. Repeatable."),
    ] = None,
    nvflare: Annotated[
        list[Path] | None,
        typer.Option("--nvflare", help="The startup kit of an NVFlare site. Repeatable."),
    ] = None,
    modules: Annotated[
        bool, typer.Option("--modules", help="List the modules that the gate loads, and end.")
    ] = False,
    terms: Annotated[
        list[Path] | None,
        typer.Option("--terms", help="With --modules: terms to load, too. Repeatable."),
    ] = None,
) -> None:
    """Verify that only the gate's user can read the data: users, groups, owners, modes, the socket.

    Says what it verified, and stops with one sentence at the first thing that is wrong. As root it
    judges for the owner of the state folder.

    With --modules it lists instead what a reviewer of the gate has to read: it loads the policy,
    the data and all approved trainings in a new process, and names the modules in its memory.

    Example: dpfed silo check --policy /etc/dpfed/silo.toml

    \f

    Args:
        policy: the owner's policy.
        relay_user: users that the SuperNode runs under, besides those of the policy.
        nvflare: startup kits of NVFlare sites, beside those of clients that run on this machine.
        modules: list the modules that the gate loads, and check nothing.
        terms: with ``modules``, trainings that are not approved yet.
    """
    from dpfed.cli.silo_check import check_silo

    if modules:
        from dpfed.silo.modules import gate_modules

        for line in gate_modules(policy, terms or ()).report():
            typer.echo(line)
        return
    for line in check_silo(policy, relay_user or (), nvflare or ()):
        warning = line.startswith("warning:")
        typer.secho(line, err=warning, fg=typer.colors.YELLOW if warning else None)


@silo_app.command()
def serve(policy: PolicyFile = DEFAULT) -> None:
    """Run the gate: reply to orders of approved trainings on a Unix socket until it is stopped.

    Run it as the user that owns the data, from the owner's own installation; it needs no network.

    Example: dpfed silo serve --policy /etc/dpfed/silo.toml
    """
    from dpfed.silo import gate_command

    command = gate_command()
    # a gate has no command line in its memory
    os.execv(command[0], [*command, str(policy)])  # noqa: S606


@silo_app.command()
def terms(
    recipe: Annotated[Path, typer.Argument(help="A recipe; its tables data and ledger are left.")],
    dataset: Annotated[str, typer.Option(help="The owners' name for the data.")],
    sizes: Annotated[
        str | None, typer.Option(help="Each silo's public number of units: 1200,800,950.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Of a record's features: 64 or 1,28,28. Default: the contract's."),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(help="How many classes; 1 for numbers. Default: the contract's, or 1."),
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="roster.json, for a secure sum: it is pinned.")
    ] = None,
    package: Annotated[
        list[str] | None, typer.Option("--package", help="Pin an installed package. Repeatable.")
    ] = None,
    blocks: Annotated[
        str | None,
        typer.Option(help="Of data that arrives: 'last 12', all, or names with commas."),
    ] = None,
    block_sizes: Annotated[
        Path | None,
        typer.Option(help='TOML: each block with its size at each silo: "2026-03" = [90, 80].'),
    ] = None,
    without: Annotated[
        str, typer.Option(help="Blocks to leave out, such as those that an owner says are spent.")
    ] = "",
) -> None:
    """Write the terms that all silos are asked to approve: a recipe without data, and its pins.

    Example: dpfed silo terms run.toml --dataset sepsis --shape 24 --classes 2 --sizes 1200,800

    With --blocks the sizes are those of --block-sizes, and the terms list the blocks by name.

    \f

    Args:
        recipe: the training; its tables data and ledger are left out.
        dataset: the owners' name for the data.
        sizes: each silo's public number of units, numbers with commas.
        shape: of a record's features, numbers with commas; the contract's if left out.
        classes: how many classes; 1 if labels are numbers; the contract's if left out.
        roster: the roster's file, if the sum is a secure one.
        package: installed packages to pin, if a model comes from one.
        blocks: which blocks of arriving data are used; None for data without blocks.
        block_sizes: the file of all blocks' public sizes.
        without: names with commas; blocks that are left out.
    """
    from dpfed.core.checks import refuse
    from dpfed.core.types import Trust
    from dpfed.recipes.blocks import choose_blocks
    from dpfed.recipes.terms import check_numbers, read_terms, with_pinned_model, write_terms
    from dpfed.silo.policy import CALIBRATION_CPU_S, limited_time

    text = write_terms(
        recipe,
        dataset=dataset,
        sizes=None if sizes is None else [float(n) for n in sizes.split(",")],
        shape=None if shape is None else [int(n) for n in shape.split(",")],
        classes=classes,
        roster=roster,
        packages=package or [],
        blocks=choose_blocks(blocks, block_sizes, without),
    )
    check_numbers(read_terms(text))
    text = with_pinned_model(text)
    written = read_terms(text)
    if written.recipe.privacy.trust is Trust.DISTRIBUTED and not written.pins.roster:
        raise refuse(
            "the roster",
            "given where trust is distributed",
            None,
            "say --roster fed/nodes/NAME/roster.json, as 'dpfed deploy init' makes it",
        )
    with limited_time(CALIBRATION_CPU_S):
        written.plan.guarantee()  # fail early on terms that no silo could approve
    typer.echo(text, nl=False)
    typer.echo(
        f"fingerprint {written.fingerprint[:16]}: confirm it over a second channel, such as a "
        f"phone call",
        err=True,
    )


@silo_app.command()
def accept(
    policy: PolicyFile = DEFAULT,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", help="Accept it, though most of it is not as agreed. Repeatable."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Compare your files with their contracts, and accept what they become by them.

    Until you do, no training of such data runs. Do it once for a file, contract and mapping, before
    any terms: then no value decides whether a training is approved.

    A column of which most becomes missing (other words, text, no label) must be named by --column.
    One of which most lies beyond its range would be trained on as other values: nothing accepts it;
    give mapping.factor and offset, or mapping.missing.

    Example: dpfed silo accept --policy /etc/dpfed/silo.toml

    \f

    Args:
        policy: the owner's policy.
        column: columns that you accept although most of each is not as agreed.
        yes: do not ask.
    """
    import getpass

    from dpfed.cli.silo_accept import DECISION, look
    from dpfed.cli.silo_text import reads
    from dpfed.core.log import say_if_slow
    from dpfed.silo.owner import Owner
    from dpfed.silo.policy import load_policy
    from dpfed.silo.publish import OWNERS_KINDS, Publisher

    handler, named = Owner(load_policy(policy)), column or []
    for name, data in handler.policy.data.items():
        if not data.reading:
            continue
        for word, said in reads(data).items():
            typer.echo(f"{word:9} {said}")
        with say_if_slow(f"reading data.{name}"):
            seen = look(name, data, named)
        for line in seen.lines:
            typer.echo(line)
        seen.check()
        typer.echo(f"decision  {DECISION}")
        if not yes and not typer.confirm(f"accept data {name}?", default=False):
            raise typer.Exit(1)
        handler.approvals.accept(name, data.reading, by=getpass.getuser(), columns=seen.named)
        Publisher(handler).publish(OWNERS_KINDS)
        typer.echo(f"accepted: data {name}, reading {data.reading[:16]}")


@silo_app.command()
def approve(
    file: Annotated[Path, typer.Argument(help="The terms, as the server's side wrote them.")],
    policy: PolicyFile = DEFAULT,
    days: Annotated[
        float | None, typer.Option(help="End the approval after this many days.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Show what a training would cost, who would see what and if it can run; ask for approval.

    What does not fit into the budget, or could not run here, is refused. Nothing of a model is
    loaded before you have approved. What the records hold beside a contract is shown, and decides
    nothing: 'dpfed silo accept' is for that, before.

    Example: dpfed silo approve terms.toml

    \f

    Args:
        file: the terms.
        policy: the owner's policy.
        days: after which the approval ends; None means the policy's approval_days.
        yes: do not ask.
    """
    import getpass

    from dpfed.cli.silo_text import proposal, verdict
    from dpfed.core.errors import UnsoundPlan
    from dpfed.core.log import say_if_slow
    from dpfed.silo.owner import Owner
    from dpfed.silo.policy import load_policy
    from dpfed.silo.publish import OWNERS_KINDS, Publisher

    text = file.read_text(encoding="utf-8")
    with say_if_slow("loading torch, and finding the noise that these terms need"):
        from dpfed.cli.data import screen_lines
        from dpfed.recipes.terms import read_terms

        asked, handler = read_terms(text), Owner(load_policy(policy))
        said = proposal(handler, asked)
    typer.echo(said)
    data = handler.policy.data[asked.pins.dataset]
    with say_if_slow(f"reading data.{asked.pins.dataset}"):
        looked = list(screen_lines(data.load, data.public))
        found = verdict(handler, asked)
    for line in looked:
        typer.echo(f"look at   {line}")
    for line in found.lines:
        typer.echo(line)
    if found.refused:
        raise UnsoundPlan(f"training {asked.name!r} cannot run here: {found.refused}")
    if not yes and not typer.confirm("approve?", default=False):
        raise typer.Exit(1)
    given = data.approval_days if days is None else days
    handler.approvals.approve(asked, text, days=given, by=getpass.getuser())
    handler.approvals.remember_price(asked.name, data.price(asked))
    Publisher(handler).publish(OWNERS_KINDS)
    typer.echo(f"approved for {given:g} days: {asked.name}, {asked.fingerprint[:16]}")


@silo_app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The training's name.")], policy: PolicyFile = DEFAULT
) -> None:
    """End an approval at once: every further order of this training is refused.

    Example: dpfed silo revoke sepsis-2026
    """
    from dpfed.silo.owner import Owner
    from dpfed.silo.policy import load_policy
    from dpfed.silo.publish import OWNERS_KINDS, Publisher

    handler = Owner(load_policy(policy))
    handler.approvals.revoke(name)
    Publisher(handler).publish(OWNERS_KINDS)
    typer.echo(f"revoked: {name}")


AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]


@silo_app.command()
def status(policy: PolicyFile = DEFAULT, as_json: AsJson = False) -> None:
    """Show what is approved, answered and refused, and what each data set has spent.

    Example: dpfed silo status --json

    \f

    Args:
        policy: the owner's policy.
        as_json: print the figures as one JSON object.
    """
    from dpfed.cli.silo_text import running_gate, state_of
    from dpfed.silo.figures import gate_figures
    from dpfed.silo.owner import Owner
    from dpfed.silo.policy import load_policy

    handler = Owner(load_policy(policy))
    if as_json:
        figures = gate_figures(handler).to_json()
        typer.echo(_json({**figures, "gate": running_gate(handler, policy)}))
    else:
        typer.echo(state_of(handler, policy))


def _json(tree: Any) -> str:
    from dpfed.core.files import jsonable

    return json.dumps(jsonable(tree), allow_nan=False)


@silo_app.command()
def health(
    policy: PolicyFile = DEFAULT,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for a connection.")] = 5.0,
) -> None:
    """Say if the gate takes connections; exits with 1 if not: for systemd, Docker, Kubernetes.

    It sends no order and reads no data, and loads little: probe as often as you like.

    Example: dpfed silo health

    \f

    Args:
        policy: the owner's policy.
        timeout: seconds to wait for a connection.
    """
    from dpfed.cli.silo_health import check_health
    from dpfed.core.errors import DataError

    try:
        typer.echo(check_health(policy, timeout))
    except DataError as error:
        typer.secho(f"unhealthy: {error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from error


@silo_app.command()
def metrics(
    policy: PolicyFile = DEFAULT,
    out: Annotated[
        Path | None, typer.Option(help="A file for node exporter's collector, replaced as a whole.")
    ] = None,
) -> None:
    """Print budgets, answers and refusals in Prometheus' text format.

    The gate writes the same file by itself after each event where the policy has gate.metrics.

    Example: dpfed silo metrics --out /var/lib/prometheus/node-exporter/dpfed.prom

    \f

    Args:
        policy: the owner's policy.
        out: a file instead of the terminal.
    """
    from dpfed.core.files import replace_file
    from dpfed.silo.figures import gate_figures, metrics_text
    from dpfed.silo.owner import Owner
    from dpfed.silo.policy import load_policy

    text = metrics_text(gate_figures(Owner(load_policy(policy))))
    if out is None:
        typer.echo(text, nl=False)
    else:
        replace_file(out, text.encode(), readable=True)


@silo_app.command()
def page(
    policy: PolicyFile = DEFAULT,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("gate.html"),
) -> None:
    """Write the officer's page: budgets, trainings, what left the building, and what to type.

    One HTML file that loads nothing and runs no script, for the gate's user only. The gate rewrites
    it by itself after each event where the policy has gate.page.

    Example: dpfed silo page --out gate.html

    \f

    Args:
        policy: the owner's policy.
        out: the file; one of the same name is replaced.
    """
    from dpfed.core.files import replace_file
    from dpfed.silo.owner import Owner
    from dpfed.silo.page import page_html
    from dpfed.silo.policy import load_policy

    replace_file(out, page_html(Owner(load_policy(policy))).encode())
    typer.echo(f"page in {out}")


@silo_app.command()
def clock(
    policy: PolicyFile = DEFAULT,
    reset: Annotated[
        bool, typer.Option("--reset", help="Let the system's clock count again; it is logged.")
    ] = False,
) -> None:
    """Show the largest time that the gate has seen, which counts if the clock is set back.

    If the clock was once far ahead, set it right and use --reset. Approvals that had ended only by
    that clock stand again, and are listed.

    Example: dpfed silo clock --reset

    \f

    Args:
        policy: the owner's policy.
        reset: take the clock's present time for the largest.
    """
    import getpass

    from dpfed.silo.owner import Owner
    from dpfed.silo.policy import load_policy
    from dpfed.silo.publish import OWNERS_KINDS, Publisher

    handler = Owner(load_policy(policy))
    approvals = handler.approvals
    again = approvals.reset_clock(getpass.getuser()) if reset else []
    if reset:
        Publisher(handler).publish(OWNERS_KINDS)
    typer.echo(f"for the gate it is {approvals.now().isoformat()}")
    for name in again:
        typer.echo(f"approved again: {name}; 'dpfed silo revoke {name}' ends it")


@silo_app.command("log")
def log_command(policy: PolicyFile = DEFAULT, as_json: AsJson = False) -> None:
    """Show approvals, replies and refusals, day by day.

    Example: dpfed silo log

    \f

    Args:
        policy: the owner's policy.
        as_json: print the lines as one JSON array.
    """
    from dpfed.cli.silo_text import days_of
    from dpfed.silo.owner import Owner
    from dpfed.silo.policy import load_policy

    handler = Owner(load_policy(policy))
    if as_json:
        typer.echo(_json([event._asdict() for event in handler.approvals.events()]))
    else:
        typer.echo(days_of(handler))
