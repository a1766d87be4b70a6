# SPDX-License-Identifier: Apache-2.0
"""Stop conditions: what ends a training early, and when an attempt is repeated. Used by loop.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dpfed.accounting.gdp import CAUTION
from dpfed.accounting.guarantee import round_up
from dpfed.core.errors import BudgetSpent, DpfedError, RoundAborted
from dpfed.core.types import Trust
from dpfed.training.plan import Plan
from dpfed.training.round import RoundResult, ServerState

MAX_FAILED_ATTEMPTS = 3
"""Failed attempts in a row that end a training: free ones would repeat forever, others waste the
budget."""

EXHAUSTED = "no client's budget suffices for a further round"
UNAFFORDABLE = "no client's budget suffices for the whole training, so none of it was asked for"


def least_clients(plan: Plan) -> int:
    """How many clients must take part in a training under a plain sum, or it ends; else 1.

    A secure sum opens no total below its own threshold. Where the accounting relies on
    a secret draw, stopping must not reveal who was drawn; an open population has no list.
    """
    if plan.sum.hides_terms or plan.open or plan.draw_is_secret:
        return 1
    return plan.sum.least(len(plan.nominal))


def too_few_enrolled(plan: Plan, state: ServerState, here: int) -> str | None:
    """Why to stop: fewer clients have enrolled than must take part.

    Args:
        plan: what is done.
        state: the server before the round.
        here: how many have enrolled, and are connected.
    """
    least, planned = least_clients(plan), len(plan.nominal)
    if here >= least:
        return None
    spent = spent_in_words(plan, state)
    return (
        f"{here} of the plan's {planned} clients {'has' if here == 1 else 'have'} enrolled, and at "
        f"least {least} must (sum.least_clients), or {_few(here)} would pay for a model of "
        f"{_own(here)} own; {spent}; start the other SuperNodes (in a simulation give "
        f"--federation-config 'num-supernodes={planned}'), or plan for fewer"
    )


def too_few_replied(plan: Plan, state: ServerState, asked: Mapping[int, bool]) -> str | None:
    """Why to stop after a round: too few clients replied when they were last asked.

    Where all of them are asked in each round, these are the ones in its total.

    Args:
        plan: what is done.
        state: the server after the round.
        asked: for each client that was asked, whether it answered the last time.
    """
    least, planned = least_clients(plan), len(plan.nominal)
    silent = sum(not answered for answered in asked.values())
    here = planned - silent
    if here >= least or not silent:
        return None
    spent = spent_in_words(plan, state)
    return (
        f"{here} of {planned} clients answered when they were last asked, by round {state.round}, "
        f"and at least {least} must (sum.least_clients), or {_few(here)} would pay for a model "
        f"of {_own(here)} own; {spent}; with a checkpoint the training resumes when the others are "
        f"back"
    )


def _few(count: int) -> str:
    return "one" if count == 1 else "they"


def _own(count: int) -> str:
    return "its" if count == 1 else "their"


def nothing_trained(stopped: str, tried: str = "", detail: str = "") -> DpfedError:
    """The error of a training that completed no round: its model is the one it began with.

    Args:
        stopped: why it ended.
        tried: what became of the last attempt, if there was one.
        detail: the ledger's own error, where this process has seen it.
    """
    if stopped in (EXHAUSTED, UNAFFORDABLE):
        way_out = detail or "see 'dpfed ledger show' on a client's machine"
        return BudgetSpent(f"no round was completed: {stopped}; {way_out}")
    why = (
        f"the ledger refuses: {detail}" if detail else "the clients' logs say why they are missing"
    )
    last = f" ({tried})" if tried else ""
    return RoundAborted(f"no round was completed{last}: {stopped}; {why}")


def is_unspent(state: ServerState) -> bool:
    """Whether no release was ever asked for."""
    return not any(state.release_counts.values())


def spent_in_words(plan: Plan, state: ServerState) -> str:
    """What a training has cost so far; not a guarantee, since the cost may decide when it ends."""
    if is_unspent(state):
        return "nothing was spent"
    found = plan.guarantee(state.release_counts, state.round)
    return f"epsilon {round_up(found.epsilon)} at delta {round_up(found.delta)} is spent"


def too_few_take_part(reasons: Iterable[str], planned: int) -> str:
    """Why training ends before it begins: those who did not refuse are too few to open a total.

    Args:
        reasons: the classes of the clients' refusals.
        planned: how many clients the plan has.
    """
    found = list(reasons)
    if set(found) == {"BudgetSpent"}:
        return (
            f"{len(found)} of {planned} clients have no budget that suffices for the whole "
            f"training, so none of it was asked for"
        )
    words = ", ".join(sorted(set(found)))
    return (
        f"{len(found)} of {planned} clients take no part in this training ({words}), and too few "
        f"are left for a total; nothing was spent"
    )


def nobody_takes_part(reasons: Iterable[str]) -> str:
    """Why training ends before it begins, from the classes of the clients' refusals."""
    found = sorted(set(reasons))
    if found == ["BudgetSpent"]:
        return UNAFFORDABLE
    return f"no client takes part in this training ({', '.join(found)}), and nothing was spent"


