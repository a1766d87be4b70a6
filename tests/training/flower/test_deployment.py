# SPDX-License-Identifier: Apache-2.0
"""Real federations: Flower's own processes give the same bits as the in-process engine."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from safetensors.torch import load_file

import dpfed
from dpfed.accounting.guarantee import SHIPPED, Guarantee, certified
from dpfed.cli.deploy import deploy
from dpfed.recipes import result as result_files
from dpfed.recipes import schema as recipes
from dpfed.recipes.session import prepare
from tests.helpers.deployments import SILOS, environment, replay, write_app, write_recipe
from tests.training.flower.network import Net, NetError, Run

pytestmark = [pytest.mark.slow]

TIMEOUT = 40  # seconds for a round: on a busy machine five processes start slowly


# ----------------------------------------------------------------- TLS and node authentication


@pytest.mark.long  # CI has the same behind gates: tests/silo/test_owners.py
def test_silos_behind_tls_train_the_same_model_as_one_process(tmp_path: Path) -> None:
    """DP-FedSOFIM by the folder's own scripts; a node that nobody registered stays outside.

    (test_deploy has the others who are refused: one that trusts another CA, one without a key.)
    """
    silos, out = SILOS[:3], tmp_path / "out"
    fed, other = tmp_path / "fed", tmp_path / "other"
    for folder in (fed, other):
        deploy.init(folder, server_names=["127.0.0.1"], nodes=silos)
    recipe = write_recipe(tmp_path, clients=3, rounds=3)
    with Net(tmp_path, silos, folder=fed, env=environment(tmp_path)) as net:
        net.start_node("stranger", key=other / "nodes/north/node.key", partition=0, wait=False)
        config = {"recipe": str(recipe), "out": str(out)}
        run = net.run(write_app(tmp_path / "app"), config, timeout=300)
        assert run.completed, (run, net.tail("superlink"))
        assert net.wait_exit("stranger") == 1
    left, result = result_files.read_result(out), dpfed.run(recipe)

    assert left is not None
    assert torch.equal(result.model.layout.flatten(left.params), result.params)
    assert left.guarantee == replace(result.guarantee, enforced=SHIPPED)
    assert [(row["clients"], row["missing"]) for row in left.history] == [(3, 0)] * 3
    assert left.stopped is None

    assert "--enable-supernode-auth" in (fed / "server/start-superlink.sh").read_text()
    assert "No SuperNode found with the given public key" in net.log("superlink")
    assert net.log("superlink").count("Activated node_id") == 3


# ------------------------------------------------------------------------------ trusted entities


@pytest.mark.long  # docs/threats.md says what this shows
def test_trusted_entities_refuse_what_no_hub_has_signed_and_an_empty_file_refuses_nothing(
    tmp_path: Path,
) -> None:
    """Flower's own option: the open SuperLink hands on no signature, so a plain run is refused."""
    key = Ed25519PrivateKey.generate().public_key()
    text = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({"fpk_reviewer": text}))
    (tmp_path / "none.yaml").write_text("{}")
    recipe = write_recipe(tmp_path, clients=2, rounds=2)
    app = write_app(tmp_path / "app")
    for name in ("one", "none"):
        place = tmp_path / f"net-{name}"
        place.mkdir()
        with Net(place, [], env=environment(place)) as net:
            net.nodes = ("north", "south")
            for node in net.nodes:
                net.start_node(node, more=["--trusted-entities", str(tmp_path / f"{name}.yaml")])
            config = {"recipe": str(recipe), "out": str(place / "out")}
            if name == "none":
                assert net.run(app, config, timeout=300).completed
                assert "verified" not in net.log("north")
                continue
            with pytest.raises(NetError, match="error \\(code 7\\)"):  # the server goes on asking
                net.run(app, config, timeout=60)
            assert "FAB could not be verified" in net.log("north")
            assert not (place / "out" / "guarantee.json").exists()


# -------------------------------------------------------------------------------------- dropouts

# As dpfed's own server_app, but it waits for less long, and notes who was missing, not how many.
SERVER = f"""
import json
from pathlib import Path

from dpfed.recipes.flower_app import session_for
from dpfed.training.wire.codec import named_arrays
from dpfed.training.flower.strategy import DPStrategy
from dpfed.core.vector import one_thread
from dpfed.core.randomness import public_seed
from flwr.serverapp import ServerApp
from safetensors.torch import save_file

app = ServerApp()


@app.main()
def main(grid, context):
    run, out = session_for(context), Path(context.run_config["out"])
    model = run.federation.model

    def note(row):
        with (out / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\\n")

    strategy = DPStrategy(run.plan, wait=120, watch=note)
    first = named_arrays(model.layout, model.initial(public_seed(run.recipe.seed, "model")))
    with one_thread():
        result = strategy.start(grid, first, timeout={TIMEOUT})
    save_file(result.arrays.to_torch_state_dict(), out / "model.safetensors")
    (out / "guarantee.json").write_text(json.dumps(result.guarantee.to_json()))
"""


@pytest.mark.long  # two minutes; CI has the same under a secure sum: test_secure_deployment.py
def test_a_silo_that_dies_costs_its_own_part_and_nothing_else(tmp_path: Path) -> None:
    """Power is cut at one of five silos after its first round; all rounds are completed.

    On an overloaded machine another silo may be late: then it counts as missing, too.
    """
    gone, rounds, out = 2, 3, tmp_path / "out"
    recipe = write_recipe(tmp_path, clients=5, rounds=rounds)
    run, net = run_without(gone, recipe, out)
    assert run.completed, (run, net.tail("superlink"))

    history = rows(out)
    missing = [set(map(int, row["absent"].split())) for row in history]
    assert [row["round"] for row in history] == [1, 2, 3]
    assert [row["aborted"] for row in history] == [""] * rounds
    assert [row["clients"] for row in history] == [5 - len(who) for who in missing]
    assert gone in missing[-1]

    prepared = prepare(recipes.load_recipe(recipe))
    state, planned = replay(prepared, missing), prepared.plan.guarantee()
    params = prepared.federation.model.layout.flatten(load_file(out / "model.safetensors"))
    assert torch.equal(params, state.params)
    assert not torch.equal(params, dpfed.run(recipe).params)

    left = json.loads((out / "guarantee.json").read_text())
    guarantee = msgspec.convert(left, Guarantee, strict=False)
    spent = prepared.plan.guarantee(state.release_counts, state.round)
    assert guarantee == certified(planned, spent)
    assert guarantee.claims[0] == planned.claims[0]  # against the server: as planned
    assert guarantee.claims[1].epsilon > planned.claims[1].epsilon  # less noise hides from others


def run_without(gone: int, recipe: Path, out: Path) -> tuple[Run, Net]:
    """A run in which a silo is killed as soon as one round with it is finished."""
    work = out.parent
    folder = write_app(work / "app", "dropouts.server:app")
    (folder / "dropouts").mkdir()
    (folder / "dropouts/__init__.py").touch()
    (folder / "dropouts/server.py").write_text(SERVER)
    out.mkdir()
    config = {"recipe": str(recipe), "out": str(out)}
    with Net(work, SILOS, env=environment(work)) as net, ThreadPoolExecutor(1) as pool:
        running = pool.submit(net.run, folder, config, timeout=300)
        while not any(str(gone) not in row["absent"].split() for row in rows(out)):
            assert not running.done(), running.result()
            time.sleep(0.05)
        net.kill(SILOS[gone])
        return running.result(), net


def rows(out: Path) -> list[dict[str, Any]]:
    """The rounds that are in the file by now."""
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
