# SPDX-License-Identifier: Apache-2.0
"""What a sentence says must be true of the adversary that it names.

Before: the smaller figure of a local run was said to hold "against all other clients", who pool
what they know and have the target's own release; nothing said that a server without an owner's
budget can begin another training; ``explain`` said that noise is kept by nobody (tree and banded
keep it), that computing power does not matter (noise is a stream cipher), and that the server need
not be trusted with the number of trainings; dashboards kept the guarantee of before the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import dpfed
from dpfed.accounting import gdp
from dpfed.accounting.guarantee import Guarantee
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.audit.client_laws import MODEL
from dpfed.cli.explain import gather_statement, markdown
from dpfed.core.errors import RecipeError
from dpfed.core.registry import build
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import UPDATE, Facts, Trust
from dpfed.mechanisms.gaussian import gaussian
from dpfed.mechanisms.tree import tree
from dpfed.recipes.build import plan_for
from dpfed.recipes.schema import parse
from dpfed.sums.secure import secure
from dpfed.training.round import run_round, start
from tests.helpers.rounds import Wire, client_states, make_plan

SIZES = [12, 12, 12, 12]
DATA = {
    "source": "synthetic",
    "options": {"records": 300, "features": 4, "classes": 3},
    "partition": {"clients": 5},
}
CLAUSE = "if the server starts no other training on the data"


def trained(out: Path, privacy: dict[str, Any], **sections: Any) -> Any:
    sections = {"method": "dp-fedgd", **sections}
    return dpfed.run(out=out, name="trial", rounds=3, data=DATA, privacy=privacy, **sections)


def explained(out: Path) -> str:
    return markdown(gather_statement(out))


# -------------------------------------------------------------------------- who pools what it knows


def test_all_other_clients_together_have_the_release_of_the_last_one() -> None:
    """They subtract their own releases from the published mean: one share of noise is left."""
    plan = make_plan(nominal=SIZES)

    sent: dict[int, torch.Tensor] = {}

    class Keeping(Wire):
        def tamper(self, client: int, reply: StageReply) -> Iterable[tuple[int, StageReply]]:
            assert isinstance(reply, Mapping)
            sent[client] = torch.frombuffer(bytearray(reply[UPDATE]), dtype=torch.int32)
            yield client, reply

    wire = Keeping(plan, client_states(SIZES))
    _, result = run_round(plan, start(plan, MODEL.initial(0)), wire)
    assert result.aggregate is not None
    total = result.aggregate.mean.double() * plan.denominator(UPDATE) / plan.step(UPDATE)
    left = total - sum(sent[other].double() for other in (1, 2, 3))
    torch.testing.assert_close(left, sent[0].double(), rtol=1e-4, atol=2.0)


@pytest.mark.parametrize("colluders", [1, 2, 3])
def test_the_smaller_figure_holds_against_the_number_that_is_named(colluders: int) -> None:
    """Before: "all other clients", at the price of one of them."""
    plan = make_plan(nominal=SIZES, colluders=colluders)
    found, unknown = plan.guarantee(), len(SIZES) - colluders
    alone = 2 * (plan.rounds**0.5) / plan.update.std  # the mu of one share
    assert found.claims[-1].epsilon >= gdp.epsilon_for(plan.delta, alone / unknown**0.5)
    if unknown > 1:
        some = "1 other client" if colluders == 1 else f"{colluders} other clients together"
        assert f"against {some} (the rest add their noise) and whoever" in found.sentence
        assert "all other clients" not in found.sentence
    else:  # one share hides a unit from all of them, and the server
        assert "against the server, all other clients and whoever gets" in found.sentence
    assert found.to_json()["colluders"] == colluders


def test_a_secure_sum_names_who_is_on_the_servers_side_and_nobody_else() -> None:
    privacy = {"epsilon": 2.0, "trust": "distributed", "colluders": 2}
    plan = plan_for(parse({"privacy": privacy, "sum": {"name": "secure"}}), [10.0] * 9)
    found = plan.guarantee()
    assert "has up to 2 clients on its side, and whoever gets the model, who see" in found.sentence
    assert "all other clients" not in found.sentence
    assert found.to_json()["colluders"] == 2


def test_all_other_clients_are_named_where_the_servers_noise_hides_a_unit_from_them() -> None:
    plan = make_plan(channels={UPDATE: gaussian(Facts(trust=Trust.CENTRAL), std=2.0)})
    assert "against all other clients and whoever gets the model (" in plan.guarantee().sentence


def test_the_number_is_in_the_files_and_in_the_model(tmp_path: Path) -> None:
    trained(tmp_path, {"epsilon": 2.0, "colluders": 2})
    told = json.loads((tmp_path / "guarantee.json").read_text(encoding="utf-8"))
    assert told["colluders"] == 2
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        said = file.metadata()["guarantee"]
    assert said == told["sentence"]
    assert "against 2 other clients together (the rest add their noise)" in said


# --------------------------------------------------------------------------------- other trainings


def test_without_an_owners_budget_the_sentence_counts_on_the_server() -> None:
    """Before: a server that begins a second training doubled what the sentence bounds."""
    assert CLAUSE in make_plan().guarantee().sentence
    hidden = make_plan(
        channels={UPDATE: gaussian(Facts(trust=Trust.DISTRIBUTED), std=2.0, shares=2)},
        sum=secure(survivors=1.0),
    )
    assert CLAUSE in hidden.guarantee().sentence
    central = make_plan(channels={UPDATE: gaussian(Facts(trust=Trust.CENTRAL), std=2.0)})
    assert CLAUSE not in central.guarantee().sentence
    clear = make_plan(channels={UPDATE: build("mechanisms", "clear", {})})
    assert CLAUSE not in clear.guarantee().sentence


@pytest.mark.parametrize("epsilon", [None, 8.0])
def test_a_budget_in_the_ledger_stands_for_the_servers_word(
    epsilon: float | None, tmp_path: Path
) -> None:
    ledger = {"dataset": "adult", "path": str(tmp_path / "ledger.sqlite")}
    budget = {} if epsilon is None else {"epsilon": epsilon}
    result = trained(tmp_path / "out", {"epsilon": 2.0}, ledger={**ledger, **budget})
    assert (CLAUSE in result.guarantee.sentence) == (epsilon is None)
    told = json.loads((tmp_path / "out/guarantee.json").read_text(encoding="utf-8"))
    assert told["budgeted"] == (epsilon is not None)
    assert ("that the server starts no other training" in explained(tmp_path / "out")) == (
        epsilon is None
    )


# ------------------------------------------------------------------------------------------ explain


@pytest.mark.parametrize("trust", ["local", "central"])
def test_noise_that_is_kept_is_said_to_be_kept_and_where(trust: str, tmp_path: Path) -> None:
    """Before: "kept by nobody", for a tree whose open nodes lie on the disk."""
    privacy = {"epsilon": 2.0, "mechanism": "tree", "trust": trust}
    trained(tmp_path, privacy)
    (tmp_path / "recipe.toml").unlink()  # a Flower app's folder has none
    text = explained(tmp_path)
    where = "each participant" if trust == "local" else "the server"
    assert f"part of it is kept by {where} for later rounds" in text
    assert "neither is kept" not in text


def test_noise_that_is_new_each_time_is_not_kept(tmp_path: Path) -> None:
    trained(tmp_path, {"epsilon": 2.0})
    assert "neither is kept" in explained(tmp_path)


def test_a_plan_knows_whether_noise_is_kept() -> None:
    kept = make_plan(channels={UPDATE: tree(std=2.0)})
    assert (kept.guarantee().correlated, make_plan().guarantee().correlated) == (True, False)


@pytest.mark.parametrize("trust", ["local", "central", "distributed"])
def test_computing_power_has_a_bound_under_every_trust(trust: str, tmp_path: Path) -> None:
    """Before: "any computing power", though the noise is the stream of a 256-bit cipher."""
    more = {"sum": {"name": "secure"}} if trust == "distributed" else {}
    trained(tmp_path, {"epsilon": 2.0, "trust": trust}, **more)
    text = explained(tmp_path)
    assert "any computing power that does not break ChaCha20" in text
    assert ("secure sum's cryptography" in text) == (trust == "distributed")


def test_what_the_server_is_trusted_with_is_said(tmp_path: Path) -> None:
    """Before: "Trust: none in the server", which could ask as often as it liked."""
    trained(tmp_path, {"epsilon": 2.0})
    text = explained(tmp_path)
    assert "Trust: none in the server." not in text
    assert "counts its messages and refuses more than the plan has" in " ".join(text.split())
    assert "that the server starts no other training on the data is taken on trust" in text


def test_a_file_that_leaves_something_out_is_refused(tmp_path: Path) -> None:
    """A page would say in its place what nobody has stated: that no noise is kept, for one."""
    trained(tmp_path, {"epsilon": 2.0, "mechanism": "tree"})
    told = tmp_path / "guarantee.json"
    contents = json.loads(told.read_text(encoding="utf-8"))
    for name in ("sentence", *(each.name for each in fields(Guarantee))):
        if name in contents:
            told.write_text(json.dumps({k: v for k, v in contents.items() if k != name}))
            with pytest.raises(RecipeError, match=name):
                explained(tmp_path)


# -------------------------------------------------------------------------------------------- sinks


def test_a_dashboard_has_the_guarantee_of_the_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: MLflow and TensorBoard kept the sentence of the plan, whatever was spent after it."""
    monkeypatch.setattr(Ledger, "refusals", lambda *_: {})  # others have spent since it began
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ledger = {"dataset": "adult", "epsilon": 1.5, "path": str(tmp_path / "ledger.sqlite")}
    result = trained(tmp_path / "out", {"epsilon": 2.0}, ledger=ledger, sinks=["tensorboard"])
    assert result.stopped  # the budget did not suffice for all rounds: less was spent than planned
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    events.Reload()
    said = {
        tag: [each.tensor_proto.string_val[0].decode() for each in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }
    (planned,) = said["planned_guarantee/text_summary"]
    assert said["guarantee/text_summary"] == [result.guarantee.sentence]
    assert planned.startswith("(2, 1e-05)-DP")
    assert "over 3 rounds" in planned


def test_mlflow_has_the_guarantee_of_the_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of MLflow, with a client that only notes its tags: a real one takes seconds."""
    from dpfed.recipes.sinks import mlflow as sink
    from dpfed.recipes.sinks._open import About

    tags: dict[str, str] = {}

    class Client:
        def set_tag(self, run: str, key: str, value: str) -> None:
            tags[key] = value

        def set_terminated(self, run: str, status: str) -> None:
            tags["status"] = status

    monkeypatch.setattr(sink, "_begin", lambda about: (Client(), "run"))
    about = About("x", tmp_path, "(2, 1e-05)-DP")
    with sink.mlflow(about):
        about.finished = "(1, 1e-05)-DP"
    assert tags == {"guarantee": "(1, 1e-05)-DP", "status": "FINISHED"}
    tags.clear()
    with pytest.raises(KeyboardInterrupt), sink.mlflow(About("x", tmp_path, "(2, 1e-05)-DP")):
        raise KeyboardInterrupt
    assert tags == {"status": "FAILED"}  # what was spent is not known: nothing is said
