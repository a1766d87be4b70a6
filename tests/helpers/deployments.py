# SPDX-License-Identifier: Apache-2.0
"""A Flower app and a recipe, written for real SuperNodes, and the run that they must equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import tomli_w

from dpfed.core.randomness import public_seed
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import Broadcast
from dpfed.core.vector import one_thread
from dpfed.recipes import schema as recipes
from dpfed.recipes.session import Session
from dpfed.training.reply import ClientState, client_reply
from dpfed.training.round import RoundResult, ServerState, run_round, start

SILOS = ["north", "south", "west", "east", "centre"]


APP = "dpfed.recipes.flower_app"


def write_recipe(folder: Path, clients: int, rounds: int) -> Path:
    tables = {
        "rounds": rounds,
        "seed": 7,
        "data": {
            "source": "synthetic",
            "options": {"records": 600, "features": 8, "classes": 4},
            "partition": {"name": "dirichlet", "clients": clients, "options": {"alpha": 0.5}},
        },
        "privacy": {"epsilon": 4.0, "noise": "keyed"},
        "server": [{"name": "sofim", "rho": 1.0, "beta": 0.9}, {"name": "scale", "rate": 0.3}],
    }
    path = folder / "recipe.toml"
    path.write_text(recipes.dump_recipe(recipes.load_recipe(tables)), encoding="utf-8")
    return path


def write_app(
    folder: Path,
    server: str = f"{APP}:server_app",
    client: str = f"{APP}:client_app",
    config: Mapping[str, str] | None = None,
) -> Path:
    """A Flower app that is all configuration: both sides are dpfed's own, unless told otherwise."""
    project = {
        "name": "deployed",
        "version": "1.0.0",
        "description": "A dpfed recipe",
        "license": "Apache-2.0",
        "dependencies": [],
    }
    flwr = {
        "publisher": "dpfed",
        "components": {"serverapp": server, "clientapp": client},
        "config": {"recipe": "", "root": "", "out": "", **(config or {})},
    }
    folder.mkdir()
    text = tomli_w.dumps({"project": project, "tool": {"flwr": {"app": flwr}}})
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def environment(folder: Path) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        "DPFED_STATE": str(folder / "state"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    }


def replay(prepared: Session, missing: list[set[int]]) -> ServerState:
    """The rounds in this process, without those who were missing in each."""
    plan, silos = prepared.plan, prepared.federation
    clients = {
        client: ClientState(client, problem) for client, problem in enumerate(silos.problems)
    }

    def transport(
        broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterable[tuple[int, StageReply]]:
        for client in sorted(set().union(*requests.values()) - missing[broadcast.round]):
            asked = {name: to[client] for name, to in requests.items()}
            reply, clients[client] = client_reply(plan, broadcast, stage, asked, clients[client])
            yield client, reply

    results: list[RoundResult] = []
    state = start(plan, silos.model.initial(public_seed(prepared.recipe.seed, "model")))
    for _ in missing:
        with one_thread():
            state, result = run_round(plan, state, transport)
        results.append(result)
    assert [set(result.missing) for result in results] == missing
    return state
