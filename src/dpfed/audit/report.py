# SPDX-License-Identifier: Apache-2.0
"""Findings as a table, as audit.json, and as one figure.

Guarantee: the table, the file and the figure show the same findings; nothing is left out.

| edge case                                 | what happens                                       |
|-------------------------------------------|----------------------------------------------------|
| a lower bound that is huge or infinite    | a bar to the edge, with its number or "infinite"   |
| an audit that measures no epsilon         | a dash, and no bar                                 |
| an audit that measures no noise level     | no bar in the panel of power, only its words       |
| a skipped audit                           | its row says so                                    |
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.audit.finding import Finding, Subject, Verdict
from dpfed.core.extras import require_extra, skip_if_missing
from dpfed.core.files import jsonable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

# Okabe and Ito's colours, which colour-blind readers can tell apart
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#888888"
_MAX_BAR_CLAIMS = 8  # times the claim: a longer bar ends at the edge
_COLOURS = {Verdict.PASSED: BLUE, Verdict.FLAGGED: VERMILION, Verdict.SKIPPED: GREY}


def shown_number(value: float) -> str:
    """A number as text; a dash if there is none."""
    if math.isnan(value) or math.isinf(value):
        return "--" if math.isnan(value) else "infinite"
    return f"{value:.3f}" if value < 1000 else f"{value:.1e}"


def findings_table(findings: Sequence[Finding]) -> Table:
    """What was claimed, what was found, the power of each audit, and the verdict."""
    from rich.table import Table

    made = Table(
        "audit",
        "claimed epsilon",
        "lower bound found",
        "power of this test",
        "verdict",
        box=None,
        pad_edge=False,
    )
    for each in findings:
        colour = {Verdict.FLAGGED: "bold red", Verdict.PASSED: "green"}.get(each.verdict, "dim")
        verdict = f"[{colour}]{each.verdict}[/]"
        made.add_row(
            each.audit, shown_number(each.claimed), shown_number(each.found), each.power, verdict
        )
    return made


def findings_json(target: Subject, findings: Sequence[Finding]) -> dict[str, Any]:
    """All findings as plain numbers and strings, and what was audited."""
    plain: dict[str, Any] = jsonable(
        {
            "recipe": target.recipe.name,
            "guarantee": target.plan.guarantee().sentence,
            "seed": target.seed,
            "effort": asdict(target.effort),
            "flagged": any(each.verdict is Verdict.FLAGGED for each in findings),
            "audits": [asdict(each) for each in findings],
        }
    )
    return plain


def write_findings(target: Subject, findings: Sequence[Finding], folder: Path) -> Path:
    """Write audit.json and audit.png, and return the folder.

    Args:
        target: the run that was audited.
        findings: one or more findings.
        folder: where the files go; it is created if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(findings_json(target, findings), indent=2)
    (folder / "audit.json").write_text(text + "\n", encoding="utf-8")
    with skip_if_missing("pictures"):
        figure(target, findings).savefig(folder / "audit.png", dpi=150)
    return folder


# --------------------------------------------------------------------------------------- the figure


def figure(target: Subject, findings: Sequence[Finding]) -> Figure:
    """Left: the lower bound found, and the claim. Right: the part of the noise that is flagged."""
    with require_extra("plots", "a picture", "matplotlib"):
        from matplotlib.figure import Figure

    made = Figure(figsize=(9.6, 1.9 + 0.5 * len(findings)), layout="constrained")
    bounds, power = made.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    _draw_bounds(bounds, findings)
    _draw_power(power, findings)
    bounds.set_yticks(range(len(findings)), [each.audit for each in findings])
    bounds.set_ylim(len(findings) - 0.4, -0.6)
    flagged = sum(each.verdict is Verdict.FLAGGED for each in findings)
    words = f"{flagged} of {len(findings)} audits flag it" if flagged else "no audit flags it"
    made.suptitle(f"Audit of {target.recipe.name}: {words}", fontsize=12)
    caption = textwrap.fill(f"Claimed: {target.plan.guarantee().sentence}", 135)
    made.supxlabel(caption, fontsize=8, color="#333333")
    return made


def _draw_bounds(axes: Axes, findings: Sequence[Finding]) -> None:
    claimed = max(each.claimed for each in findings)
    edge = 1.35 * max(
        [claimed, *(e.found for e in findings if e.found < _MAX_BAR_CLAIMS * claimed)]
    )
    for place, each in enumerate(findings):
        shown = min(each.found, edge) if each.found > 0 else 0.0
        axes.barh(place, shown, 0.55, color=_COLOURS[each.verdict])
        if not math.isnan(each.found):
            ends = [place - 0.4, place + 0.4]
            axes.plot([each.claimed] * 2, ends, color="black", linewidth=2)
        inside = each.found > edge
        past = each.claimed if shown < each.claimed < shown + 0.16 * edge else shown
        axes.annotate(
            _bound_words(each),
            (edge if inside else past, place),
            (-6 if inside else 6, 0),
            textcoords="offset points",
            va="center",
            ha="right" if inside else "left",
            fontsize=8,
            color="white" if inside else "black",
        )
    axes.set_xlim(0, edge)
    axes.set_xlabel("epsilon: lower bound found (bar), claimed (black line)", fontsize=9)
    _plain(axes)


def _bound_words(each: Finding) -> str:
    if each.verdict is Verdict.SKIPPED:
        return "skipped"
    if math.isnan(each.found):
        return "bit for bit as it must be"
    return shown_number(each.found)


def _draw_power(axes: Axes, findings: Sequence[Finding]) -> None:
    for place, each in enumerate(findings):
        known = not math.isnan(each.sees)
        axes.barh(place, each.sees if known else 0.0, 0.55, color="#56B4E9")
        text = f"{each.sees:.3g}" if known else each.power
        close = known and each.sees > 0.8
        axes.annotate(
            text,
            (each.sees if known else 0.0, place),
            (-6 if close else 6, 0),
            textcoords="offset points",
            va="center",
            ha="right" if close else "left",
            fontsize=8,
            color="black" if known else GREY,
        )
    axes.set_xlim(0, 1)
    axes.set_xlabel("part of the noise at which it would flag", fontsize=9)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
