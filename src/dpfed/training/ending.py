# SPDX-License-Identifier: Apache-2.0
"""What ends a training before its rounds are done, and what is asked once more: loop.py's rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dpfed.accounting.gdp import CAUTION
from dpfed.core.types import Trust
from dpfed.training.plan import Plan
from dpfed.training.round import RoundResult, ServerState, with_next

PATIENCE = 3
"""Attempts in a row that may fail: free ones would never end, others waste the budget."""

EXHAUSTED = "no client's budget suffices for a further round"
UNAFFORDABLE = "no client's budget suffices for the whole training, so none of it was asked for"


def too_few_take_part(reasons: Iterable[str], planned: int) -> str:
    """Why training ends before it begins where those who did not refuse cannot open a total.

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
    """Why nobody is asked, if more clients than may lie have answered rounds after this one.

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
        way = "or raise privacy.colluders if so many devices lie"
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
    counts = with_next(plan, state, {})
    planned = plan.guarantee().claims[0].epsilon
    spent = plan.guarantee(counts, state.round + 1).claims[0].epsilon
    return spent <= planned * (1 + 4 * CAUTION)


def same_attempt(
    plan: Plan, before: ServerState, after: ServerState, result: RoundResult
) -> ServerState:
    """The state after an attempt: where somebody was silent, the same attempt once more.

    Clients that have answered send the bytes that they stored, at no cost, and one that was lost
    may be back; so the total may still open. The attempt counts as spent meanwhile, and once. If it
    does not open then, a new attempt is made.

    Args:
        plan: what is done; clients store their answers unless the server adds the noise.
        before: the server before the attempt.
        after: the server after it.
        result: how it ended.
    """
    silent = set(result.missing) - set(result.refused)
    if not result.aborted or not result.spent or not silent:
        return after
    anew = plan.update.trust is Trust.CENTRAL and plan.pattern is None
    if before.counts_before is not None or anew:
        return after
    return replace(before, release_counts=after.release_counts, counts_before=before.release_counts)


def exceeds(plan: Plan, state: ServerState) -> str | None:
    """Why no further attempt is made, if the plan's guarantee affords none."""
    return None if affords(plan, state) else "the next round would exceed the plan's guarantee"


def reason_to_end(result: RoundResult | None, failures: int) -> str | None:
    """Why training ends after an attempt, if it does; ``failures`` of them in a row have failed."""
    if result and result.exhausted:
        return EXHAUSTED
    if result is None or failures < PATIENCE:
        return None
    if result.spent:
        return f"{PATIENCE} attempts in a row got no total, the last one since {result.aborted}"
    return f"{PATIENCE} attempts in a row failed before any release was asked for"
