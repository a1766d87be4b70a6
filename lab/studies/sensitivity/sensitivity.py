#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Search for neighbours that move a release by more than is priced, longer than the tests do.

    nice .venv/bin/python lab/studies/sensitivity/sensitivity.py --effort 1 --write lab/studies/sensitivity/results

The law is tests/laws/sensitivity.py, the search tests/laws/neighbours.py; both run the clients' own
code. All algorithms that the registry finds, in all their variants, under every unit, adjacency,
channel and model; small and large clips; and every mechanism that adds noise. It writes table.md
and figures.json, and exits with 1 if a bound was exceeded anywhere, or a planted bug not caught.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import pytest
import torch
from tests.helpers.sensitivity_cases import CHANGING
from tests.laws.neighbours import Effort, Search
from tests.laws.planted_sensitivity import BUGS
from tests.laws.sensitivity import LINEAR, MODELS, NETWORKS, SLACK, Case, cases, mu_of, plan_for
from tests.laws.survey import Survey, survey

from dpfed.core import registry
from dpfed.core.log import log
from dpfed.core.types import METRICS


def machine() -> dict[str, int]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cores": os.cpu_count() or 0, "memory_gib": round(pages / 2**30)}


def explore(name: str, effort: int, seed: int) -> Survey:
    """One algorithm: linear models and networks, then other clips and integers."""
    long = Effort(20 * effort, 5 * effort, 15 * effort, more=40)
    short = Effort(8 * effort)
    found = survey(Survey(), cases(name, LINEAR), long, seed)
    survey(found, cases(name, NETWORKS), Effort(5 * effort, effort, 2 * effort, more=15), seed + 1)
    for clip in (1e-6, 1e-3, 1e3):
        survey(found, cases(name, LINEAR, clip=clip, most=1), short, seed + 2)
    survey(found, cases(name, (*LINEAR, "func"), "discrete_gaussian", most=1), short, seed + 3)
    return found


def caught() -> dict[str, float]:
    """The largest ratio that each planted bug showed; 0 where it was not caught."""
    ratios = {}
    for bug in BUGS:
        plan = plan_for(bug.case)
        with pytest.MonkeyPatch.context() as patch:
            mu_of.cache_clear()
            found = Search(bug.plant(plan, patch), MODELS[bug.case.model]).search(Effort(8, 2))
            ratios[str(bug)] = max(r for r, _ in found.best.values()) if found.faults else 0.0
    mu_of.cache_clear()
    return ratios


def cancelling() -> dict[str, float]:
    """The largest ratio where the number of records changes and scores are rounding alone."""
    ratios: dict[str, float] = {}
    for unit, adjacency in CHANGING:
        for model in MODELS:
            plan = plan_for(Case("gradient", (), unit, adjacency, model))
            search = Search(plan, MODELS[model])
            for count in range(3, 40):
                search.cancels(count)
            largest = max(ratio for ratio, _ in search.best.values())
            ratios[f"{unit} / {adjacency}"] = max(largest, ratios.get(f"{unit} / {adjacency}", 0.0))
    return ratios


def summary(found: Survey) -> dict[str, Any]:
    """One algorithm's line: its largest ratio, and where less than half of a bound was reached."""
    ratio, key = max((ratio, key) for key, ratio in found.largest.items() if key[3] != METRICS)
    below = {" / ".join(k[1:]): round(r, 4) for k, r in sorted(found.largest.items()) if r < 0.5}
    return {
        "cases": len(found.largest),
        "refused": found.refused,
        "neighbours": found.tried,
        "largest": ratio,
        "where": " / ".join(key[1:]),
        "joint": found.joint,
        "below_half": below,
        "faults": found.faults,
    }


def figures(effort: int, seed: int) -> dict[str, Any]:
    began, lines = time.perf_counter(), {}
    for name in registry.names("client"):
        lines[name] = summary(explore(name, effort, seed))
        print(f"{name}: {lines[name]['largest']:.6f}", file=sys.stderr)
    mechanisms = [each for each in registry.names("mechanisms") if each != "clear"]
    by_mechanism = {
        each: summary(survey(Survey(), cases("gradient", LINEAR, each), Effort(8 * effort), seed))
        for each in mechanisms
    }
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": f"lab/studies/sensitivity/sensitivity.py --effort {effort} --seed {seed}",
        "machine": machine(),
        "seconds": round(time.perf_counter() - began),
        "cases": sum(line["cases"] for line in lines.values()),
        "refused": sum(line["refused"] for line in lines.values()),
        "neighbours": sum(line["neighbours"] for line in lines.values()),
        "algorithms": lines,
        "mechanisms": by_mechanism,
        "planted": caught(),
        "cancelling": cancelling(),
    }


def table(found: dict[str, Any]) -> str:
    """The same as a page."""
    rows = [
        f"| {name} | {line['cases']} | {line['neighbours']:,} | {line['largest']:.6f} | "
        f"{line['where']} | {line['joint']:.6f} | {len(line['faults'])} |"
        for name, line in found["algorithms"].items()
    ]
    plants = [f"| {name} | {ratio:.3g} |" for name, ratio in found["planted"].items()]
    faults = [f"| {where} | {ratio:.3g} |" for where, ratio in found["cancelling"].items()]
    size = found["machine"]
    about = {
        **found,
        **size,
        "neighbours": f"{found['neighbours']:,}",
        "rows": "\n".join(rows),
        "plants": "\n".join(plants),
        "faults": "\n".join(faults),
    }
    return PAGE.format_map(about)


PAGE = """# How far one unit moves a release, over what is priced

`{command}`, {date}, {cores} cores, {memory_gib} GiB, {seconds} s.

A case is (algorithm, unit, adjacency, channel, model): {cases} of them, {neighbours} pairs of
neighbours, {refused} combinations that a plan refuses. A ratio of 1 is the bound; "jointly" is all
channels of a round together. The law is in [sensitivity.py](../../../../tests/laws/sensitivity.py).

| algorithm | cases | neighbours | largest ratio | where | jointly | above the bound |
|---|---|---|---|---|---|---|
{rows}

## Planted bugs

| bug, algorithm, unit | ratio that gave it away |
|---|---|
{plants}

## Scores that are rounding alone

Neighbours differ in the number of records, and the server sends weights of 1e18 that cancel. Other
records' scores are then what a library rounds, which may depend on how many it computes at once (up
to 5.6 times the bound before records were computed in whole blocks; one thread, up to 40 records).

| unit / adjacency | largest ratio |
|---|---|
{faults}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--effort", type=int, default=1, help="a multiple of the shortest search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="a folder; else the figures are printed")
    given = parser.parse_args()
    torch.set_num_threads(1)
    log.disabled = True  # hostile broadcasts make a client log whole tracebacks
    found = figures(given.effort, given.seed)
    text = json.dumps(found, indent=2) + "\n"
    if given.write is None:
        print(text, end="")
    else:
        given.write.mkdir(parents=True, exist_ok=True)
        (given.write / "figures.json").write_text(text, encoding="utf-8")
        (given.write / "table.md").write_text(table(found), encoding="utf-8")
    lines = [*found["algorithms"].values(), *found["mechanisms"].values()]
    over = max(found["cancelling"].values()) > 1 + SLACK or any(line["faults"] for line in lines)
    return int(over or not all(found["planted"].values()))


if __name__ == "__main__":
    sys.exit(main())
