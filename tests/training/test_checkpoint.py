# SPDX-License-Identifier: Apache-2.0
"""Whenever a server dies, it goes on from the last committed round, and asks for none twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.audit.client_laws import MODEL
from dpfed.core.errors import DataError
from dpfed.core.randomness import public_seed
from dpfed.core.registry import build
from dpfed.core.types import Broadcast, Problem
from dpfed.recipes.run import prepare
from dpfed.recipes.schema import load_recipe
from dpfed.sums.secure import secure
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.inprocess import InProcess, replay, rounds
from dpfed.training.plan import Plan
from dpfed.training.round import run_round, start
from tests.helpers.checkpoints import Died, exchange_of, run
from tests.helpers.round_counts import only_updates, updates
from tests.helpers.rounds import SIZES, client_states, make_plan


@pytest.mark.parametrize("server", ["scale", "sofim", "adam", "ftrl"])
def test_a_run_that_stops_between_rounds_gives_the_same_bits(tmp_path: Path, server: str) -> None:
    plan = make_plan(server=build("server", server, {}), rounds=5)
    whole, _ = run(plan, tmp_path / "whole", exchange_of(plan))
    for when in ("before", "committed"):
        folder = tmp_path / when
        with pytest.raises(Died):
            run(plan, folder, exchange_of(plan), lambda at, now, when=when: (at, now) == (2, when))
        after, done = run(plan, folder, exchange_of(plan))
        assert torch.equal(after.params, whole.params)
        assert after.release_counts == whole.release_counts
        assert [each.round for each in done] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("when", ["asked", "completed"])
@pytest.mark.parametrize("at", [0, 2])
def test_an_attempt_of_which_nobody_knows_the_end_is_spent(
    tmp_path: Path, when: str, at: int
) -> None:
    plan = make_plan(rounds=4)
    with pytest.raises(Died):
        run(plan, tmp_path, exchange_of(plan), lambda now_at, now: (now_at, now) == (at, when))
    after, done = run(plan, tmp_path, exchange_of(plan))
    assert [each.attempt for each in done] == [int(each.round == at) for each in done]
    assert updates(after.release_counts) == 5  # one more than the rounds


def test_dying_again_and_again_never_asks_twice_for_the_same_attempt(tmp_path: Path) -> None:
    plan = make_plan(rounds=4)
    asked: list[tuple[int, int]] = []
    inner = exchange_of(plan)

    def exchange(broadcast: Broadcast, stage: str, requests):  # type: ignore[no-untyped-def]
        asked.append((broadcast.round, broadcast.attempt))
        return inner(broadcast, stage, requests)

    deaths = [(0, "asked"), (0, "completed"), (1, "completed"), (1, "committed"), (3, "completed")]
    for death in deaths:
        with pytest.raises(Died):
            run(plan, tmp_path, exchange, lambda at, now, death=death: (at, now) == death)
    run(plan, tmp_path, exchange)
    assert len(set(asked)) == len(asked)
    assert asked == sorted(asked)


def test_an_attempt_that_is_asked_for_again_counts_even_if_it_ends_before_a_release(
    tmp_path: Path,
) -> None:
    """Nobody sends a key the second time; the first time, releases may have been sent."""
    plan = make_plan(rounds=4, sum=secure(survivors=1.0))
    checkpoint, fresh = Checkpoint(tmp_path), start(plan, MODEL.initial(0))
    checkpoint.ask(fresh)
    saved = checkpoint.load(plan, fresh, again=True)
    assert saved is not None
    assert (saved.state.round, saved.state.attempt) == (0, 0)
    assert saved.state.release_counts == only_updates({1.0: 1})
    after, result = run_round(plan, saved.state, lambda *_: [])
    assert result.aborted == "0 clients have sent keys, and 3 are agreed on"
    assert result.spent
    assert after.release_counts == only_updates({1.0: 1})
    assert (after.attempt, after.counts_before) == (1, None)


def test_a_secure_sum_goes_on_with_the_keys_that_clients_have(tmp_path: Path) -> None:
    plan = make_plan(rounds=4, sum=secure(survivors=1.0))
    exchange = exchange_of(plan)  # the clients live on
    with pytest.raises(Died):
        run(plan, tmp_path, exchange, lambda at, now: (at, now) == (1, "committed"))
    after, _ = run(plan, tmp_path, exchange)
    whole, _ = run(make_plan(rounds=4), tmp_path / "plain", exchange_of(make_plan(rounds=4)))
    assert torch.equal(after.params, whole.params)


def test_a_folder_of_another_run_or_a_broken_one_is_refused(tmp_path: Path) -> None:
    plan = make_plan(rounds=2)
    run(plan, tmp_path, exchange_of(plan))
    with pytest.raises(DataError, match="another plan"):
        run(make_plan(rounds=3), tmp_path, exchange_of(plan))
    fresh = start(plan, MODEL.initial(0), "elsewhere")
    with pytest.raises(DataError, match="another training"):
        Checkpoint(tmp_path).load(plan, fresh)
    path = tmp_path / "progress.safetensors"
    whole = path.read_bytes()
    for broken in (b"", whole[:100], whole[:-1], b"x" * 1000, b"\xff" + whole[1:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="cannot be read"):
            Checkpoint(tmp_path).load(plan, start(plan, MODEL.initial(0)))
    path.write_bytes(whole)
    (tmp_path / "asked.json").write_text("[]")
    with pytest.raises(DataError, match="cannot be read"):
        Checkpoint(tmp_path).load(plan, start(plan, MODEL.initial(0)))


def test_a_file_that_is_being_written_leaves_the_one_of_before(tmp_path: Path) -> None:
    plan = make_plan(rounds=2)
    run(plan, tmp_path, exchange_of(plan))
    (tmp_path / "progress.safetensors.draft").write_bytes(b"half a fi")
    saved = Checkpoint(tmp_path).load(plan, start(plan, MODEL.initial(0)))
    assert saved is not None
    assert saved.state.round == 2


def dies_in_its_second_round(plan: Plan, problems: list[Problem], checkpoint: Checkpoint) -> None:
    """One round is committed; the next one is asked for and made, and never committed."""
    running = rounds(plan, problems, MODEL.initial(0), checkpoint=checkpoint)
    next(running)

    def die(*_: object) -> None:
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "commit", die)
        with pytest.raises(Died):
            next(running)


@pytest.mark.parametrize("client", ["gradient", "scaffold"])
@pytest.mark.parametrize("sum", ["plain", "secure"])
def test_the_reference_engine_goes_on_with_its_clients_states(
    tmp_path: Path, client: str, sum: str
) -> None:
    """Stopped after each round in turn: the clients' control variates and vaults live on too."""
    options = {"survivors": 1.0} if sum == "secure" else {}
    plan = make_plan(
        client=build("client", client, {}, unit="record"), sum=build("sums", sum, options), rounds=8
    )
    problems = [m.problem for m in client_states(SIZES).values()]
    checkpoint = Checkpoint(tmp_path)
    for _ in range(4):
        dies_in_its_second_round(plan, problems, checkpoint)
    form = InProcess(plan, problems).client_states(MODEL.initial(0))
    saved = checkpoint.load(plan, start(plan, MODEL.initial(0)), form)
    assert saved is not None
    again = replay(plan, problems, MODEL.initial(0), saved.committed)
    assert torch.equal(again.params, saved.state.params)
    assert [(each.round, each.attempt) for each in saved.committed] == [
        (0, 0),
        (1, 1),
        (2, 1),
        (3, 1),
    ]


