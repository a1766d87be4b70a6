# SPDX-License-Identifier: Apache-2.0
"""Accuracy by phase where data arrives: from lab/studies/blocks/results/months.json."""

from __future__ import annotations

import json
import math
import statistics

from tests.claims.files import results_of

PHASES = ((0, 12), (12, 24), (24, 36), (35, 36))


def phase(months: list[float], first: int, end: int) -> float:
    """Accuracy in percent over the months in which there is a model."""
    return 100 * statistics.fmean(each for each in months[first:end] if not math.isnan(each))


def arms() -> tuple[str, ...]:
    """The table's lines."""
    facts = json.loads((results_of("blocks") / "months.json").read_text())
    assert len(facts["seeds"]) == 5
    lines = []
    for name, arm in facts["arms"].items():
        assert arm["spent"] <= facts["epsilon"] * (1 + 1e-6)
        cells = [f"{len(arm['months'])}", f"{arm['epsilon']:.4g}", f"{arm['spent']:.3g}"]
        for first, end in PHASES:
            each = [phase(seed[name], first, end) for seed in facts["seeds"]]
            late = any(math.isnan(month) for month in facts["seeds"][0][name][first:end])
            said = f"{statistics.fmean(each):.1f} ± {statistics.stdev(each):.1f}"
            cells.append(said + "*" * late)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return tuple(lines)
