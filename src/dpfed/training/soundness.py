# SPDX-License-Identifier: Apache-2.0
"""What a plan refuses when it is built: every combination whose guarantee would be untrue.

Each check returns a sentence with the value, the bound and the way out, or None.
"""

from __future__ import annotations

import math

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import delta_warning
from dpfed.accounting.triangle import LEAST_DELTA
from dpfed.core.errors import UnsoundPlan
from dpfed.core.metric import Metric, joint_bound, joint_replace_bound
from dpfed.core.sampling import Everyone
from dpfed.core.types import METRICS, UPDATE, Adjacency, Trust, Unit
from dpfed.training.draft import Draft


def small_delta(plan: Draft) -> str | None:
    """A warning if delta is so large that a whole unit may be published: sound, but useless."""
    return delta_warning(plan.delta, math.fsum(plan.nominal))


def refuse_unsound(plan: Draft) -> None:
    """Raise UnsoundPlan with the first reason that is found."""
    for complaint in (
        _wrong_numbers,
        _wrong_needs,
        _wrong_metrics,
        _wrong_channels,
        _wrong_trust,
        _wrong_sampling,
        _wrong_open,
        _wrong_participation,
        _shown_presence,
        _wrong_blocks,
    ):
        reason = complaint(plan)
        if reason:
            raise UnsoundPlan(reason)


def _wrong_blocks(plan: Draft) -> str | None:
    """Blocks have accounts of their own, which add up by mu^2 for units that stay in one block."""
    if not plan.blocks:
        return None
    first = plan.update
    drawn = not isinstance(plan.client_sampling, Everyone) or plan.participation is not None
    if drawn or plan.open or any(m.sampling.rate != 1 for m in plan.channels.values()):
        return "blocks need every unit in every round, got a draw; leave rates and cohorts out"
    if first.unit is Unit.CLIENT or first.adjacency is not Adjacency.REPLACE_ONE:
        got = f"{first.unit} under {first.adjacency}"
        return f"blocks protect a record or a group under replace-one, got {got}; change it"
    return None


def _wrong_numbers(plan: Draft) -> str | None:
    wrong = [n for n in plan.nominal if not (math.isfinite(n) and n > 0)]
    if wrong or not plan.nominal:
        return (
            f"nominal sizes must be finite numbers above 0, one per client, got {wrong[:5]}; give "
            f"each client records, or declare privacy.nominal"
        )
    counts = (
        ("rounds", plan.rounds, 1),
        ("evaluation.every", plan.metrics_every, 1),
        ("privacy.spare_attempts", plan.spare, 0),
    )
    for name, count, least in counts:
        if count < least:
            return f"{name} must be a whole number, at least {least}, got {count}; raise it"
    if plan.colluders < 1:
        return (
            f"privacy.colluders must be at least 1, got {plan.colluders}: a reader knows its own "
            f"noise; leave it out for the default"
        )
    return None


def _wrong_channels(plan: Draft) -> str | None:
    if METRICS in plan.client.channels:
        return f"the algorithm has a channel {METRICS!r}, which is the plan's own; rename it"
    wanted = {name for name, channel in plan.declared.items() if not channel.derived}
    if wanted != set(plan.channels):
        return (
            f"channels must be those that the algorithm releases on, {sorted(wanted)}, got "
            f"{sorted(plan.channels)}; give each of them a mechanism, and no other"
        )
    silent = [at for at, _ in plan.round_kinds.values() if not plan.due(at)]
    if UPDATE not in wanted or silent or not plan.planned(UPDATE):
        return f"all {plan.rounds} rounds pass without a reply on 'update'; give it more rounds"
    kinds = {(m.unit, m.adjacency, m.trust) for m in plan.channels.values()}
    if len(kinds) != 1:
        found = ", ".join(" ".join(kind) for kind in sorted(kinds))
        return f"all channels must share unit, adjacency and trust, got {found}; make them alike"
    if plan.update.unit not in plan.client.units:
        units = " or ".join(sorted(plan.client.units))
        return (
            f"privacy.unit must be one that the algorithm can protect, {units}, got "
            f"{plan.update.unit}; change it, or use another method"
        )
    return None


