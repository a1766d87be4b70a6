# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""The command line of deployment: ``dpfed deploy init``, ``check``, ``renew``, ``add-silo``, ..."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

deploy_app = typer.Typer(
    help="Prepare a deployment across hosts: make keys and certificates, check them, rehearse.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(help="The folder of the deployment.")]


@deploy_app.command("init")
def init_command(
    folder: Folder,
    server: Annotated[
        list[str],
        typer.Option(
            "--server",
            help="DNS name or IP address of the server; the first is the one silos call. "
            "Repeatable.",
        ),
    ],
    node: Annotated[
        list[str],
        typer.Option("--node", help="A silo's name; its place is its partition-id. Repeatable."),
    ],
    port: Annotated[int, typer.Option(help="The SuperLink's port.")] = 8000,
    days: Annotated[int, typer.Option(help="For how many days the certificates are valid.")] = 365,
) -> None:
    """Make a CA, the server's certificate, keys per silo, and a start script for each host.

    Then: server/ goes to the server's host, nodes/NAME/ to that silo's host and to no other, and
    ca/ca.key offline. On the server, run start-superlink.sh, then register-nodes.sh; at each
    silo, start-supernode.sh. Existing keys are never overwritten.

    Example: dpfed deploy init fed --server fl.example.org --node north --node south

    \f

    Args:
        folder: where to write; made if missing.
        server: DNS names and IP addresses of the server, the one that silos call first.
        node: one name per silo; its place is its partition-id.
        port: the SuperLink's port, from 1 to 65535.
        days: for how many days the certificates are valid, from 1 to 3650.
    """
    from dpfed.cli.deploy import deploy

    written = deploy.init(folder, server_names=server, nodes=node, port=port, days=days)
    for path in written:
        typer.echo(path)
    typer.echo(f"next: read {folder / 'server/start-superlink.sh'}, then dpfed deploy check")


@deploy_app.command("check")
def check_command(
    folder: Folder,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Only warn where TLS, node authentication or a roster is missing; for one machine "
            "only.",
        ),
    ] = False,
) -> None:
    """Verify a deployment before it starts: certificates, keys, rosters, permissions, scripts.

    Says what it verified, warns 30 days before a certificate ends, and stops with one sentence at
    the first thing that is wrong.

    Example: dpfed deploy check fed
    """
    from dpfed.cli.deploy import deploy

    for line in deploy.check(folder, insecure=insecure):
        if line.startswith("warning:"):
            typer.secho(line, err=True, fg=typer.colors.YELLOW)
        else:
            typer.echo(line)


@deploy_app.command("try")
def try_command(
    folder: Folder,
    app: Annotated[
        Path | None, typer.Option(help="A Flower app to run; then all processes end.")
    ] = None,
    run_config: Annotated[str, typer.Option(help="As `flwr run` takes it.")] = "",
    data: Annotated[
        Path | None, typer.Option(help="A folder with a folder of made-up files for each silo.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="The SuperLink's port; a free one if left out.")
    ] = None,
) -> None:
    """Rehearse on this machine: SuperLink and SuperNodes, as the folder's scripts start them.

    All that they write is in try/ of the folder, and no silo's own ledger; with made-up records.
    Without an app it says how to start one, and stops all processes at Ctrl-C.

    Example: dpfed deploy try fed --app my-app --data made-up

    \f

    Args:
        folder: a folder that `init` made, with all keys.
        app: the app to run; None waits.
        run_config: values for its run_config.
        data: its folder NAME takes the place of DPFED_DATA at the silo of that name.
        port: the SuperLink's, from 1 to 65535.
    """
    from dpfed.cli.deploy import deploy, rehearsal

    if port is not None:
        deploy.check_range("--port", port, 1, 65535)
    with rehearsal.rehearse(folder, port=port, data=data) as there:
        typer.echo(f"{len(there.processes) - 1} silos are online; logs are in {there.work}")
        if app is not None:
            if there.run(app, run_config):
                return
            raise typer.Exit(1)
        typer.echo(f"FLWR_HOME={there.home} flwr run APP {deploy.CONNECTION} --stream")
        try:  # from the moment that it says so
            typer.echo("Ctrl-C ends all processes")
            there.wait()
        except KeyboardInterrupt:
            typer.echo("ended")


Silo = Annotated[str, typer.Argument(help="The silo's name.")]


def _say(folder: Path, lines: list[str]) -> None:
    """What to do next; the folder is in order, or this says why not."""
    from dpfed.cli.deploy import deploy

    deploy.check(folder)
    for line in lines:
        typer.echo(line)


@deploy_app.command("renew")
def renew_command(
    folder: Folder,
    days: Annotated[int, typer.Option(help="For how many days they are valid.")] = 365,
    new_ca: Annotated[
        bool, typer.Option("--new-ca", help="A new key of the CA, too: where it was stolen.")
    ] = False,
) -> None:
    """Renew the certificates of the CA and the server, and sign every roster again.

    Silos keep their keys and stay registered. Between two trainings; it needs ca/ca.key.

    Example: dpfed deploy renew fed

    \f

    Args:
        folder: the deployment's folder.
        days: for how many days the certificates are valid, from 1 to 3650.
        new_ca: make a new key of the CA, too.
    """
    from dpfed.cli.deploy import renewal

    _say(folder, renewal.renew(folder, days=days, new_ca=new_ca))


@deploy_app.command("add-silo")
def add_silo_command(folder: Folder, name: Silo) -> None:
    """Add a silo: write its keys and start script, and sign every roster again.

    It is the last client, so that all others keep their places. The next training has it.

    Example: dpfed deploy add-silo fed west
    """
    from dpfed.cli.deploy import renewal

    _say(folder, renewal.add_silo(folder, name))


@deploy_app.command("remove-silo")
def remove_silo_command(folder: Folder, name: Silo) -> None:
    """Take a silo out of every roster; its files are moved to removed/.

    Silos behind it move up by one place; their start scripts are changed, and it is said.

    Example: dpfed deploy remove-silo fed west
    """
    from dpfed.cli.deploy import renewal

    _say(folder, renewal.remove_silo(folder, name))


@deploy_app.command("rotate-key")
def rotate_key_command(
    folder: Folder,
    name: Silo,
    node_pub: Annotated[
        Path | None, typer.Option(help="The silo's own new node.pub; its private key stays there.")
    ] = None,
    identity_pub: Annotated[
        str | None, typer.Option(help="Its own new identity's public key, in hexadecimal digits.")
    ] = None,
) -> None:
    """Replace a silo's keys: the one the server knows, and the one the other silos know.

    With --node-pub or --identity-pub the silo made them itself: no private key is made here.

    Example: dpfed deploy rotate-key fed north

    \f

    Args:
        folder: the deployment's folder.
        name: the silo's.
        node_pub: the file of the silo's own new public node key.
        identity_pub: the silo's own new public identity key, 64 hexadecimal digits.
    """
    from dpfed.cli.deploy import renewal

    said = renewal.rotate_key(folder, name, node_pub=node_pub, identity_pub=identity_pub)
    _say(folder, said)
