# SPDX-License-Identifier: Apache-2.0
"""What ``dpfed silo approve``, ``status`` and ``log`` print for the data owner.

Every word that came from a server passes ``shown``; figures are this silo's own computation. The
verdict shows the true number of units beside the declared one, to the owner only. No code or file
of a model is loaded for any of it, and torch only for ``approve``: who asks for a status does not
wait for an import.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfed._version import VERSION
from dpfed.accounting.guarantee import GATED, round_up
from dpfed.accounting.ledger.ledger import Forecast
from dpfed.cli.silo_health import check_health
from dpfed.core.errors import BudgetSpent, DpfedError
from dpfed.core.log import shown
from dpfed.core.types import UPDATE, Trust, Unit
from dpfed.data.contract import Contract
from dpfed.recipes.methods import method_tables
from dpfed.recipes.query import ALGORITHM
from dpfed.recipes.schema import Recipe
from dpfed.silo.approvals import LEDGER_FILE
from dpfed.silo.figures import gate_figures
from dpfed.silo.owner import Owner, load_records, lower_budget
from dpfed.silo.policy import DataPolicy
from dpfed.silo.publish import running

if TYPE_CHECKING:
    from dpfed.data.datasets import Records
    from dpfed.recipes.terms import Terms

_SEES = {
    Trust.LOCAL: "the server sees this silo's releases, each with its noise",
    Trust.DISTRIBUTED: "the server opens totals of all silos only, with the noise of all",
    Trust.CENTRAL: "the server sees this silo's sums WITHOUT NOISE, and adds noise itself",
}


def proposal(handler: Owner, terms: Terms) -> str:
    """What a training would do, and what it would cost; refuses what the policy does not allow."""
    handler.check_accounts()
    data = handler.permitted(terms)
    plan, name = terms.plan, terms.pins.dataset
    recipe, released = terms.recipe, sum(plan.planned(channel) for channel in plan.channels)
    stated = replace(plan.guarantee(), enforced=GATED, budgeted=True)
    lines = {
        "training": shown(terms.name),
        "signs": f"this gate signs what it states with the key {handler.key.public.hex()}",
        "terms": terms.fingerprint,
        "data": f"{name}: each {data.unit} under {data.adjacency}",
        **_blocks(terms),
        **reads(data, ", the same as in the terms"),
        "method": f"{_method(recipe)}, {recipe.rounds} rounds and {plan.spare} spare attempts, "
        f"{released} releases",
        **_asks(terms),
        "model": _model(terms),
        "silos": f"{len(terms.pins.sizes)}, this one is number {data.client}",
        "sees": _SEES[plan.update.trust],
        "keeps": f"\n{'':10}- ".join([stated.summary, *stated.assumptions]),
        "budget": f"{handler.budget(name)} for all trainings"
        f"{' of each block' if plan.blocks else ''}; {_spent(handler, name)} so far, and this one "
        f"costs {data.cost(terms):.4g} by itself",
    }
    return "\n".join(f"{word:9} {said}" for word, said in lines.items())


def _blocks(terms: Terms) -> dict[str, str]:
    """The blocks of arriving data that are used; nothing without any."""
    names = terms.plan.blocks
    return {"blocks": f"{len(names)}: {shown(', '.join(names), 400)}"} if names else {}


def _asks(terms: Terms) -> dict[str, str]:
    """Each question of a query, with the columns that it reads and how wide its intervals are."""
    if terms.recipe.client["name"] != ALGORITHM:
        return {}
    from dpfed.client.questions.forecast import forecast  # scipy.optimize, for a query alone

    plan, model = terms.plan, terms.model
    units = plan.denominator(UPDATE)
    widths = forecast(model.questions, model.columns, plan.noise_std(UPDATE) * units, units)
    lines = [
        f"{shown(question.name)}: {shown(question.said, 400)}; {width}"
        for question, width in zip(model.questions, widths, strict=True)
    ]
    if "columns" in terms.recipe.client:  # by the terms alone: there is no contract
        lines += [
            f"by the terms, {shown(name)} is feature {column.at} of this silo's records, "
            + ("a number as it is" if column.raw else f"from {column.low:g} to {column.high:g}")
            for name, column in model.columns.items()
        ]
    return {"asks": f"\n{'':10}- ".join([f"{len(model.questions)} questions in one row", *lines])}


def reads(data: DataPolicy, beside: str = "") -> dict[str, str]:
    """By which contract the owner's file is read, and what is mapped; nothing without one.

    Args:
        data: what the policy says of it.
        beside: what to add of the contract: that it is the terms', where there are terms.
    """
    contract, mapping = data.load.contract, data.load.mapping
    if not isinstance(contract, Contract):
        return {}
    columns = ", ".join(column.name for column in contract.columns)
    label = contract.label
    lines = [f"contract {contract.digest[:16]}{beside}: a row is {contract.row}"]
    lines.append(f"columns: {shown(columns, 400)}")
    if label is not None:
        words = ", ".join(f"{word} is {place}" for place, word in enumerate(label.words))
        lines.append(f"label {label.column}: {shown(words or f'a number of {label.range}', 400)}")
    if mapping is not None:
        lines += [f"by your mapping, {said}" for said in mapping.said(contract)]
    return {"reads": f"\n{'':10}- ".join(lines)}


def _model(terms: Terms) -> str:
    if terms.recipe.client["name"] == ALGORITHM:
        return f"none: {terms.model.layout.size:,} noisy sums, by which the questions are answered"
    from dpfed.recipes.model import is_loaded

    table = terms.recipe.model
    name = shown(str(table.factory or table.options.get("source") or table.name))
    said = f"{name}, {terms.layout.size if terms.layout else 0:,} numbers"
    if is_loaded(table):
        said += " by the terms, and nothing of it is loaded before you approve"
    return said


class Verdict(NamedTuple):
    """Whether a training can run here, and why not."""

    lines: tuple[str, ...]
    refused: str
    """The first reason, in one sentence; "" if it can run."""


def verdict(handler: Owner, terms: Terms) -> Verdict:
    """Whether the budget suffices, what is left after it, and whether the data are as agreed.

    Args:
        handler: the silo's.
        terms: such that ``proposal`` accepts.
    """
    data, lines = handler.policy.data[terms.pins.dataset], []
    reasons = list(_obstacles(handler, terms))
    try:
        records = _named_records(handler, terms, load_records(terms.pins.dataset, data))
        lines.append(f"sizes     {_sizes(data, terms, records)}")
        if terms.plan.update.unit is Unit.GROUP and records.groups is None:
            reasons.append(
                "the data names no persons, and the training protects persons; name "
                "their column: load.options.groups"
            )
    except (DpfedError, OSError) as error:
        reasons.append(f"the data cannot be used: {error}")
    said, reason = _budget(handler, data, terms)
    reasons += [reason] if reason else []
    if differs := _enforced_instead(handler, terms.pins.dataset):
        lines.append(f"gate      {differs}")
    lines += [f"after it  {said}", f"verdict   {'it CANNOT run' if reasons else 'it can run'}"]
    return Verdict(tuple(lines), reasons[0] if reasons else "")


def _budget(handler: Owner, data: DataPolicy, terms: Terms) -> tuple[str, str]:
    """What is spent and left after the training, and why it does not fit (or "")."""
    from dpfed.training.account import Account

    name, budget = terms.pins.dataset, handler.budget(terms.pins.dataset)
    own = Account(handler.ledger(), name, divided=False, blocks=terms.plan.blocks)
    each = own.forecast(terms.plan, terms.name, data.client, data.key(name), budget)
    block, found = max(each.items(), key=lambda item: _after(item[1], data))
    before, after = found.before, found.after
    spent = [round_up(cost.epsilon(data.delta, data.adjacency)) for cost in (before, after)]
    left = after.left(budget)
    down = "" if math.isnan(left) else f"{math.floor(left * 1e3) / 1e3:g}"
    rest = f", and {down} is left for one more training" if down else ""
    said = f"epsilon {spent[1]} of {budget} is spent or kept for enrolled trainings"
    if block:
        said = f"of {len(each)} blocks most in {block}: {said}"
    if found.refused is None:
        return f"{said}{rest}: it FITS the budget", ""
    if not isinstance(found.refused, BudgetSpent):
        return f"{said}: the ledger REFUSES it", str(found.refused)
    full = [name for name, one in each.items() if name and one.refused is not None]
    way_out = f"ask for terms without {', '.join(full)}" if full else "ask for less"
    return (
        f"{said}: it does NOT FIT the budget",
        f"the budget {budget} of data.{name} does not suffice: epsilon {spent[0]} is spent or kept "
        f"for enrolled trainings, and {spent[1]} would be with this one; {way_out}, or raise "
        f"data.{name}.epsilon",
    )


def _after(found: Forecast, data: DataPolicy) -> tuple[bool, float]:
    """How little is left after a training: what is refused comes last."""
    return found.refused is not None, found.after.epsilon(data.delta, data.adjacency)


def _named_records(handler: Owner, terms: Terms, records: Records) -> Records:
    """The records of the blocks that terms name; all of them if they name none."""
    rule, name = handler.policy.data[terms.pins.dataset].block_rule, terms.pins.dataset
    if rule is None:
        return records
    from dpfed.silo.blocks import look_at_blocks  # torch

    today = handler.approvals.now().date()
    found = look_at_blocks(handler.state, handler.ledger(), name, rule, records, today)
    return found.take(terms.plan.blocks)


def _sizes(data: DataPolicy, terms: Terms, records: Records) -> str:
    """Declared and true number of units; only the owner reads it."""
    declared, unit = terms.pins.sizes[data.client], terms.plan.update.unit
    true = len(records)
    if unit is Unit.GROUP and records.groups is not None:
        true = len(set(records.groups.tolist()))
    if unit is Unit.CLIENT:
        return f"the whole silo is the unit; it has {true:,} records (for you alone)"
    words = "records" if unit is Unit.RECORD else "persons"
    differ = "" if declared == true else "; sums are divided by the declared number"
    return f"the terms declare {declared:,g} {words}, and {true:,} are here (for you alone){differ}"


_ORDER_OVERHEAD_BYTES = 1 << 16
"""Bytes of an order, besides its parameters."""


def _obstacles(handler: Owner, terms: Terms) -> Iterator[str]:
    """Why every order of the training would fail, whatever the data are."""
    from dpfed.recipes.model import is_loaded

    numbers = terms.layout.size if terms.layout else 0
    needed = 4 * numbers + _ORDER_OVERHEAD_BYTES
    if needed > handler.policy.gate.most_bytes:
        yield (
            f"an order has about {needed:,} bytes, and gate.most_bytes is "
            f"{handler.policy.gate.most_bytes:,}; raise it"
        )
    if terms.plan.client.linear and is_loaded(terms.recipe.model):
        yield (
            f"client {terms.recipe.client['name']!r} needs a model of one linear layer; ask for "
            f"another method or model"
        )
    if terms.plan.open:
        yield "an open population has no silos; ask for terms without privacy.cohort"


def _method(recipe: Recipe) -> str:
    """The method's name, if the terms leave its algorithm and noise as they are."""
    found = (recipe.client["name"], recipe.privacy.mechanism)
    tables = method_tables(recipe.method) if recipe.method else {"client": {"name": ""}}
    if found == (tables["client"]["name"], tables.get("mechanism")):
        return str(recipe.method)
    return f"{found[0]} with {found[1]} noise"