def _wrong_metrics(plan: Draft) -> str | None:
    """Metric bounds that are impossible or that the noise does not cover, or duplicate names."""
    if not plan.metrics:
        return None
    names = [name for metric in plan.metrics for name in metric.names]
    if len(set(names)) < len(names):
        return f"metrics must have numbers of different names, got {names}; name each once"
    wrong = [m.names for m in plan.metrics if not _bounded(m)]
    if wrong:
        return (
            f"a metric must have a bound above 0 and a replace_bound from it to sqrt(2) times it, "
            f"got others for {wrong[0]}; declare what its rows keep"
        )
    mechanism = plan.channels.get(METRICS)
    if mechanism is None:
        return f"metrics must have a mechanism on {METRICS!r}, got none; give the plan one"
    clip, apart = joint_bound(plan.metrics), joint_replace_bound(plan.metrics)
    if mechanism.clip < clip or getattr(mechanism, "replace_bound", apart) < apart:
        return (
            f"the mechanism on {METRICS!r} must have a clip of {clip:g} and a replace_bound of "
            f"{apart:g} for these metrics, got a clip of {mechanism.clip:g}; give it these"
        )
    return None


def _bounded(metric: Metric) -> bool:
    """Whether its bounds can be those of rows without negative entries, the zero row included."""
    least, most = metric.bound, math.sqrt(2) * metric.bound
    return 0 < least < math.inf and least <= metric.replace_bound <= most and metric.size > 0


def _wrong_needs(plan: Draft) -> str | None:
    """What the client algorithm says that it needs of its plan."""
    needs = plan.client.needs
    method = f"this method, {needs.reason}" if needs.reason else "this method"
    if plan.rounds < needs.rounds:
        return (
            f"rounds must be at least {needs.rounds} for {method}, got {plan.rounds}; raise it, or "
            f"set method = 'dp-fedgd'"
        )
    if needs.weights not in (None, plan.weights):
        return (
            f"privacy.weights must be {needs.weights.value!r} for {method}, got "
            f"{plan.weights.value!r}; change it, or set method = 'dp-fedgd'"
        )
    if needs.independent_noise and any(not m.independent for m in plan.channels.values()):
        return (
            f"the noise of each round must be independent for {method}, got "
            f"{type(plan.update).__name__}; set privacy.mechanism = 'gaussian'"
        )
    return None


def _wrong_trust(plan: Draft) -> str | None:
    trust = plan.update.trust
    if trust is Trust.DISTRIBUTED and not plan.sum.hides_terms:
        return (
            "under distributed trust the server must see only the sum, and this sum shows it each "
            "reply; set sum.name = 'secure', or use local trust"
        )
    if trust is not Trust.LOCAL and not plan.client.sends_unmodified:
        return f"{trust} trust covers sums of unmodified releases only; use local trust"
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


def _wrong_shares(plan: Draft) -> str | None:
    """The noise must be sized for what the sum lets through, and the total must not wrap."""
    counted = max(m.shares for m in plan.channels.values())
    if counted > plan.min_honest:
        return (
            f"shares must be at most {plan.min_honest}, the honest terms that a sum surely has, "
            f"got {counted:g}; lower it, or raise sum.survivors"
        )
    if plan.delta_reserved > gdp.MAX_RESERVED_FRACTION * plan.delta:
        return (
            f"the sum's chance of failure must be at most {gdp.MAX_RESERVED_FRACTION:g} of delta = "
            f"{plan.delta:g}, got {plan.delta_reserved:.2g}; raise sum.survivors"
        )
    for name, mechanism in plan.channels.items():
        noise = 12 * mechanism.std * math.sqrt(len(plan.nominal))
        largest = (math.fsum(plan.nominal) * mechanism.clip + noise) / mechanism.step
        if largest >= plan.sum.capacity():
            return (
                f"a total on {name!r} must be below {plan.sum.capacity():.3g} steps, where it "
                f"wraps, got up to {largest:.3g}; use sum.bits = 64"
            )
    return None


def _wrong_open(plan: Draft) -> str | None:
    """Who takes part in an open population is not a random draw, so nothing is amplified."""
    if not plan.open:
        return None
    update = plan.update
    if update.trust is not Trust.CENTRAL or update.unit is not Unit.CLIENT or plan.sum.hides_terms:
        return (
            f"privacy.cohort must have central trust, unit 'client' and sum.name = 'plain', got "
            f"{update.trust} trust and unit {update.unit.value!r}: secure sums over cohorts of an "
            f"open population are not built; change these, or list the clients"
        )
    if plan.participation is None:
        return (
            "privacy.cohort must have privacy.participation, got none: each device's own ledger "
            "holds it to that; say how often a device takes part at most"
        )
    if update.adjacency is Adjacency.ADD_REMOVE:
        return (
            "privacy.adjacency must be 'zero-out' or 'replace-one' with privacy.cohort, got "
            "'add-remove': an added device displaces another one, so the sum changes by two "
            "clips; use zero-out"
        )
    if set(plan.nominal) != {1.0}:
        return "privacy.cohort must have slots of size 1, got others; leave out privacy.nominal"
    return None


