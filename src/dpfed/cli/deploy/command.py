# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""The command line of deployment: ``dpfed deploy init``, ``check`` and ``try``."""

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
    keys: Annotated[
        Path | None,
        typer.Option(help="A folder with silos' own public keys, NAME.pub and NAME.identity."),
    ] = None,
) -> None:
    """Make a CA, the server's certificate, keys per silo, and a start script for each host.

    Then: server/ goes to the server's host, nodes/NAME/ to that silo's host and to no other, and
    ca/ca.key offline. On the server, run start-superlink.sh, then register-nodes.sh; at each
    silo, start-supernode.sh. Existing keys are never overwritten.

    Later, for new certificates or other silos, make a new folder with --keys fed/server/nodes:
    silos keep their keys.

    Example: dpfed deploy init fed --server fl.example.org --node north --node south

    \f

    Args:
        folder: where to write; made if missing.
        server: DNS names and IP addresses of the server, the one that silos call first.
        node: one name per silo; its place is its partition-id.
        port: the SuperLink's port, from 1 to 65535.
        days: for how many days the certificates are valid, from 1 to 3650.
        keys: public keys that silos have already; no private key is made in their place.
    """
    from dpfed.cli.deploy import deploy

    written = deploy.init(folder, server_names=server, nodes=node, port=port, days=days, keys=keys)
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