def _spent(handler: Owner, dataset: str) -> str:
    data, ledger = handler.policy.data[dataset], handler.ledger()
    accounts = ledger.balance().accounts_of(dataset)
    costs = [ledger.spent(data.key(account)) for account in accounts]
    most = max(cost.epsilon(data.delta, data.adjacency) for cost in costs)
    return f"epsilon {most:.4g} is spent{' at most' if len(costs) > 1 else ''}"


def _enforced_instead(handler: Owner, dataset: str) -> str:
    """Which budget the running gate enforces, if it is another one than the policy's."""
    data, ledger = handler.policy.data[dataset], handler.ledger()
    declared, key = ledger.budget_of(dataset), ledger.balance().resolve(data.key(dataset))
    allowed = handler.budget(dataset)
    if declared is None or declared == (key, allowed):
        return "" if allowed == data.budget else lower_budget(dataset, data, allowed)
    of = declared.key
    said = (
        f"{declared.budget} for each {of.unit} under {of.adjacency}, against {of.adversary} and "
        f"{of.colluders} more"
    )
    return f"the running gate enforces {said}, and will enforce {allowed}; restart it"


def _accepted(handler: Owner, dataset: str) -> str:
    """Who has accepted how the file is read; "" without a contract."""
    data = handler.policy.data[dataset]
    if not data.reading:
        return ""
    found = handler.approvals.acceptance(data.reading)
    if found is None:
        return (
            "NOT accepted as it is read by its contract, so no training runs: 'dpfed silo accept'"
        )
    named = f"; columns {shown(found.columns, 400)} although most of each is not as agreed"
    said = f"accepted as it is read, {found.at[:10]} by {shown(found.by)}"
    return said + (named if found.columns else "")