def _shown_presence(plan: Draft) -> str | None:
    """Add-remove for clients where participation is visible: noise on the values cannot hide it."""
    update = plan.update
    whole = update.unit is Unit.CLIENT and update.adjacency is Adjacency.ADD_REMOVE
    if not whole or not update.std or not isinstance(plan.amplification, Everyone):
        return None
    if update.trust is Trust.CENTRAL:
        why = "optimizers and the history are told how many clients took part"
        way_out = "use 'zero-out', or draw clients in secret by privacy.client_rate"
    else:
        why = "a client that is missing sends no message, and its share of the noise is missing"
        way_out = "use 'zero-out'"
    return (
        f"privacy.adjacency must be 'zero-out' or 'replace-one' for unit 'client' under "
        f"{update.trust} trust, got 'add-remove': {why}; {way_out}"
    )


def _wrong_participation(plan: Draft) -> str | None:
    """A participation bound that the accounting of correlated noise does not cover."""
    found = {mechanism.participation for mechanism in plan.channels.values()}
    if len(found) > 1:
        return f"all channels must share privacy.participation, got {found}; make them alike"
    limits = plan.participation
    if limits is None:
        return None
    if not isinstance(plan.client_sampling, Everyone) or plan.sum.hides_terms:
        return (
            "privacy.participation must have privacy.client_rate = 1 and sum.name = 'plain', got "
            "another rate or sum: a bound gives no amplification; leave one of them out"
        )
    for name, mechanism in plan.channels.items():
        made = {plan.releases(name, at) for at, _ in plan.round_kinds.values()}
        if max(made) > 1 or (not mechanism.independent and made != {1}):
            return (
                f"under privacy.participation a channel must have one release in a round, in each "
                f"round where noise is correlated, got {sorted(made)} on {name!r}; use another "
                f"method, or mechanism 'gaussian'"
            )
    if not plan.open and (period := limits.period(plan.rounds)) > len(plan.nominal):
        return (
            f"clients must be at least {period}, as each takes part in every {period}th round "
            f"only, got {len(plan.nominal)}; lower privacy.participation.min_separation, or raise "
            f"at_most"
        )
    return None


def _wrong_sampling(plan: Draft) -> str | None:
    census = {name for name, channel in plan.declared.items() if channel.census}
    draws = {name: m.sampling for name, m in plan.channels.items()}
    if any(not isinstance(draws[name], Everyone) for name in census & draws.keys()):
        return f"every unit must take part on {sorted(census)}, got {draws}; draw no units there"
    if len({draw for name, draw in draws.items() if name not in census}) > 1:
        return f"all channels of an algorithm must be drawn alike, got {draws}; use one draw"
    sampled, rate = not isinstance(plan.update.sampling, Everyone), plan.update.sampling.rate
    if sampled and plan.update.unit is Unit.CLIENT:
        return (
            f"privacy.record_rate must be 1 where a client is the unit, got {rate:g}: there are no "
            f"records to draw; set privacy.client_rate instead"
        )
    if sampled and not plan.client.samples:
        return (
            f"privacy.record_rate must be 1 for this method, got {rate:g}: its releases are not "
            f"sums over records; leave it out"
        )
    if plan.update.trust is Trust.DISTRIBUTED and not isinstance(plan.client_sampling, Everyone):
        return (
            f"privacy.client_rate must be 1 under distributed trust, got "
            f"{plan.client_sampling.rate:g}: the shares of noise are sized for all clients; leave "
            f"it out"
        )
    return _unbounded_draw(plan) if plan.update.std else None


def _unbounded_draw(plan: Draft) -> str | None:
    """A draw for which no amplification bound is known here."""
    if plan.sum.hides_terms and not isinstance(plan.amplification, Everyone):
        return (
            f"sum.name must be 'plain' where privacy.client_rate = {plan.amplification.rate:g} is "
            f"priced, got a secure sum, which shows by giving up that few were drawn; use 'plain'"
        )
    draws = (plan.update.sampling, plan.amplification)
    drawn = any(not isinstance(draw, Everyone) for draw in draws)
    left = plan.delta - plan.delta_reserved
    if drawn and plan.update.adjacency is Adjacency.REPLACE_ONE and not left >= LEAST_DELTA:
        return (
            f"privacy.delta must be at least {LEAST_DELTA:g} where units are drawn under "
            f"replace-one, got {left:g}: below it rounding hides the price of a draw; raise it, or "
            f"set a rate of 1"
        )
    return None
