# SPDX-License-Identifier: Apache-2.0
"""What a plan refuses when it is built: every combination whose guarantee would be untrue.

Each check returns a sentence with the value, the bound and the way out, or None.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpfed.accounting.guarantee import delta_warning
from dpfed.core.errors import UnsoundPlan
from dpfed.core.sampling import Everyone
from dpfed.core.types import METRICS, UPDATE, Adjacency, Trust, Unit

if TYPE_CHECKING:
    from dpfed.training.plan import Plan


def small_delta(plan: Plan) -> str | None:
    """A warning where delta allows to give away a whole unit: sound, but not what is meant."""
    return delta_warning(plan.delta, math.fsum(plan.nominal))


def refuse_unsound(plan: Plan) -> None:
    """Raise UnsoundPlan with the first reason that is found."""
    for complaint in (_wrong_numbers, _wrong_channels, _wrong_trust, _wrong_sampling):
        reason = complaint(plan)
        if reason:
            raise UnsoundPlan(reason)


def _wrong_numbers(plan: Plan) -> str | None:
    if not plan.nominal or not all(math.isfinite(n) and n > 0 for n in plan.nominal):
        return f"nominal sizes are {list(plan.nominal)[:5]}...; each client needs one above 0"
    for name, count in (("rounds", plan.rounds), ("evaluation.every", plan.metrics_every)):
        if count < 1:
            return f"{name} is {count}; give a whole number, at least 1"
    if plan.colluders < 1:
        return f"colluders is {plan.colluders}, but a reader always knows its own noise: at least 1"
    return None


def _wrong_channels(plan: Plan) -> str | None:
    if METRICS in plan.client.channels:
        return f"the algorithm has a channel {METRICS!r}, which is the plan's own; rename it"
    wanted = {name for name, channel in plan.declared.items() if not channel.derived}
    if wanted != set(plan.channels):
        return f"the algorithm releases on {sorted(wanted)}, priced are {sorted(plan.channels)}"
    silent = [at for at in range(plan.rounds) if not plan.due(at)]
    if UPDATE not in wanted or silent or not plan.planned(UPDATE):
        return f"all {plan.rounds} rounds pass without a reply on 'update'; give it more rounds"
    kinds = {(m.unit, m.adjacency, m.trust) for m in plan.channels.values()}
    if len(kinds) != 1:
        return f"all channels must share unit, adjacency and trust, but they are {sorted(kinds)}"
    if plan.update.unit not in plan.client.units:
        units = sorted(plan.client.units)
        return f"the algorithm can protect {units}, not each {plan.update.unit}; change the unit"
    return None


def _wrong_trust(plan: Plan) -> str | None:
    trust = plan.update.trust
    if trust is Trust.DISTRIBUTED and not plan.sum.hides_terms:
        return (
            "under distributed trust the server must see only the sum, and this sum shows it each "
            "reply; set sum.name = 'secure', or use local trust"
        )
    if trust is not Trust.LOCAL and not plan.client.sends_unmodified:
        return f"{trust} trust covers sums of unchanged releases only; use local trust"
    if trust is not Trust.LOCAL and plan.client.reuses_own_releases:
        return (
            f"a client of this method builds its later replies on its own releases, and under "
            f"{trust} trust these are not private on their own; use local trust"
        )
    if trust is Trust.DISTRIBUTED and plan.uneven:
        return (
            f"silos have {min(plan.nominal):g} to {max(plan.nominal):g} units, and averaging "
            f"those of unequal size under distributed trust exposes the smallest; use "
            f"weights = 'sum'"
        )
    return _wrong_shares(plan) if trust is Trust.DISTRIBUTED else None


def _wrong_shares(plan: Plan) -> str | None:
    """The noise must be sized for what the sum lets through, and the total must not wrap."""
    counted = max(m.shares for m in plan.channels.values())
    if counted > plan.honest:
        return f"{counted:g} shares of noise are counted on, and {plan.honest} are sure; lower it"
    if plan.delta_reserved > plan.delta / 100:
        return (
            f"the sum fails with chance {plan.delta_reserved:.2g}, over 1 % of delta; raise "
            f"sum.survivors"
        )
    for name, mechanism in plan.channels.items():
        noise = 12 * mechanism.std * math.sqrt(len(plan.nominal))
        largest = (math.fsum(plan.nominal) * mechanism.clip + noise) / mechanism.step
        if largest >= plan.sum.capacity():
            return (
                f"a total on {name!r} may reach {largest:.3g} steps, and wraps at "
                f"{plan.sum.capacity():.3g}; use sum.bits = 64"
            )
    return None


def _wrong_sampling(plan: Plan) -> str | None:
    census = {name for name, channel in plan.declared.items() if channel.census}
    draws = {name: m.sampling for name, m in plan.channels.items()}
    if any(not isinstance(draws[name], Everyone) for name in census & draws.keys()):
        return f"every unit counts on {sorted(census)}, but the draws are {draws}; draw no units"
    if len({draw for name, draw in draws.items() if name not in census}) > 1:
        return f"all channels of an algorithm must be drawn alike, but they are {draws}"
    sampled = not isinstance(plan.update.sampling, Everyone)
    if sampled and plan.update.unit is Unit.CLIENT:
        return "a client is one unit: there are no records to draw; sample the clients instead"
    if sampled and not plan.client.samples:
        return "this method's releases are not sums over records; leave the record rate at 1"
    if plan.update.trust is Trust.DISTRIBUTED and not isinstance(plan.participation, Everyone):
        return "under distributed trust the shares of noise are sized for all; ask all clients"
    return _unpriced_draw(plan) if plan.update.std else None


def _unpriced_draw(plan: Plan) -> str | None:
    """A draw that no accountant here bounds."""
    draws = (plan.update.sampling, plan.amplified)
    drawn = any(not isinstance(draw, Everyone) for draw in draws)
    if drawn and plan.update.adjacency is Adjacency.REPLACE_ONE:
        rate = min(plan.update.sampling.rate, plan.amplified.rate)
        return (
            f"a Poisson draw with rate {rate:g} is not priced under replace-one, by RDP or "
            f"otherwise; use adjacency = 'zero-out' or 'add-remove', or a rate of 1"
        )
    return None