def state_of(handler: Owner, path: Path | None = None) -> str:
    """Approvals, counts, what is spent, and what the running gate has read.

    Args:
        handler: the silo's.
        path: the policy's file; None leaves out what a running gate has read.
    """
    figures = gate_figures(handler, left=False)
    lines = []
    if figures.rolled_back:
        lines.append(
            "NOTHING IS ANSWERED: the ledger is an older copy than others keep a signed head of; "
            f"see 'dpfed ledger declare-lost --ledger {handler.state / LEDGER_FILE}'"
        )
    lines += [
        f"{each.name}: epsilon {each.spent:.4g} is spent of ({each.epsilon:g}, {each.delta:g})"
        f"{': OVERSPENT' * each.overspent}"
        for each in figures.data
    ]
    lines.append(f"key: {handler.key.public.hex()}")
    lines += [
        f"{name}: {_accepted(handler, name)}"
        for name in handler.policy.data
        if _accepted(handler, name)
    ]
    differ = {name: _enforced_instead(handler, name) for name in handler.policy.data}
    lines += [f"{name}: {said}" for name, said in differ.items() if said]
    try:
        handler.check_accounts()
    except DpfedError as error:
        lines.append(f"the gate does not start with this policy: {error}")
    for each in figures.trainings:
        lost = f", {each.zero_rows} with zero rows (see the log)" if each.zero_rows else ""
        other = f"; REFUSED: its terms are of dpfed {shown(each.dpfed)}, and this is {VERSION}"
        lines.append(
            f"{each.name}: {each.state} until {each.until[:10]} by {each.by}, "
            f"{each.answered} answered{lost}, {each.refused} refused"
            f"{other if each.state == 'approved' and each.dpfed != VERSION else ''}"
        )
    lines.append(f"under names that are not approved: {figures.refused_unknown} refused")
    return "\n".join([*lines, *([] if path is None else [_running(handler, path)])])