def test_attempts_that_died_count_against_the_guarantee(tmp_path: Path) -> None:
    """Four rounds are planned: two die, two are kept, and there is no fifth release."""
    plan, checkpoint = make_plan(rounds=4), Checkpoint(tmp_path)
    problems = [m.problem for m in client_states(SIZES).values()]
    dies_in_its_second_round(plan, problems, checkpoint)
    dies_in_its_second_round(plan, problems, checkpoint)
    after = [
        now.round for now, _ in rounds(plan, problems, MODEL.initial(0), checkpoint=checkpoint)
    ]
    assert after == []
    form = InProcess(plan, problems).client_states(MODEL.initial(0))
    saved = checkpoint.load(plan, start(plan, MODEL.initial(0)), form)
    assert saved is not None
    assert (saved.state.round, updates(saved.state.release_counts)) == (2, 4)
    assert not list(rounds(plan, problems, MODEL.initial(0), checkpoint=checkpoint))


def test_two_processes_do_not_go_on_with_one_run(tmp_path: Path) -> None:
    plan, checkpoint = make_plan(rounds=4), Checkpoint(tmp_path)
    problems = [m.problem for m in client_states(SIZES).values()]
    first = rounds(plan, problems, MODEL.initial(0), checkpoint=checkpoint)
    next(first)
    with pytest.raises(DataError, match="another process continues"):
        next(rounds(plan, problems, MODEL.initial(0), checkpoint=checkpoint))
    first.close()
    next(rounds(plan, problems, MODEL.initial(0), checkpoint=checkpoint))


# ------------------------------------------------------------------------- dpfed run --resume

