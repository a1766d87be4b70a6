# SPDX-License-Identifier: Apache-2.0
"""What an officer of the owner's reads: a proposal before it is approved, status, and the log.

Every word that came from a server passes ``shown``; figures are this silo's own computation.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from dpfed.accounting.guarantee import GATED
from dpfed.core.log import shown
from dpfed.core.types import Trust
from dpfed.recipes.methods import method_tables
from dpfed.recipes.schema import Recipe
from dpfed.recipes.terms import Terms
from dpfed.silo.keeper import Keeper

_SEES = {
    Trust.LOCAL: "the server sees this silo's releases, each with its noise",
    Trust.DISTRIBUTED: "the server opens totals of all silos only, with the noise of all",
    Trust.CENTRAL: "the server sees this silo's sums WITHOUT NOISE, and adds noise itself",
}


def proposal(keeper: Keeper, terms: Terms) -> str:
    """What a training would do, and what it would cost; refuses what the policy does not allow."""
    data = keeper.permitted(terms)
    plan, name = terms.plan, terms.pins.dataset
    recipe, released = terms.recipe, sum(plan.planned(channel) for channel in plan.channels)
    lines = {
        "training": shown(terms.name),
        "terms": terms.fingerprint,
        "data": f"{name}: each {data.unit} under {data.adjacency}",
        "method": f"{_method(recipe)}, {recipe.rounds} rounds and {plan.spare} spare attempts, "
        f"{released} releases",
        "model": f"{shown(str(recipe.model.factory or recipe.model.name))}, "
        f"{terms.model.layout.size:,} numbers"
        + (f", trained by {shown(terms.pins.train)}" if terms.pins.train else ""),
        "silos": f"{len(terms.pins.sizes)}, this one is number {data.client}",
        "sees": _SEES[plan.update.trust],
        "keeps": replace(plan.guarantee(), enforced=GATED, budgeted=True).sentence,
        "budget": f"{data.budget} for all trainings; {_spent(keeper, name)} so far, and this one "
        f"costs {data.cost(terms):.4g} by itself",
    }
    return "\n".join(f"{word:9} {said}" for word, said in lines.items())


def _method(recipe: Recipe) -> str:
    """The method's name, if the terms leave its algorithm and noise as they are."""
    found = (recipe.client["name"], recipe.privacy.mechanism)
    tables = method_tables(recipe.method) if recipe.method else {"client": {"name": ""}}
    if found == (tables["client"]["name"], tables.get("mechanism")):
        return str(recipe.method)
    return f"{found[0]} with {found[1]} noise"


def _spent(keeper: Keeper, dataset: str) -> str:
    data = keeper.policy.data[dataset]
    cost = keeper.ledger().spent(data.key(dataset))
    return f"epsilon {cost.epsilon(data.delta, data.adjacency):.4g} is spent"


def state_of(keeper: Keeper) -> str:
    """Approvals, counts, and what is spent."""
    now, events = dt.datetime.now(dt.UTC), keeper.approvals.events()
    lines = [
        f"{name}: {_spent(keeper, name)} of {data.budget}"
        for name, data in keeper.policy.data.items()
    ]
    for each in keeper.approvals.all():
        counts = {
            kind: sum(e.times for e in events if (e.kind, e.training) == (kind, each.name))
            for kind in ("answered", "refused")
        }
        lines.append(
            f"{each.name}: {each.state(now)} until {each.until[:10]} by {shown(each.by)}, "
            f"{counts['answered']} answered, {counts['refused']} refused"
        )
    others = sum(e.times for e in events if e.kind == "refused" and not e.training)
    return "\n".join([*lines, f"under names that are not approved: {others} refused"])


def days_of(keeper: Keeper) -> str:
    """One line per day, kind and training."""
    return "\n".join(
        f"{e.last}  {e.kind:9} {e.training or '(not approved)':24} {e.times:6} x  {e.said}"
        for e in keeper.approvals.events()
    )