def running_gate(handler: Owner, path: Path) -> dict[str, Any]:
    """What the gate has read that runs now, as values.

    Args:
        handler: the silo's.
        path: the policy's file.

    Returns:
        whether it takes connections (``answers``; ``why`` if not); of the gate that was started
        last, ``dpfed``, ``since`` and ``pid``; and whether it has read this policy.
    """
    why = ""
    try:
        check_health(path)
    except DpfedError as error:
        why = str(error)
    found = running(handler.state)
    same = found.pop("policy", "") == hashlib.sha256(path.read_bytes()).hexdigest()
    differ = {name: _enforced_instead(handler, name) for name in handler.policy.data}
    return {
        "answers": not why,
        "why": why,
        **found,
        "same_policy": same,
        "enforces_other": {name: said for name, said in differ.items() if said},
    }


def _running(handler: Owner, path: Path) -> str:
    """Whether a gate takes connections, since when, and if it has read another policy than this."""
    found = running_gate(handler, path)
    if not found["answers"]:
        return str(found["why"])
    said = f"a gate of dpfed {found.get('dpfed')} has run since {found.get('since')}"
    if found["same_policy"]:
        return said
    return f"{said}, by another silo.toml than this one; restart it"


def days_of(handler: Owner) -> str:
    """One line per day, kind and training."""
    return "\n".join(
        f"{e.last}  {e.kind:9} {e.training or '(not approved)':24} {e.times:6} x  {e.said}"
        for e in handler.approvals.events()
    )