def set_back(plan: Plan, round: int, answered: Iterable[int]) -> str | None:
    """Why to stop: more than `colluders` clients report later rounds, so this checkpoint is stale.

    Args:
        plan: what is done; its ``colluders`` may lie.
        round: where the server stands by its checkpoint.
        answered: the last round that each client says it has answered.
    """
    later = [last for last in answered if last > round]
    if len(later) <= plan.colluders:
        return None
    if plan.open:  # they are not counted further than that
        who = f"more than {plan.colluders} devices"
        way = "or raise privacy.colluders if this many devices lie"
    else:
        who, way = f"{len(later)} clients", "since a round never gets new noise"
    return (
        f"{who} have answered rounds up to {max(later)}, and this server is at round {round}: its "
        f"checkpoint is older than what it has broadcast; bring back the newest one, {way}"
    )


def affords(plan: Plan, state: ServerState) -> bool:
    """Whether one more attempt stays within the plan's guarantee: aborted ones count too."""
    if state.counts_before is not None:  # it was asked for before, and is counted already
        return True
    counts = plan.counts_after(state.release_counts, state.round)
    planned = plan.guarantee().claims[0].epsilon
    spent = plan.guarantee(counts, state.round + 1).claims[0].epsilon
    return spent <= planned * (1 + 4 * CAUTION)


def same_attempt(
    plan: Plan, before: ServerState, after: ServerState, result: RoundResult
) -> ServerState:
    """The state after an attempt: if somebody was silent, the same attempt once more.

    Clients that have answered send the bytes that they stored, at no cost, and one that was lost
    may be back; so the total may still open. The attempt counts as spent meanwhile, and once. If it
    does not open then, a new attempt is made.

    Args:
        plan: what is done; clients store their replies unless the server adds the noise.
        before: the server before the attempt.
        after: the server after it.
        result: how it ended.
    """
    silent = set(result.missing) - set(result.refused)
    if not result.aborted or not result.spent or not silent:
        return after
    anew = plan.update.trust is Trust.CENTRAL and plan.participation is None
    if before.counts_before is not None or anew:
        return after
    return replace(before, release_counts=after.release_counts, counts_before=before.release_counts)


def exceeds(plan: Plan, state: ServerState) -> str | None:
    """Why to stop: one more attempt would exceed the plan's guarantee."""
    return None if affords(plan, state) else "the next round would exceed the plan's guarantee"


def reason_to_stop(result: RoundResult | None, failures: int) -> str | None:
    """Why training ends after an attempt, if it does; ``failures`` of them in a row have failed."""
    if result and result.exhausted:
        return EXHAUSTED
    if result is None or failures < MAX_FAILED_ATTEMPTS:
        return None
    if result.spent:
        return (
            f"{MAX_FAILED_ATTEMPTS} attempts in a row got no total, the last one since "
            f"{result.aborted}"
        )
    return f"{MAX_FAILED_ATTEMPTS} attempts in a row failed before any release was asked for"
