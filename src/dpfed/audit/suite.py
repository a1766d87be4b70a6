# SPDX-License-Identifier: Apache-2.0
"""All audits of a recipe, from the most direct one to the most indirect one.

Guarantee: each audit named is run, or says why it was skipped.

| edge case                            | what happens                                     |
|--------------------------------------|--------------------------------------------------|
| a name that is no audit              | refused before anything is run, with the names   |
| no names                             | all                                              |
| the same name twice                  | run once                                         |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dpfed.audit.clip import clip
from dpfed.audit.finding import Finding, Subject
from dpfed.audit.membership import membership
from dpfed.audit.noise import noise_scale
from dpfed.audit.one_run import one_run
from dpfed.audit.order import order
from dpfed.audit.recount import recount
from dpfed.audit.two_world import two_world
from dpfed.core.errors import RecipeError
from dpfed.core.registry import suggest

AUDITS: dict[str, Callable[[Subject], Finding]] = {
    "noise-scale": noise_scale,
    "clip": clip,
    "order": order,
    "rounds": recount,
    "two-world": two_world,
    "one-run": one_run,
    "membership": membership,
}


def chosen(names: Iterable[str] = ()) -> list[str]:
    """The audits to run, in their order."""
    wanted = set(names) or set(AUDITS)
    for name in sorted(wanted - set(AUDITS)):
        raise RecipeError(f"there is no audit {name!r}; {suggest(name, list(AUDITS))}")
    return [name for name in AUDITS if name in wanted]


def audit(target: Subject, names: Iterable[str] = ()) -> Iterator[Finding]:
    """One finding after the other, each as soon as its audit ends."""
    return (AUDITS[name](target) for name in chosen(names))