RECIPE = """
rounds = 30
seed = 3

[data]
source = "synthetic"
options = { records = 1200, features = 1500, classes = 8 }
partition = { clients = 4 }

[privacy]
epsilon = 20.0
noise = "keyed"

[client]
name = "scaffold"
steps = 3
warm = false

[ledger]
dataset = "toy"
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_is_killed_at_random_moments_goes_on_to_its_end(tmp_path: Path) -> None:
    """SIGKILL, twice: each takes at most one planned attempt, and nothing else."""
    (tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    rng, folder = random.Random(5), tmp_path / "out/checkpoint"
    code = "from dpfed.cli.main import app; app()"
    command = [sys.executable, "-c", code, "run", "recipe.toml", "--out", "out", "--resume"]
    env = os.environ | {"DPFED_LEDGER": str(tmp_path / "ledger.sqlite"), "OMP_NUM_THREADS": "1"}
    committed = -1
    for _ in range(2):
        process = subprocess.Popen([*command, "--quiet"], cwd=tmp_path, env=env)
        wait_for_round(folder, committed + 2, process)
        time.sleep(rng.uniform(0.0, 0.1))
        process.kill()
        assert process.wait() == -signal.SIGKILL
        committed = max(committed, json.loads((folder / "asked.json").read_bytes())["round"] - 1)
    done = subprocess.run(
        [*command, "--quiet"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

    run = prepare(load_recipe(tmp_path / "recipe.toml"))
    initial, problems = run.federation.model.initial(public_seed(3, "model")), run.federation
    fresh = start(run.plan, initial, (folder / "training.txt").read_text())
    saved = Checkpoint(folder).load(run.plan, fresh)
    assert saved is not None
    again = replay(run.plan, problems.problems, initial, saved.committed)
    model = run.federation.model.layout.flatten(load_file(tmp_path / "out/model.safetensors"))
    assert torch.equal(model, again.params)

    rounds_done = [each.round for each in saved.committed]
    wasted = sum(each.attempt for each in saved.committed)
    assert rounds_done == list(range(30 - wasted))  # what died counts against the guarantee
    assert wasted <= 2
    rows = (tmp_path / "out/metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["round"] for row in rows] == [at + 1 for at in rounds_done]
    said = f"stopped after {30 - wasted} of 30 rounds" in done.stdout + done.stderr
    assert said == (wasted > 0)

    ledger = Ledger(tmp_path / "ledger.sqlite")
    assert ledger.verify() == []
    bodies = [row.body for row in ledger.rows() if row.body["kind"] == "entry"]
    entered = Counter((body["round"], body["attempt"], body["client"]) for body in bodies)
    assert set(entered.values()) == {1}
    counted = {(each.round, each.attempt, i) for each in saved.committed for i in each.clients}
    assert counted <= set(entered)
    ledger.close()


def wait_for_round(folder: Path, round: int, process: subprocess.Popen[bytes]) -> None:
    """Until clients are being asked for this round, or a later one."""
    path = folder / "asked.json"
    while not path.exists() or json.loads(path.read_bytes())["round"] < round:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.002)


def test_rounds_after_an_older_checkpoint_are_spent(tmp_path: Path) -> None:
    """progress of round 2 beside asked.json of round 3, attempt 1: rounds 2 and 3 were made."""
    plan = make_plan(rounds=4)
    with pytest.raises(Died):
        run(plan, tmp_path, exchange_of(plan), lambda at, now: (at, now) == (2, "before"))
    (tmp_path / "asked.json").write_text(json.dumps({"round": 3, "attempt": 1}))
    saved = Checkpoint(tmp_path).load(plan, start(plan, MODEL.initial(0)))
    assert saved is not None
    assert (saved.state.round, updates(saved.state.release_counts)) == (2, 2 + 1 + 2)


@pytest.mark.parametrize(
    "value",
    [
        [[8, []]],
        [[1, [["update", 1, 2.0]]]],
        [[4, [["update", 1, 1e9]]]],
        [[4, [["update", 0, 1.0]]]],
        [[-4, [["update", 1, 1.0]]]],
    ],
)
def test_counts_below_the_rounds_that_were_made_are_refused(tmp_path: Path, value: Any) -> None:
    plan = make_plan(rounds=4)
    run(plan, tmp_path, exchange_of(plan))
    path = tmp_path / "progress.safetensors"
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
        tensors = {each: file.get_tensor(each) for each in file.keys()}  # noqa: SIM118
    facts = {**facts, "rounds": value}
    path.write_bytes(save(tensors, {"facts": json.dumps(facts)}))
    with pytest.raises(DataError):
        Checkpoint(tmp_path).load(plan, start(plan, MODEL.initial(0)))
