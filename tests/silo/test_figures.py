# SPDX-License-Identifier: Apache-2.0
"""The figures of a gate: as they are in its files, and what Prometheus gets of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli.main import app
from dpfed.silo.figures import GateFigures, TrainingFigures, gate_figures, metrics_text
from tests.helpers.handlers import (
    _own_environment,  # noqa: F401
    approved,
    enrolment,
    looked_at,
    order,
)


def test_they_are_those_of_ledger_and_approvals(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    held.reply(order(terms))
    held.reply(order(terms, round=5))  # refused: it is not its turn
    held.reply(enrolment("nobody-knows-this"))
    figures, data = gate_figures(held), held.policy.data["sepsis"]
    spent = Ledger(held.state / "ledger.sqlite").spent(data.key("sepsis"))
    (found,) = figures.data
    assert found.spent == spent.epsilon(data.delta, data.adjacency) > 0
    assert (found.epsilon, found.overspent, found.approvals) == (4.0, False, 1)
    assert found.left is not None
    assert 0 < found.left < 4.0
    (training,) = figures.trainings
    assert training[:3] == (terms.name, terms.fingerprint, "approved")
    assert (training.answered, training.refused, figures.refused_unknown) == (1, 1, 1)
    held.approvals.revoke(terms.name)
    assert gate_figures(held).trainings[0].state == "revoked"
    assert gate_figures(held).data[0].approvals == 0


def test_an_order_is_counted_at_the_time_when_it_came(tmp_path: Path) -> None:
    """How long its reply took may depend on records: the time of it is in no file."""
    held, terms = approved(tmp_path)
    assert looked_at(held, order(terms)) is None
    assert held.came is not None
    held.came = held.came.replace(year=2031)
    held.reply(order(terms))
    held.reply(order(terms, round=1), zero_rows=True)
    times = {e.kind: e.last for e in held.approvals.events() if e.training == terms.name}
    assert times["answered"][:4] == times["zero rows"][:4] == "2031"
    assert times["approved"][:4] != "2031"


TRAINING = TrainingFigures(
    name="a",
    fingerprint="f",
    state="approved",
    until="2026-02-01T00:00:00+00:00",
    by="me",
    answered=3,
    refused=1,
    zero_rows=2,
    last="2026-01-01T00:00:00+00:00",
)


def test_metrics_do_not_say_how_many_answers_had_zero_rows() -> None:
    """That number depends on records, and monitoring may be open to many."""
    texts = {
        metrics_text(GateFigures("2026-01-02T00:00:00+00:00", (), (each,), 0))
        for each in (TRAINING, TRAINING._replace(zero_rows=7))
    }
    assert len(texts) == 1
    assert 'dpfed_answers_total{training="a"} 3\n' in texts.pop()


def test_metrics_are_in_prometheus_form(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    held.reply(order(terms))
    text = metrics_text(gate_figures(held))
    sample = re.compile(r'dpfed_[a-z_]+(\{(data|training)="[\w.-]+"\})? [0-9.e+-]+')
    named = {"HELP": set[str](), "TYPE": set[str]()}
    for line in text.splitlines():
        if line.startswith("# "):
            named[line.split()[1]].add(line.split()[2])
        else:
            assert sample.fullmatch(line), line
            assert re.split(r"[{ ]", line)[0] in named["TYPE"]
    assert named["HELP"] == named["TYPE"]
    assert f'dpfed_last_answer_timestamp_seconds{{training="{terms.name}"}}' in text


def test_a_label_cannot_break_out_of_its_quotes() -> None:
    odd = TRAINING._replace(name='a"} 1\\')
    text = metrics_text(GateFigures("2026-01-02T00:00:00+00:00", (), (odd,), 0))
    assert 'dpfed_answers_total{training="a\\"} 1\\\\"} 3' in text


def test_commands_print_them_as_json(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    held.reply(order(terms))
    policy = str(tmp_path / "silo" / "silo.toml")
    run = CliRunner().invoke(app, ["silo", "status", "--json", "--policy", policy])
    found = json.loads(run.stdout)
    assert found["trainings"][0]["answered"] == 1
    assert found["data"][0]["name"] == "sepsis"
    run = CliRunner().invoke(app, ["silo", "log", "--json", "--policy", policy])
    assert {each["kind"] for each in json.loads(run.stdout)} == {"approved", "answered"}
    out = tmp_path / "dpfed.prom"
    run = CliRunner().invoke(app, ["silo", "metrics", "--policy", policy, "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert out.stat().st_mode & 0o777 == 0o644  # node exporter is another user
    assert "dpfed_spent_epsilon" in out.read_text()
